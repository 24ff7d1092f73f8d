//! The checkpoint as a row beside the outbox.

use super::{Checkpoint, CheckpointError, owner, parse};
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
