//! The checkpoint as a file, replaced atomically and synced before the old one goes.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Checkpoint, CheckpointError, Seen, parse};
use crate::position::Position;

#[derive(Serialize, Deserialize)]
struct Stored {
    epoch: u64,
    position: Option<String>,
}

pub(super) async fn take_over(name: &str, path: &Path) -> Result<Checkpoint, CheckpointError> {
    let stored = load(path).await?;
    let epoch = stored.epoch + 1;
    let position = stored
        .position
        .as_deref()
        .map(|text| parse(name, text))
        .transpose()?;
    replace(
        path,
        Stored {
            epoch,
            position: stored.position,
        },
    )
    .await?;
    Ok(Checkpoint { epoch, position })
}

pub(super) async fn see(name: &str, path: &Path) -> Result<Option<Seen>, CheckpointError> {
    let written = match tokio::fs::metadata(path).await {
        Ok(metadata) => metadata.modified().map_err(failed("read", path))?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    };
    let Stored { epoch, position } = load(path).await?;
    let position = position
        .as_deref()
        .map(|text| parse(name, text))
        .transpose()?;
    Ok(Some(Seen {
        checkpoint: Checkpoint { epoch, position },
        owner: None,
        // A clock that was set back makes no age negative.
        age: written.elapsed().unwrap_or_default(),
    }))
}

pub(super) async fn save(
    name: &str,
    path: &Path,
    epoch: u64,
    position: Option<&Position>,
) -> Result<(), CheckpointError> {
    if load(path).await?.epoch != epoch {
        return Err(CheckpointError::Fenced {
            name: name.to_owned(),
            epoch,
        });
    }
    replace(
        path,
        Stored {
            epoch,
            position: position.map(Position::to_json),
        },
    )
    .await
}

async fn load(path: &Path) -> Result<Stored, CheckpointError> {
    let read = match tokio::fs::read(path).await {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Stored {
            epoch: 0,
            position: None,
        }),
        Err(error) => Err(error),
    };
    read.map_err(failed("read", path))
}

async fn replace(path: &Path, stored: Stored) -> Result<(), CheckpointError> {
    let target = path.to_owned();
    let write = move || -> io::Result<()> {
        let mut beside = target.clone().into_os_string();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(&serde_json::to_vec(&stored)?)?;
        file.sync_all()?;
        std::fs::rename(&beside, &target)?;
        // The rename itself is durable only once the folder is synced.
        let folder = target
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    };
    let written = tokio::task::spawn_blocking(write).await;
    written
        .unwrap_or_else(|panic| Err(io::Error::other(panic)))
        .map_err(failed("replace", path))
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.display().to_string();
    move |source| CheckpointError::File {
        doing,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_later_epoch_fences_an_earlier_one() {
        let folder = std::env::temp_dir().join(format!("relay-checkpoint-{}", fastrand::u64(..)));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("checkpoint.json");
        let first = take_over("a", &path).await.unwrap();
        assert_eq!(
            first,
            Checkpoint {
                epoch: 1,
                position: None
            }
        );
        let position = Position::File {
            file: "b.1".into(),
            offset: 4,
        };
        save("a", &path, 1, Some(&position)).await.unwrap();
        let second = take_over("a", &path).await.unwrap();
        assert_eq!(
            second,
            Checkpoint {
                epoch: 2,
                position: Some(position.clone())
            }
        );
        let error = save("a", &path, 1, Some(&position)).await.unwrap_err();
        assert!(
            matches!(error, CheckpointError::Fenced { epoch: 1, .. }),
            "{error}"
        );
        save("a", &path, 2, Some(&position)).await.unwrap();
        let seen = see("a", &path).await.unwrap().unwrap();
        assert_eq!(seen.checkpoint, second);
        let missing = see("a", &folder.join("none")).await.unwrap();
        assert_eq!(missing, None);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
