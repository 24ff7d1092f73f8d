//! Messages → one transaction.

use std::sync::Arc;
use std::time::SystemTime;

use lapin::message::Delivery;
use mysql_async::Transaction;
use mysql_async::prelude::Queryable as _;
use reliability::commands::CommandError;
use reliability::inbox::{self, Claim, Event, InboxError};
use reliability::mysql::IsolationLevel::ReadCommitted;
use reliability::mysql::{Database, TransactionError, server_error};
use reliability::resilience::Backoff;
use thiserror::Error;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::message::{self, Incoming, Poison};
use crate::fulfilment::{self, Fulfilment};
use crate::metrics::Metrics;
use crate::telemetry::chain;

/// Records messages in MySQL, each event once, and what they ask for with them.
pub(crate) struct Recorder {
    database: Database,
    fulfilment: Fulfilment,
    metrics: Arc<Metrics>,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recorded {
    /// It is committed: acknowledge it.
    Committed,
    /// A stop came while MySQL was away: leave it to the broker.
    Stopped,
    /// MySQL takes neither a message nor a dead letter in its place: leave it to the broker.
    Refused,
}

/// The variable that every error about a statement's size names: the driver's own, which has no type or code, and the
/// server's 1105, 1153 and 1301. RabbitMQ takes messages of 16 MiB; a server may be set to less.
const TOO_LARGE: &str = "max_allowed_packet";

/// A message, read or not.
type Entry = Result<Incoming, Box<Poison>>;
type Failure = TransactionError<RecordError>;

#[derive(Debug, Error)]
enum RecordError {
    #[error("cannot record events")]
    Inbox(#[from] InboxError),
    #[error("cannot ask for the saga of an order")]
    Command(#[from] CommandError),
    #[error("cannot write a dead letter")]
    DeadLetter(#[source] mysql_async::Error),
}

impl Recorder {
    /// In that database.
    pub(crate) fn new(database: Database, fulfilment: Fulfilment, metrics: Arc<Metrics>) -> Self {
        Self {
            database,
            fulfilment,
            metrics,
        }
    }

    /// Records a batch; waits for MySQL as long as it takes.
    pub(super) async fn record(&self, batch: Vec<Delivery>, stop: &CancellationToken) -> Recorded {
        self.metrics
            .received
            .inc_by(u64::try_from(batch.len()).unwrap_or_default());
        let entries: Vec<Entry> = batch.iter().map(message::read).collect();
        match self.persist(entries.clone(), stop).await {
            Ok(recorded) => return recorded,
            Err(failure) => {
                warn!(error = %chain(&failure), "MySQL refuses a batch; recording its messages one by one");
            }
        }
        for (delivery, entry) in batch.iter().zip(entries) {
            let refused = match self.persist(vec![entry], stop).await {
                Ok(Recorded::Committed) => continue,
                Ok(other) => return other,
                Err(failure) => failure,
            };
            let poison = message::poison(delivery, &chain(&refused));
            match self.persist(vec![Err(Box::new(poison))], stop).await {
                Ok(Recorded::Committed) => {}
                Ok(other) => return other,
                // A dead letter is plain text in JSON; there is nothing left to try but the broker's redelivery.
                Err(failure) => {
                    error!(error = %chain(&failure), "MySQL refuses a dead letter; the message stays in the queue");
                    return Recorded::Refused;
                }
            }
        }
        Recorded::Committed
    }

    /// One transaction, tried until it is committed; an error if MySQL refuses what is in it.
    async fn persist(
        &self,
        entries: Vec<Entry>,
        stop: &CancellationToken,
    ) -> Result<Recorded, Failure> {
        let backoff = Backoff::default();
        let entries: Arc<[Entry]> = entries.into();
        let mut attempt = 1;
        loop {
            let shared = entries.clone();
            let body = async move |tx: &mut Transaction<'_>| write(tx, &shared).await;
            let failure = match self.database.transaction(ReadCommitted, body).await {
                Ok(claims) => {
                    self.count(&entries, &claims);
                    return Ok(Recorded::Committed);
                }
                Err(failure) if is_refusal(&failure) => return Err(failure),
                Err(failure) => failure,
            };
            error!(error = %chain(&failure), messages = entries.len(), "events not recorded; trying again");
            attempt += 1;
            tokio::select! {
                () = stop.cancelled() => return Ok(Recorded::Stopped),
                () = sleep(backoff.delay(attempt)) => {}
            }
        }
    }

    fn count(&self, entries: &[Entry], claims: &[Claim]) {
        let now = SystemTime::now();
        let mut claims = claims.iter();
        for entry in entries {
            match (entry, entry.is_ok().then(|| claims.next()).flatten()) {
                (Ok(event), Some(Claim::First)) => {
                    self.metrics.processed.inc();
                    if event.order.is_some() {
                        self.fulfilment.wake();
                    }
                    if let Some(created) = event.created_at {
                        // Clocks may differ: an event is never from the future.
                        let latency = now.duration_since(created).unwrap_or_default();
                        self.metrics.event_seconds.observe(latency.as_secs_f64());
                    }
                }
                (Ok(_), Some(Claim::Duplicate) | None) => self.metrics.duplicate.inc(),
                (Err(poison), _) => {
                    self.metrics.poison.inc();
                    // No `error` here: it may quote the body.
                    error!(
                        kind = poison.kind,
                        event_id = poison.source_event_id,
                        "message can't be read or recorded; it is in dead_letter_events, with the reason"
                    );
                }
            }
        }
    }
}

/// Claims the events, writes the commands that they ask for, and the dead letters of a batch.
async fn write(tx: &mut Transaction<'_>, entries: &[Entry]) -> Result<Vec<Claim>, RecordError> {
    let events: Vec<Event<'_>> = entries
        .iter()
        .flatten()
        .map(|event| Event {
            id: &event.id,
            kind: &event.kind,
            payload: &event.payload,
        })
        .collect();
    let claims = inbox::claim_all(tx, &events).await?;
    for (entry, claim) in entries.iter().flatten().zip(&claims) {
        if let (Some(order), Claim::First) = (&entry.order, claim) {
            fulfilment::enqueue(tx, order).await?;
        }
    }
    for poison in entries.iter().filter_map(|entry| entry.as_ref().err()) {
        tx.exec_drop(
            "INSERT INTO dead_letter_events (source_event_id, event_type, payload, error) VALUES (?, ?, ?, ?)",
            (poison.source_event_id, &poison.kind, &poison.payload, &poison.error),
        )
        .await
        .map_err(RecordError::DeadLetter)?;
    }
    Ok(claims)
}

/// Whether MySQL refuses the data itself: SQLSTATE classes 22 (data exception) and 23 (constraint violation), or a
/// statement that is too large.
///
/// JSON nested too deep is one: MySQL takes 100 levels, MariaDB 32, and a message may have more.
fn is_refusal(failure: &Failure) -> bool {
    match failure {
        TransactionError::Body(
            RecordError::Inbox(InboxError::Field(_)) | RecordError::Command(CommandError::Field(_)),
        ) => true,
        TransactionError::Body(error) => {
            server_error(error)
                .is_some_and(|error| error.state.starts_with("22") || error.state.starts_with("23"))
                || chain(error).contains(TOO_LARGE)
        }
        TransactionError::Connect(_)
        | TransactionError::Begin(_)
        | TransactionError::Contended { .. }
        | TransactionError::Refused { .. }
        | TransactionError::Timeout { .. }
        | TransactionError::Ended
        | TransactionError::CommitUnknown { .. } => false,
    }
}
