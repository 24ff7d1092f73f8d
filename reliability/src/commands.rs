//! Work that is written together with its cause, and done later by any of many workers.
//!
//! A command is [`enqueue`]d in the caller's transaction: it exists if, and only if, that is committed. A worker claims it
//! under a lease, and [`Queue::run`] lets the handler make its changes in the *same* transaction that sets the command
//! DONE: a crash leaves both or neither. A command whose worker died is due again when the lease is over, and what a slow
//! worker does after that is rolled back, since its token is no longer the command's.
//!
//! ```no_run
//! # async fn example(database: reliability::mysql::Database) -> Result<(), Box<dyn std::error::Error>> {
//! use mysql_async::Transaction;
//! use mysql_async::prelude::Queryable as _;
//! use reliability::commands::{self, BoxError, Command, Handler, NewCommand, Queue, Settings};
//! use reliability::mysql::IsolationLevel::ReadCommitted;
//! use tokio_util::sync::CancellationToken;
//!
//! struct CloseBooks;
//!
//! impl Handler for CloseBooks {
//!     async fn handle(&self, tx: &mut Transaction<'_>, command: &Command) -> Result<(), BoxError> {
//!         let year: u32 = command.payload()?;
//!         tx.exec_drop("UPDATE books SET open = 0 WHERE year = ?", (year,)).await?;
//!         Ok(())
//!     }
//! }
//!
//! database
//!     .transaction(ReadCommitted, async |tx| {
//!         // …the business rows, then:
//!         commands::enqueue(tx, &NewCommand::new("CloseBooks", &2026).key("close:2026")).await
//!     })
//!     .await?;
//! let stop = CancellationToken::new();
//! Queue::new(database, Settings::default()).run(stop, CloseBooks).await;
//! # Ok(()) }
//! ```

mod queue;
mod run;

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{ServerError, Transaction};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::field;
use crate::mysql::{ConnectError, DUPLICATE_ENTRY, TransactionError};

pub use crate::field::FieldError;
pub use queue::{Failed, Queue, Settings};
pub use run::{BoxError, Counters, Handler};

/// Longest `command_type`, in characters.
pub const COMMAND_TYPE_MAX: usize = 128;
/// Longest `command_key`, in characters.
pub const COMMAND_KEY_MAX: usize = 255;

/// The index that makes a command key unique.
const KEY_INDEX: &str = "uq_command_key";

/// A command to be done once its transaction is committed.
#[derive(Debug, Clone, Copy)]
pub struct NewCommand<'a, P: ?Sized> {
    command_type: &'a str,
    payload: &'a P,
    key: Option<&'a str>,
    delay: Duration,
}

impl<'a, P: Serialize + ?Sized> NewCommand<'a, P> {
    /// What to do (1 to 128 characters), and what the handler has to know, as JSON. Due at once; never a duplicate.
    pub const fn new(command_type: &'a str, payload: &'a P) -> Self {
        Self {
            command_type,
            payload,
            key: None,
            delay: Duration::ZERO,
        }
    }

    /// Names the command for good: a second one with that key is not written. 1 to 255 characters.
    #[must_use]
    pub const fn key(self, key: &'a str) -> Self {
        Self {
            key: Some(key),
            ..self
        }
    }

    /// Not before that time from now.
    #[must_use]
    pub const fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }
}

/// What [`enqueue`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// The command is new; its id.
    New(u64),
    /// A command with that key is there already, done or not; nothing was written.
    Duplicate,
}

/// A command under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Its row.
    pub id: u64,
    /// What to do.
    pub command_type: String,
    /// The key it was enqueued with.
    pub key: Option<String>,
    /// Which attempt this is, from 1. One whose worker died counts.
    pub attempt: u32,
    json: String,
    token: String,
}

impl Command {
    /// What it was enqueued with.
    ///
    /// # Errors
    /// The payload is no `P`.
    pub fn payload<P: DeserializeOwned>(&self) -> Result<P, CommandError> {
        serde_json::from_str(&self.json).map_err(|source| CommandError::Payload {
            command: self.command_type.clone(),
            source,
        })
    }

    /// The payload as it is stored.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.json
    }
}

/// Why something was not done with a command.
#[derive(Debug, Error)]
pub enum CommandError {
    /// A field does not fit its column.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The payload can't be turned into JSON, or back.
    #[error("the payload of command {command} can't be converted")]
    Payload {
        /// Its type.
        command: String,
        /// What `serde_json` said.
        #[source]
        source: serde_json::Error,
    },
    /// The lease is over and another worker has the command, or it is done: roll back.
    #[error("command {id} belongs to another worker by now: its lease was over")]
    Lost {
        /// The command.
        id: u64,
    },
    /// There was no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server or the connection failed.
    #[error("cannot {doing}")]
    Mysql {
        /// What was tried.
        doing: &'static str,
        /// What happened.
        #[source]
        source: mysql_async::Error,
    },
    /// The transaction of a claim failed.
    #[error("cannot claim commands")]
    Claim(#[source] Box<TransactionError<mysql_async::Error>>),
}

/// Writes a command, in the caller's transaction.
///
/// ```no_run
/// # async fn example(tx: &mut mysql_async::Transaction<'_>) -> Result<(), reliability::commands::CommandError> {
/// use reliability::commands::{Enqueued, NewCommand, enqueue};
///
/// let remind = NewCommand::new("Remind", "the gardener").delay(std::time::Duration::from_secs(3600));
/// assert!(matches!(enqueue(tx, &remind).await?, Enqueued::New(_)));
/// # Ok(()) }
/// ```
///
/// # Errors
/// A field does not fit, the payload is not JSON, or the server failed. The transaction is still open, except after a
/// deadlock.
pub async fn enqueue<P: Serialize + ?Sized>(
    tx: &mut Transaction<'_>,
    command: &NewCommand<'_, P>,
) -> Result<Enqueued, CommandError> {
    field::check("command_type", command.command_type, COMMAND_TYPE_MAX)?;
    if let Some(key) = command.key {
        field::check("command_key", key, COMMAND_KEY_MAX)?;
    }
    let payload =
        serde_json::to_string(command.payload).map_err(|source| CommandError::Payload {
            command: command.command_type.to_owned(),
            source,
        })?;
    let written = tx
        .exec_drop(
            "INSERT INTO command_queue (command_type, payload, command_key, available_at) \
             VALUES (?, ?, ?, NOW(6) + INTERVAL ? MICROSECOND)",
            (
                command.command_type,
                payload,
                command.key,
                micros(command.delay),
            ),
        )
        .await;
    match written {
        Ok(()) => Ok(Enqueued::New(tx.last_insert_id().unwrap_or_default())),
        Err(source) if is_taken(&source) => Ok(Enqueued::Duplicate),
        Err(source) => Err(CommandError::Mysql {
            doing: "enqueue a command",
            source,
        }),
    }
}

fn is_taken(error: &mysql_async::Error) -> bool {
    matches!(
        error,
        mysql_async::Error::Server(ServerError { code, message, .. })
            if *code == DUPLICATE_ENTRY && message.contains(KEY_INDEX)
    )
}

/// For `INTERVAL ? MICROSECOND`; a thousand years at most, within what a DATETIME holds.
pub(crate) fn micros(time: Duration) -> u64 {
    const THOUSAND_YEARS: u64 = 1000 * 365 * 24 * 3600 * 1_000_000;
    u64::try_from(time.as_micros()).map_or(THOUSAND_YEARS, |micros| micros.min(THOUSAND_YEARS))
}
