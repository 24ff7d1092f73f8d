//! Dead letters: events that were given up, with the reason, in a table of their own.

mod list;
mod replay;
mod stored;

use mysql_async::{Params, Value};
use tracing::debug;

use crate::config::{Config, Mark};
use crate::event::{Key, OutboxEvent};
use crate::mysql::{MysqlError, Session};
use crate::table::{Table, value_of};
use stored::Form;

pub use list::{Filter, FullLetter, Ids, Letter, Listing, MOST_LETTERS, list, show};
pub use replay::{Clerk, Done, Refusal};

/// Bytes of a payload that any server takes: `max_allowed_packet` is 1 MiB or more unless somebody made it less, and a JSON
/// string has up to six bytes for one.
const SMALL: usize = 64 << 10;

/// An event that was given up.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// Primary key of its outbox row.
    pub id: Key,
    /// Kind of event.
    pub event_type: Box<str>,
    /// As the row has it: JSON, or what takes its place.
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
            payload: event.payload.clone(),
            error,
            attempts,
        }
    }
}

/// Notes a failure on the row. The row is PENDING then, and keeps its lease: it is tried again by who holds it.
///
/// # Errors
/// MySQL said no.
pub async fn note_failure(
    table: &Table,
    session: &mut Session,
    id: &Key,
    attempts: u32,
    error: &str,
    token: Option<&str>,
) -> Result<(), MysqlError> {
    if table.mark == Mark::None || !table.kept.status {
        return Ok(());
    }
    let (failure, mut values) = table.failure(attempts, error);
    let (name, status) = (&table.name, &table.status);
    let fence = if token.is_some() {
        "AND locked_by = ? "
    } else {
        ""
    };
    let update = format!(
        "UPDATE {name} SET {status} = 'PENDING'{failure} \
         WHERE {status} IN ('PENDING', 'PROCESSING') {fence}AND {} = ?",
        table.id
    );
    values.extend(token.map(Value::from));
    values.push(value_of(id));
    session
        .execute("note a failed attempt", update, Params::Positional(values))
        .await?;
    Ok(())
}

/// Writes the dead letter and sets its row FAILED, in one transaction. Doing it again adds no second letter. Under
/// `token`, if there is one, a row that is leased by somebody else is left to them, and no letter is written.
///
/// # Errors
/// MySQL said no; the transaction is then rolled back with its session.
pub async fn bury(
    config: &Config,
    table: &Table,
    session: &mut Session,
    letter: &DeadLetter,
    token: Option<&str>,
) -> Result<(), MysqlError> {
    let doing = "write a dead letter";
    session.run(doing, "START TRANSACTION").await?;
    let written = bury_in_transaction(config, table, session, letter, token).await;
    let end = if written.is_ok() {
        "COMMIT"
    } else {
        // A lock wait ends its statement alone: what was done before it must not be committed by the next START.
        "ROLLBACK"
    };
    let ended = session.run(doing, end).await;
    written?;
    ended?;
    Ok(())
}

async fn bury_in_transaction(
    config: &Config,
    table: &Table,
    session: &mut Session,
    letter: &DeadLetter,
    token: Option<&str>,
) -> Result<(), MysqlError> {
    let failed = match table.mark {
        Mark::Update | Mark::Delete if table.kept.status => {
            fail_row(table, session, letter, token).await?
        }
        Mark::Update | Mark::Delete | Mark::None => false,
    };
    if failed || (token.is_none() && !is_known(config, session, letter).await?) {
        write(config, session, letter).await?;
    }
    Ok(())
}

/// Inserts the letter with as much of its payload as the server takes.
async fn write(
    config: &Config,
    session: &mut Session,
    letter: &DeadLetter,
) -> Result<(), MysqlError> {
    let insert = format!(
        "INSERT INTO {} (source_event_id, source_event_key, event_type, payload, error, attempts) \
         VALUES (?, ?, ?, ?, ?, ?)",
        config.dead_letter_table.quoted()
    );
    let number = match &letter.id {
        key @ (Key::Int(_) | Key::UInt(_)) => value_of(key),
        Key::Uuid(_) | Key::Text(_) => Value::NULL,
    };
    let key = letter.id.to_string();
    let room = room(session, letter).await?;
    let mut form = Form::first(&letter.payload, room);
    loop {
        let params = (
            &number,
            stored::key(&key),
            stored::event_type(&letter.event_type),
            form.of(&letter.payload),
            stored::error(&letter.error),
            letter.attempts,
        );
        let written = session
            .execute("write a dead letter", insert.as_str(), params)
            .await;
        let Err(error) = written else {
            return Ok(());
        };
        // A refused statement leaves the transaction as it was.
        form = match form.next(&letter.payload, room) {
            Some(next) if stored::is_refusal(error.code()) => next,
            Some(_) | None => return Err(error),
        };
        debug!(event = %letter.id, error = %crate::error::chain(&error), ?form, "a dead letter is stored in another form");
    }
}

/// Bytes of the payload that the server takes; asked only where it matters.
async fn room(session: &mut Session, letter: &DeadLetter) -> Result<usize, MysqlError> {
    if letter.payload.len() < SMALL {
        return Ok(usize::MAX);
    }
    let select = "SELECT @@session.max_allowed_packet";
    let found: Option<(u64,)> = session.first("ask for max_allowed_packet", select).await?;
    Ok(found.map_or(SMALL, |(bytes,)| stored::room(bytes)))
}

/// Sets the row FAILED; whether it was not so before.
async fn fail_row(
    table: &Table,
    session: &mut Session,
    letter: &DeadLetter,
    token: Option<&str>,
) -> Result<bool, MysqlError> {
    let (failure, mut values) = table.failure(letter.attempts, &letter.error);
    let (name, status, unlocked) = (&table.name, &table.status, table.unlocked());
    let fence = if token.is_some() {
        "AND locked_by = ? "
    } else {
        ""
    };
    let fail = format!(
        "UPDATE {name} SET {status} = 'FAILED'{failure}{unlocked} \
         WHERE {status} <> 'FAILED' {fence}AND {} = ?",
        table.id
    );
    values.extend(token.map(Value::from));
    values.push(value_of(&letter.id));
    let params = Params::Positional(values);
    Ok(session.execute("set a row FAILED", fail, params).await? > 0)
}

/// Whether its letter is there: the row was FAILED already, is gone, or is not marked at all.
async fn is_known(
    config: &Config,
    session: &mut Session,
    letter: &DeadLetter,
) -> Result<bool, MysqlError> {
    let find = format!(
        "SELECT 1 FROM {} WHERE source_event_key = ? LIMIT 1",
        config.dead_letter_table.quoted()
    );
    let found: Vec<(u8,)> = session
        .rows(
            "look for a dead letter",
            find,
            (stored::key(&letter.id.to_string()),),
        )
        .await?;
    Ok(!found.is_empty())
}
