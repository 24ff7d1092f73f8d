//! Events that take effect once, however often they are delivered.
//!
//! The consumer claims the event, makes its business change, commits, and only then acknowledges the message. The claim
//! is the event's row in `inbox_events`: it commits with the change or not at all, so a crash before the commit leaves
//! neither, and one after it leaves both, to be found by the redelivery.
//!
//! ```no_run
//! # async fn example(database: &reliability::mysql::Database) -> Result<(), Box<dyn std::error::Error>> {
//! use reliability::inbox::{self, Claim, Event, InboxError};
//! use reliability::mysql::IsolationLevel::ReadCommitted;
//!
//! let event = Event { id: "invoice:17:sent", kind: "InvoiceSent", payload: r#"{"invoice_id":17}"# };
//! let claim = database
//!     .transaction(ReadCommitted, async |tx| {
//!         let claim = inbox::claim(tx, &event).await?;
//!         if claim == Claim::First {
//!             // …the business change, in the same transaction
//!         }
//!         Ok::<_, InboxError>(claim)
//!     })
//!     .await?;
//! // Committed: acknowledge the message now, first or duplicate.
//! # let _ = claim; Ok(()) }
//! ```

use std::collections::HashSet;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Transaction, Value};
use thiserror::Error;

use crate::field;
use crate::mysql::DUPLICATE_ENTRY;

pub use crate::field::FieldError;

/// Longest event id, in characters.
pub const EVENT_ID_MAX: usize = 255;
/// Longest event type, in characters.
pub const EVENT_TYPE_MAX: usize = 128;
/// Most events of one [`claim_all`]: three parameters each, far below the 65,535 of one statement.
pub const CLAIM_ALL_MAX: usize = 1000;

/// An event as it came from the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// Names the event for good: the producer's idempotency key. 1 to 255 characters.
    pub id: &'a str,
    /// What happened. 1 to 128 characters.
    pub kind: &'a str,
    /// JSON text, kept for the reader of the table.
    pub payload: &'a str,
}

/// Whether an event is new to this consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It is: make the business change, in this transaction.
    First,
    /// It was processed before, and that is committed: do nothing, and acknowledge.
    Duplicate,
}

/// Why an event was not claimed.
#[derive(Debug, Error)]
pub enum InboxError {
    /// A field does not fit its column.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// More events than one statement takes.
    #[error("{count} events at once; at most {CLAIM_ALL_MAX}")]
    TooMany {
        /// How many they were.
        count: usize,
    },
    /// The server or the connection failed.
    #[error("event {id} not claimed")]
    Mysql {
        /// The event, or the first of many.
        id: String,
        /// What happened.
        #[source]
        source: mysql_async::Error,
    },
}

/// Claims an event in the consumer's transaction.
///
/// If another transaction is just claiming the same event, this waits until that one ends.
///
/// # Errors
/// A field does not fit, the payload is not JSON, or the server failed.
pub async fn claim(tx: &mut Transaction<'_>, event: &Event<'_>) -> Result<Claim, InboxError> {
    check(event)?;
    match insert(tx, &[event]).await {
        Ok(()) => Ok(Claim::First),
        Err(source) if is_duplicate(&source) => Ok(Claim::Duplicate),
        Err(source) => Err(failed(event, source)),
    }
}

/// Claims many events in the consumer's transaction, in the order given; an event that occurs twice is a duplicate the
/// second time.
///
/// One statement if all are new, three round trips if some are not. Use `READ COMMITTED`: under `REPEATABLE READ` the
/// snapshot may hide rows that others have committed, and the events are then claimed one by one.
///
/// # Errors
/// A field of one does not fit, a payload is not JSON, there are more than [`CLAIM_ALL_MAX`], or the server failed.
pub async fn claim_all(
    tx: &mut Transaction<'_>,
    events: &[Event<'_>],
) -> Result<Vec<Claim>, InboxError> {
    let Some(head) = events.first() else {
        return Ok(Vec::new());
    };
    if events.len() > CLAIM_ALL_MAX {
        return Err(InboxError::TooMany {
            count: events.len(),
        });
    }
    events.iter().try_for_each(check)?;
    let mut seen = HashSet::new();
    let fresh: Vec<bool> = events.iter().map(|event| seen.insert(event.id)).collect();
    match insert(tx, &chosen(events, &fresh)).await {
        Ok(()) => return Ok(claims(&fresh)),
        Err(source) if is_duplicate(&source) => {}
        Err(source) => return Err(failed(head, source)),
    }
    let known = known(tx, events)
        .await
        .map_err(|source| failed(head, source))?;
    let fresh: Vec<bool> = events
        .iter()
        .zip(fresh)
        .map(|(event, fresh)| fresh && !known.contains(event.id))
        .collect();
    match insert(tx, &chosen(events, &fresh)).await {
        Ok(()) => Ok(claims(&fresh)),
        Err(source) if is_duplicate(&source) => one_by_one(tx, events).await,
        Err(source) => Err(failed(head, source)),
    }
}

/// Another consumer got in between: let each insert decide for itself.
async fn one_by_one(
    tx: &mut Transaction<'_>,
    events: &[Event<'_>],
) -> Result<Vec<Claim>, InboxError> {
    let mut claims = Vec::with_capacity(events.len());
    for event in events {
        claims.push(claim(tx, event).await?);
    }
    Ok(claims)
}

async fn known(
    tx: &mut Transaction<'_>,
    events: &[Event<'_>],
) -> mysql_async::Result<HashSet<String>> {
    let ids = events.iter().map(|event| Value::from(event.id)).collect();
    let marks = vec!["?"; events.len()].join(", ");
    let select = format!("SELECT event_id FROM inbox_events WHERE event_id IN ({marks})");
    Ok(tx
        .exec(select, Params::Positional(ids))
        .await?
        .into_iter()
        .collect())
}

async fn insert(tx: &mut Transaction<'_>, events: &[&Event<'_>]) -> mysql_async::Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let rows = vec!["(?, ?, ?, NOW(6))"; events.len()].join(", ");
    let statement = format!(
        "INSERT INTO inbox_events (event_id, event_type, payload, processed_at) VALUES {rows}"
    );
    let values = events
        .iter()
        .flat_map(|event| [event.id, event.kind, event.payload])
        .map(Value::from)
        .collect();
    tx.exec_drop(statement, Params::Positional(values)).await
}

fn chosen<'a, 'e>(events: &'a [Event<'e>], flags: &[bool]) -> Vec<&'a Event<'e>> {
    events
        .iter()
        .zip(flags)
        .filter(|(_, chosen)| **chosen)
        .map(|(event, _)| event)
        .collect()
}

fn claims(fresh: &[bool]) -> Vec<Claim> {
    fresh
        .iter()
        .map(|fresh| {
            if *fresh {
                Claim::First
            } else {
                Claim::Duplicate
            }
        })
        .collect()
}

fn check(event: &Event<'_>) -> Result<(), InboxError> {
    field::check("event_id", event.id, EVENT_ID_MAX)?;
    field::check("event_type", event.kind, EVENT_TYPE_MAX)?;
    Ok(())
}

/// `inbox_events` has no unique index but the event's id.
fn is_duplicate(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(error) if error.code == DUPLICATE_ENTRY)
}

fn failed(event: &Event<'_>, source: mysql_async::Error) -> InboxError {
    InboxError::Mysql {
        id: event.id.to_owned(),
        source,
    }
}
