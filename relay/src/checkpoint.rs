//! Checkpoints: a persisted watermark, under an epoch that fences whoever was there before.

mod file;
mod mysql;

use std::time::Duration;

use thiserror::Error;

use crate::config::{CheckpointStore, Config};
use crate::mysql::{MysqlError, Session};
use crate::position::{Position, PositionError};

/// What was found on taking over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Our epoch: one above any before.
    pub epoch: u64,
    /// Where the one before had got to; `None` on a first start.
    pub position: Option<Position>,
}

/// Why a checkpoint can't be taken over or saved.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// MySQL said no.
    #[error(transparent)]
    Mysql(#[from] MysqlError),
    /// The file can't be read or replaced.
    #[error("cannot {doing} the checkpoint file {path}")]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// What is stored is no position.
    #[error("the checkpoint of relay {name} can't be read")]
    Unreadable {
        /// Relay name.
        name: String,
        /// Why.
        #[source]
        source: PositionError,
    },
    /// Another relay of this name has taken over.
    #[error("another relay named {name} has taken over (epoch {epoch} is past)")]
    Fenced {
        /// Relay name.
        name: String,
        /// Our epoch.
        epoch: u64,
    },
}

/// A checkpoint that is looked at by somebody who does not take it over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What is stored.
    pub checkpoint: Checkpoint,
    /// Host and process that wrote it, where the store has that.
    pub owner: Option<String>,
    /// Time since then.
    pub age: Duration,
}

/// Reads what is stored, and changes nothing; none before the first start.
///
/// # Errors
/// The store can't be reached or read.
pub async fn see(config: &Config, session: &mut Session) -> Result<Option<Seen>, CheckpointError> {
    match &config.checkpoint {
        CheckpointStore::Mysql => mysql::see(config, session).await,
        CheckpointStore::File(path) => file::see(&config.name, path).await,
    }
}

/// Raises the epoch and reads the position.
///
/// # Errors
/// The store can't be reached or read.
pub async fn take_over(
    config: &Config,
    session: &mut Session,
) -> Result<Checkpoint, CheckpointError> {
    match &config.checkpoint {
        CheckpointStore::Mysql => mysql::take_over(config, session).await,
        CheckpointStore::File(path) => file::take_over(&config.name, path).await,
    }
}

/// Saves the position, or that there is none, if our epoch still stands.
///
/// # Errors
/// [`CheckpointError::Fenced`] if it does not; the store can't be reached.
pub async fn save(
    config: &Config,
    session: &mut Session,
    epoch: u64,
    position: Option<&Position>,
) -> Result<(), CheckpointError> {
    match &config.checkpoint {
        CheckpointStore::Mysql => mysql::save(config, session, epoch, position).await,
        CheckpointStore::File(path) => file::save(&config.name, path, epoch, position).await,
    }
}

/// Writes to MySQL without changing anything that counts: whatever was committed before it lies before it in the
/// binlog, and is visible once it returns.
///
/// # Errors
/// MySQL said no.
pub async fn touch(config: &Config) -> Result<(), MysqlError> {
    let mut session = Session::connect(config).await?;
    let statement = format!(
        "INSERT INTO {} (name, owner) VALUES (?, ?) ON DUPLICATE KEY UPDATE updated_at = CURRENT_TIMESTAMP(6)",
        config.checkpoint_table.quoted()
    );
    let params = (&config.name, owner());
    session
        .execute("write ahead of a snapshot", statement, params)
        .await?;
    Ok(())
}

fn parse(name: &str, text: &str) -> Result<Position, CheckpointError> {
    Position::from_json(text).map_err(|source| CheckpointError::Unreadable {
        name: name.to_owned(),
        source,
    })
}

/// Who holds it, for people who look into the store.
fn owner() -> String {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
}
