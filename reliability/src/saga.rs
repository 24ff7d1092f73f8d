//! Long work in steps, each of which can be undone, carried on by any worker after a crash.
//!
//! ```text
//!                     ┌ call ┐ ┌ record ┐
//!  start ─▶ RUNNING ─▶ step 1 ─▶ step 2 ─▶ pivot ─▶ step 4 ─▶ COMPLETED
//!              │ refused, or attempts used up      (no way back: retried without end)
//!              ▼
//!        COMPENSATING ─▶ undo 2 ─▶ undo 1 ─▶ COMPENSATED
//!              │ attempts used up        ▲
//!              ▼                         │ slow retries, or by hand
//!        COMPENSATION_FAILED ────────────┘
//! ```
//!
//! **The guarantee.** A saga that was started ends COMPLETED, with every step done, or COMPENSATED, with every step undone
//! that was done, whatever crashes: provided that remote calls are idempotent by their key, and refused after their undo.
//! COMPENSATION_FAILED is not an end: it is retried for as long as it takes, and an alert is due meanwhile.
//!
//! - A step has up to four parts, see [`Step`]. Its mark RUNNING is committed before its call, and its mark COMPLETED
//!   *together* with its record: there is no moment at which one is there without the other.
//! - A failure is refused, technical or unknown, see [`FailureKind`]. An unknown outcome is neither done nor failed: the
//!   call is repeated with the same key, and undone if the saga compensates.
//! - A saga belongs to one worker at a time, under a lease with an epoch that rises with each take-over. Every transaction
//!   asks for the epoch before it commits, so that what a paused worker writes late is rolled back, business rows and all.
//! - A saga whose type or version is not known here, or whose payload can't be read, is left alone, counted and logged.
//!
//! # Example
//!
//! ```no_run
//! use reliability::mysql::IsolationLevel::ReadCommitted;
//! use reliability::mysql::Database;
//! use reliability::saga::{self, Context, Definition, Engine, Failure, Kind, Policy, Settings, Step};
//! use serde_json::{Value, json};
//! use tokio_util::sync::CancellationToken;
//!
//! const TRIP: Kind<String> = Kind::new("trip", 1);
//!
//! struct Flight;
//!
//! impl Step<String> for Flight {
//!     async fn call(&self, cx: &Context<'_, String>) -> Result<Value, Failure> {
//!         // …ask the airline, with cx.key() as its idempotency key
//!         Ok(json!({ "seat": "12A", "to": cx.payload() }))
//!     }
//!
//!     async fn undo_call(&self, cx: &Context<'_, String>) -> Result<(), Failure> {
//!         // …cancel what cx.do_key() has booked, or will try to book
//!         Ok(())
//!     }
//! }
//!
//! async fn example(database: Database) -> Result<(), Box<dyn std::error::Error>> {
//!     let trip = Definition::of(TRIP).step("flight", Policy::default(), Flight).build()?;
//!     let engine = Engine::new(database.clone(), vec![trip], Settings::default())?;
//!     let stop = CancellationToken::new();
//!     let worker = tokio::spawn({
//!         let (engine, stop) = (engine.clone(), stop.clone());
//!         async move { engine.run(stop).await }
//!     });
//!     database
//!         .transaction(ReadCommitted, async |tx| {
//!             // …the business rows, then:
//!             saga::start(tx, TRIP, "trip:17", &"Lisbon".to_owned()).await
//!         })
//!         .await?;
//!     engine.wake();
//!     stop.cancel();
//!     Ok(worker.await?)
//! }
//! ```

mod definition;
mod drive;
mod engine;
mod erased;
mod failure;
mod inspect;
mod machine;
mod status;
mod step;
mod store;

use std::fmt;
use std::marker::PhantomData;

use mysql_async::prelude::Queryable as _;
use mysql_async::{ServerError, Transaction};
use serde::Serialize;
use thiserror::Error;
use uuid::Uuid;

use crate::field;
use crate::mysql::{ConnectError, DUPLICATE_ENTRY, TransactionError};

pub use crate::field::FieldError;
pub use definition::{Builder, Definition, DefinitionError, Policy};
pub use drive::Driven;
pub use engine::{Counters, Engine, Settings};
pub use failure::{Failure, FailureKind};
pub use inspect::{History, Overview, Retried, StepHistory, Summary, list, overview, retry, show};
pub(crate) use machine::End;
pub use status::{SagaStatus, StepStatus};
pub use step::{Context, Ending, Hooks, Step};

/// Longest type of a saga, in characters.
pub const SAGA_TYPE_MAX: usize = 128;
/// Longest correlation id, in characters.
pub const CORRELATION_ID_MAX: usize = 255;
/// Longest name of a step, in characters.
pub const STEP_NAME_MAX: usize = 128;

/// The index that makes a saga unique.
const UNIQUE_INDEX: &str = "uq_saga_correlation";

/// Names a kind of saga, its version, and, in its type, what such a saga is started with.
///
/// ```
/// use reliability::saga::Kind;
///
/// const TRIP: Kind<String> = Kind::new("trip", 2);
/// assert_eq!(TRIP.to_string(), "trip version 2");
/// ```
pub struct Kind<P> {
    saga_type: &'static str,
    version: u32,
    payload: PhantomData<fn(P)>,
}

impl<P> Kind<P> {
    /// A kind of saga. The type has 1 to 128 characters.
    #[must_use]
    pub const fn new(saga_type: &'static str, version: u32) -> Self {
        Self {
            saga_type,
            version,
            payload: PhantomData,
        }
    }

    /// The type.
    #[must_use]
    pub const fn saga_type(&self) -> &'static str {
        self.saga_type
    }

    /// The version of the definition.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }
}

impl<P> Clone for Kind<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Kind<P> {}

impl<P> fmt::Debug for Kind<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<P> fmt::Display for Kind<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} version {}", self.saga_type, self.version)
    }
}

/// What [`start`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The saga.
    pub id: String,
    /// Whether this call has made it. If not, it is as it was, with the payload of the first call.
    pub is_new: bool,
}

/// Why something was not done with sagas.
#[derive(Debug, Error)]
pub enum SagaError {
    /// A field does not fit its column.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The payload can't be turned into JSON.
    #[error("saga {saga_type} not started: its payload is not JSON")]
    Payload {
        /// The type.
        saga_type: String,
        /// What `serde_json` said.
        #[source]
        source: serde_json::Error,
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
    #[error("cannot claim sagas")]
    Claim(#[source] Box<TransactionError<mysql_async::Error>>),
}

/// Starts a saga, in the caller's transaction: there is one if, and only if, that is committed. Then call
/// [`Engine::wake`], or let the workers find it.
///
/// One saga a type and correlation id: the second call gives the first one's.
///
/// ```no_run
/// # async fn example(tx: &mut mysql_async::Transaction<'_>) -> Result<(), reliability::saga::SagaError> {
/// use reliability::saga::{Kind, start};
///
/// const TRIP: Kind<String> = Kind::new("trip", 1);
/// let first = start(tx, TRIP, "trip:17", &"Lisbon".to_owned()).await?;
/// let again = start(tx, TRIP, "trip:17", &"Lisbon".to_owned()).await?;
/// assert_eq!((first.id == again.id, again.is_new), (true, false));
/// # Ok(()) }
/// ```
///
/// # Errors
/// A field does not fit, the payload is not JSON, or the server failed. The transaction is still open, except after a
/// deadlock.
pub async fn start<P: Serialize>(
    tx: &mut Transaction<'_>,
    kind: Kind<P>,
    correlation_id: &str,
    payload: &P,
) -> Result<Started, SagaError> {
    field::check("saga_type", kind.saga_type, SAGA_TYPE_MAX)?;
    field::check("correlation_id", correlation_id, CORRELATION_ID_MAX)?;
    let payload = serde_json::to_string(payload).map_err(|source| SagaError::Payload {
        saga_type: kind.saga_type.to_owned(),
        source,
    })?;
    let failed = |source| SagaError::Mysql {
        doing: "start a saga",
        source,
    };
    // Of the time-ordered kind: rows are added at the end of the table.
    let id = Uuid::now_v7().to_string();
    let written = tx
        .exec_drop(
            "INSERT INTO saga_instances (id, saga_type, definition_version, correlation_id, payload, next_attempt_at) \
             VALUES (?, ?, ?, ?, ?, NOW(6))",
            (&id, kind.saga_type, kind.version, correlation_id, payload),
        )
        .await;
    match written {
        Ok(()) => return Ok(Started { id, is_new: true }),
        Err(source) if !is_taken(&source) => return Err(failed(source)),
        Err(_) => {}
    }
    // A locking read, for the snapshot of this transaction may be older than the other saga.
    let other: Option<String> = tx
        .exec_first(
            "SELECT id FROM saga_instances WHERE saga_type = ? AND correlation_id = ? LOCK IN SHARE MODE",
            (kind.saga_type, correlation_id),
        )
        .await
        .map_err(failed)?;
    // Who deleted it in between has undone it, too.
    let gone = || failed(mysql_async::DriverError::ConnectionClosed.into());
    let id = other.ok_or_else(gone)?;
    Ok(Started { id, is_new: false })
}

fn is_taken(error: &mysql_async::Error) -> bool {
    matches!(
        error,
        mysql_async::Error::Server(ServerError { code, message, .. })
            if *code == DUPLICATE_ENTRY && message.contains(UNIQUE_INDEX)
    )
}
