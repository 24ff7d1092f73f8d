//! Dead letters: events that were given up, with the reason, in a table of their own.

use mysql_async::Value;

use crate::config::{Config, Mark};
use crate::event::{Key, OutboxEvent};
use crate::marker::value_of;
use crate::mysql::{MysqlError, Session};

/// An event that was given up.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// Primary key of its outbox row.
    pub id: Key,
    /// Kind of event.
    pub event_type: Box<str>,
    /// JSON text.
    pub payload: Vec<u8>,
    /// Why it was given up.
    pub error: String,
    /// How often it was tried.
    pub attempts: u32,
}

impl DeadLetter {
    /// Of an event that was given up for that reason.
    pub fn of(event: &OutboxEvent, attempts: u32, error: String) -> Self {
        Self {
            id: event.id.clone(),
            event_type: event.event_type.clone(),
            payload: as_json(&event.payload),
            error,
            attempts,
        }
    }
}

/// A payload that is no JSON is kept as a JSON string of what can be read of it.
fn as_json(payload: &[u8]) -> Vec<u8> {
    if serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok() {
        return payload.to_vec();
    }
    serde_json::to_vec(&String::from_utf8_lossy(payload)).unwrap_or_else(|_| b"null".to_vec())
}

/// Notes a failure on the row, for people: the relay itself counts attempts in memory.
///
/// # Errors
/// MySQL said no.
pub async fn note_failure(
    config: &Config,
    session: &mut Session,
    id: &Key,
    attempts: u32,
    error: &str,
) -> Result<(), MysqlError> {
    if config.mark == Mark::None {
        return Ok(());
    }
    let update = format!(
        "UPDATE {} SET attempts = ?, last_error = ? WHERE id = ? AND status <> 'PUBLISHED'",
        config.table.quoted()
    );
    session
        .execute(
            "note a failed attempt",
            update,
            (attempts, error, value_of(id)),
        )
        .await?;
    Ok(())
}

/// Writes the dead letter and sets its row FAILED, in one transaction. Doing it again adds no second letter:
/// the row tells that it was done.
///
/// # Errors
/// MySQL said no; the transaction is then rolled back with its session.
pub async fn bury(
    config: &Config,
    session: &mut Session,
    letter: &DeadLetter,
) -> Result<(), MysqlError> {
    let doing = "write a dead letter";
    session.run(doing, "START TRANSACTION").await?;
    let done = match config.mark {
        Mark::None => false,
        Mark::Update | Mark::Delete => {
            let fail = format!(
                "UPDATE {} SET status = 'FAILED', attempts = ?, last_error = ?, \
                 locked_by = NULL, locked_until = NULL WHERE id = ? AND status <> 'FAILED'",
                config.table.quoted()
            );
            let params = (letter.attempts, &letter.error, value_of(&letter.id));
            session.execute(doing, fail, params).await? == 0
                && is_known(config, session, letter).await?
        }
    };
    if !done {
        let insert = format!(
            "INSERT INTO {} (source_event_id, event_type, payload, error) VALUES (?, ?, ?, ?)",
            config.dead_letter_table.quoted()
        );
        let source = match &letter.id {
            Key::Text(_) => Value::NULL,
            key @ (Key::Int(_) | Key::UInt(_)) => value_of(key),
        };
        let error = match &letter.id {
            Key::Text(id) => format!("event {id}: {}", letter.error),
            Key::Int(_) | Key::UInt(_) => letter.error.clone(),
        };
        let params = (source, &*letter.event_type, &letter.payload, error);
        session.execute(doing, insert, params).await?;
    }
    session.run(doing, "COMMIT").await?;
    Ok(())
}

/// The row was FAILED already or is gone: whether its letter is there too.
async fn is_known(
    config: &Config,
    session: &mut Session,
    letter: &DeadLetter,
) -> Result<bool, MysqlError> {
    let find = format!(
        "SELECT 1 FROM {} WHERE source_event_id = ? LIMIT 1",
        config.dead_letter_table.quoted()
    );
    let found: Vec<(u8,)> = session
        .rows("look for a dead letter", find, (value_of(&letter.id),))
        .await?;
    Ok(!found.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_no_json_is_kept_as_a_string() {
        assert_eq!(as_json(b"{\"a\": 1}"), b"{\"a\": 1}");
        assert_eq!(as_json(b"a\"b"), b"\"a\\\"b\"");
        assert_eq!(as_json(&[0xff]), "\"\u{fffd}\"".as_bytes());
    }
}
