//! Events written in the transaction that makes them true.
//!
//! The caller opens the transaction, changes its business rows, inserts the event, and commits. Nothing here commits: a
//! transaction that is rolled back takes its events with it.

use mysql_async::prelude::Queryable as _;
use mysql_async::{ServerError, Transaction};
use serde::Serialize;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::field;
use crate::mysql::DUPLICATE_ENTRY;

pub use crate::field::FieldError;

/// Longest `aggregate_type`, in characters.
pub const AGGREGATE_TYPE_MAX: usize = 64;
/// Longest `event_type`, in characters.
pub const EVENT_TYPE_MAX: usize = 128;
/// Longest `idempotency_key`, in characters.
pub const IDEMPOTENCY_KEY_MAX: usize = 255;

/// The index that makes an idempotency key unique.
const KEY_INDEX: &str = "uq_outbox_idempotency_key";

const INSERT: &str = "INSERT INTO outbox_events \
    (aggregate_type, aggregate_id, event_type, payload, headers, idempotency_key) VALUES (?, ?, ?, ?, ?, ?)";

/// An event to be published once its transaction is committed.
#[derive(Debug, Clone, Copy)]
pub struct NewEvent<'a, P: ?Sized> {
    /// Kind of the aggregate: the first word of the routing key. 1 to 64 characters.
    pub aggregate_type: &'a str,
    /// Which aggregate: events of one are published in the order of their commits.
    pub aggregate_id: i64,
    /// What happened: the second word of the routing key. 1 to 128 characters.
    pub event_type: &'a str,
    /// The body, as JSON.
    pub payload: &'a P,
    /// Headers of the message, `traceparent` for one: texts, numbers and truth values, no nested ones.
    pub headers: Option<&'a Map<String, Value>>,
    /// Names the event for good, for example `invoice:17:sent`. 1 to 255 characters.
    pub idempotency_key: &'a str,
}

/// The id of an outbox row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(pub u64);

/// What [`insert_or_ignore`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// The event is new.
    New(EventId),
    /// An event with that idempotency key is there already; nothing was written.
    Duplicate,
}

/// Why an event was not written.
#[derive(Debug, Error)]
pub enum OutboxError {
    /// A field does not fit its column.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The payload can't be turned into JSON.
    #[error("event {key} not written: its payload is not JSON")]
    Payload {
        /// Idempotency key of the event.
        key: String,
        /// What `serde_json` said.
        #[source]
        source: serde_json::Error,
    },
    /// A header holds an object, an array or null.
    #[error("event not written: header {name} is neither text, number nor truth value")]
    Header {
        /// The header's name.
        name: String,
    },
    /// An event with that key is there already.
    #[error("event not written: its idempotency key {key} is taken")]
    Taken {
        /// The key.
        key: String,
        /// The server's words.
        #[source]
        source: mysql_async::Error,
    },
    /// The server or the connection failed.
    #[error("event {key} not written")]
    Mysql {
        /// Idempotency key of the event.
        key: String,
        /// What happened.
        #[source]
        source: mysql_async::Error,
    },
}

/// Inserts an event into `outbox_events`, in the caller's transaction.
///
/// ```no_run
/// # async fn example(database: &reliability::mysql::Database) -> Result<(), Box<dyn std::error::Error>> {
/// use reliability::mysql::IsolationLevel::ReadCommitted;
/// use reliability::outbox::{self, NewEvent, OutboxError};
///
/// database
///     .transaction(ReadCommitted, async |tx| {
///         // …the business rows, then:
///         let event = NewEvent {
///             aggregate_type: "invoice",
///             aggregate_id: 17,
///             event_type: "InvoiceSent",
///             payload: &serde_json::json!({ "invoice_id": 17 }),
///             headers: None,
///             idempotency_key: "invoice:17:sent",
///         };
///         outbox::insert(tx, &event).await
///     })
///     .await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// A field does not fit, the payload is not JSON, the key is taken, or the server failed. The transaction is still open;
/// what becomes of it is the caller's decision, except after a deadlock, when the server has rolled it back.
pub async fn insert<P: Serialize + ?Sized>(
    tx: &mut Transaction<'_>,
    event: &NewEvent<'_, P>,
) -> Result<EventId, OutboxError> {
    event.check()?;
    let key = || event.idempotency_key.to_owned();
    let payload = serde_json::to_string(event.payload)
        .map_err(|source| OutboxError::Payload { key: key(), source })?;
    let headers = event
        .headers
        .map(|headers| Value::Object(headers.clone()).to_string());
    let row = (
        event.aggregate_type,
        event.aggregate_id,
        event.event_type,
        payload,
        headers,
        event.idempotency_key,
    );
    match tx.exec_drop(INSERT, row).await {
        Ok(()) => Ok(EventId(tx.last_insert_id().unwrap_or_default())),
        Err(mysql_async::Error::Server(error)) if is_taken_key(&error) => Err(OutboxError::Taken {
            key: key(),
            source: error.into(),
        }),
        Err(source) => Err(OutboxError::Mysql { key: key(), source }),
    }
}

/// Like [`insert`], but an event whose idempotency key is there already is not an error.
///
/// For steps that may run twice, compensations for one. Only the duplicate key is forgiven; no text is cut and no other
/// error is hidden, as `INSERT IGNORE` would.
///
/// # Errors
/// A field does not fit, the payload is not JSON, or the server failed.
pub async fn insert_or_ignore<P: Serialize + ?Sized>(
    tx: &mut Transaction<'_>,
    event: &NewEvent<'_, P>,
) -> Result<Inserted, OutboxError> {
    match insert(tx, event).await {
        Ok(id) => Ok(Inserted::New(id)),
        Err(OutboxError::Taken { .. }) => Ok(Inserted::Duplicate),
        Err(error) => Err(error),
    }
}

impl<P: ?Sized> NewEvent<'_, P> {
    fn check(&self) -> Result<(), OutboxError> {
        field::check("aggregate_type", self.aggregate_type, AGGREGATE_TYPE_MAX)?;
        field::check("event_type", self.event_type, EVENT_TYPE_MAX)?;
        field::check("idempotency_key", self.idempotency_key, IDEMPOTENCY_KEY_MAX)?;
        let nested = |value: &Value| value.is_object() || value.is_array() || value.is_null();
        let bad = self
            .headers
            .and_then(|headers| headers.iter().find(|(_, value)| nested(value)));
        match bad {
            Some((name, _)) => Err(OutboxError::Header { name: name.clone() }),
            None => Ok(()),
        }
    }
}

/// A duplicate of the idempotency key, not of another unique index that someone added to the table.
///
/// MySQL 8 names the index `outbox_events.uq_…`, MySQL 5.7 and MariaDB `uq_…`.
fn is_taken_key(error: &ServerError) -> bool {
    error.code == DUPLICATE_ENTRY && error.message.trim_end_matches('\'').ends_with(KEY_INDEX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event<'a>(kind: &'a str, key: &'a str) -> NewEvent<'a, str> {
        NewEvent {
            aggregate_type: "thing",
            aggregate_id: 1,
            event_type: kind,
            payload: "",
            headers: None,
            idempotency_key: key,
        }
    }

    #[test]
    fn an_error_names_the_field() {
        let long = "x".repeat(129);
        let message = event(&long, "k").check().unwrap_err().to_string();
        assert_eq!(
            message,
            "event_type has 129 characters; its column holds 128"
        );
        let message = event("Made", "").check().unwrap_err().to_string();
        assert_eq!(message, "idempotency_key is empty");
    }

    #[test]
    fn headers_are_flat() {
        let Value::Object(headers) = serde_json::json!({"a": "x", "b": 1, "c": [1]}) else {
            unreachable!()
        };
        let error = NewEvent {
            headers: Some(&headers),
            ..event("Made", "k")
        }
        .check()
        .unwrap_err();
        assert!(matches!(error, OutboxError::Header { name } if name == "c"));
    }

    #[test]
    fn only_the_idempotency_key_is_a_taken_key() {
        let error = |code, message: &str| ServerError {
            code,
            message: message.to_owned(),
            state: "23000".to_owned(),
        };
        let taken = |code, message| is_taken_key(&error(code, message));
        assert!(taken(
            1062,
            "Duplicate entry 'a' for key 'outbox_events.uq_outbox_idempotency_key'"
        ));
        assert!(taken(
            1062,
            "Duplicate entry 'a' for key 'uq_outbox_idempotency_key'"
        ));
        assert!(!taken(
            1062,
            "Duplicate entry 'a' for key 'outbox_events.PRIMARY'"
        ));
        assert!(!taken(
            1406,
            "Data too long for column 'uq_outbox_idempotency_key'"
        ));
    }
}
