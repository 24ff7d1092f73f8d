//! Marks of published rows, in batches.
//!
//! Nothing rests on a mark: it tells people, the cleaner and the claimer that a row is done.

use mysql_async::{Params, Value};

use crate::config::{Config, Mark};
use crate::event::Key;
use crate::mysql::{MysqlError, Session};

/// Statement sizes: a batch is padded up to the next with its last key, so that three statements stay prepared.
const SIZES: [usize; 3] = [16, 128, 1024];

/// Lets the session's updates write only the changed columns to the binlog, where the account may: a full image
/// would put each payload into the binlog twice more. Whether it may.
///
/// # Errors
/// The connection is gone.
pub async fn prepare(session: &mut Session) -> Result<bool, MysqlError> {
    let statement = "SET SESSION binlog_row_image = 'MINIMAL'";
    match session
        .run("make marks small in the binlog", statement)
        .await
    {
        Ok(_) => Ok(true),
        Err(error) if error.code().is_some() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Marks the rows of those keys; a row that is marked already is left alone.
///
/// # Errors
/// MySQL said no. Marking again after that does no harm.
pub async fn mark(config: &Config, session: &mut Session, keys: &[Key]) -> Result<(), MysqlError> {
    let table = config.table.quoted();
    let head = match config.mark {
        Mark::None => return Ok(()),
        Mark::Delete => format!("DELETE FROM {table} WHERE id IN ("),
        Mark::Update => format!(
            "UPDATE {table} SET status = 'PUBLISHED', published_at = CURRENT_TIMESTAMP(6), \
             locked_by = NULL, locked_until = NULL, last_error = NULL \
             WHERE status <> 'PUBLISHED' AND id IN ("
        ),
    };
    let largest = SIZES.iter().copied().max().unwrap_or(1);
    for chunk in keys.chunks(largest) {
        let size = SIZES
            .iter()
            .copied()
            .find(|size| *size >= chunk.len())
            .unwrap_or(largest);
        let statement = format!("{head}{}?)", "?,".repeat(size - 1));
        let padding = chunk.last().into_iter().cycle();
        let values = chunk
            .iter()
            .chain(padding)
            .take(size)
            .map(value_of)
            .collect();
        session
            .execute("mark published rows", statement, Params::Positional(values))
            .await?;
    }
    Ok(())
}

/// A key as a statement's parameter.
pub fn value_of(key: &Key) -> Value {
    match key {
        Key::Int(number) => Value::Int(*number),
        Key::UInt(number) => Value::UInt(*number),
        Key::Text(text) => Value::Bytes(text.as_bytes().to_vec()),
    }
}
