//! The checkpoint as a row beside the outbox.

use std::time::Duration;

use super::{Checkpoint, CheckpointError, Seen, owner, parse};
use crate::config::Config;
use crate::mysql::Session;
use crate::position::Position;

pub(super) async fn take_over(
    config: &Config,
    session: &mut Session,
) -> Result<Checkpoint, CheckpointError> {
    let doing = "take over the checkpoint";
    let table = config.checkpoint_table.quoted();
    // The row stays locked from the raised epoch to the commit: two relays that start at once get two epochs.
    session.run(doing, "START TRANSACTION").await?;
    let raise = format!(
        "INSERT INTO {table} (name, epoch, owner) VALUES (?, 1, ?) \
         ON DUPLICATE KEY UPDATE epoch = epoch + 1, owner = VALUES(owner)"
    );
    session
        .execute(doing, raise, (&config.name, owner()))
        .await?;
    let read = format!("SELECT epoch, position FROM {table} WHERE name = ?");
    let found: Vec<(u64, Option<String>)> = session.rows(doing, read, (&config.name,)).await?;
    session.run(doing, "COMMIT").await?;
    let Some((epoch, position)) = found.into_iter().next() else {
        return Err(CheckpointError::Fenced {
            name: config.name.clone(),
            epoch: 0,
        });
    };
    let position = position
        .map(|text| parse(&config.name, &text))
        .transpose()?;
    Ok(Checkpoint { epoch, position })
}

pub(super) async fn see(
    config: &Config,
    session: &mut Session,
) -> Result<Option<Seen>, CheckpointError> {
    let select = format!(
        "SELECT epoch, position, owner, GREATEST(TIMESTAMPDIFF(MICROSECOND, updated_at, NOW(6)), 0) FROM {} WHERE name = ?",
        config.checkpoint_table.quoted()
    );
    let found: Vec<(u64, Option<String>, Option<String>, u64)> = session
        .rows("read the checkpoint", select, (&config.name,))
        .await?;
    let Some((epoch, position, owner, micros)) = found.into_iter().next() else {
        return Ok(None);
    };
    let position = position
        .map(|text| parse(&config.name, &text))
        .transpose()?;
    Ok(Some(Seen {
        checkpoint: Checkpoint { epoch, position },
        owner,
        age: Duration::from_micros(micros),
    }))
}

pub(super) async fn save(
    config: &Config,
    session: &mut Session,
    epoch: u64,
    position: Option<&Position>,
) -> Result<(), CheckpointError> {
    let table = config.checkpoint_table.quoted();
    let update = format!("UPDATE {table} SET position = ?, owner = ? WHERE name = ? AND epoch = ?");
    let params = (
        position.map(Position::to_json),
        owner(),
        &config.name,
        epoch,
    );
    match session
        .execute("save the checkpoint", update, params)
        .await?
    {
        0 => Err(CheckpointError::Fenced {
            name: config.name.clone(),
            epoch,
        }),
        _ => Ok(()),
    }
}
