//! The binlog source: connection, heartbeat, resume.
//!
//! [`Reader`] keeps a stream alive and hands its events to [`Tail`](tail::Tail), which turns them into items. A lost
//! stream is opened again where the tail stands, in the middle of a transaction too; only what that can't mend ends
//! the source.

pub mod decode;
mod failure;
pub mod jsonb;
mod overlap;
mod rivalry;
mod stream;
mod tail;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use reliability::resilience::Backoff;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::select::Select;
use super::snapshot::{Snapshot, finds_only_unpublished};
use super::{Batch, Item};
use crate::catalogue;
use crate::config::Config;
use crate::health::{Health, Part};
use crate::metrics::Metrics;
use crate::mysql::{Server, Session};
use crate::position::{Position, Step};
use overlap::Overlap;
use rivalry::Rivalry;
use stream::Stream;
use tail::Tail;

pub use failure::SourceError;

/// Events a batch at the most; it also goes when the stream has nothing more at hand.
const BATCH_EVENTS: usize = 256;
/// Bytes a batch before it goes.
const BATCH_BYTES: usize = 256 << 10;
/// Before a new session after a panic: what panics each time must not do so in a busy loop.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// Where to begin.
#[derive(Debug, Clone)]
pub enum Start {
    /// Behind a checkpoint.
    At(Position),
    /// With all unpublished rows.
    Snapshot,
}

impl Start {
    /// What is dealt with before the first item.
    pub fn position(&self) -> Position {
        match self {
            Start::At(position) => position.clone(),
            // Nothing is, until the snapshot ends with a position of its own.
            Start::Snapshot => Position::File {
                file: "".into(),
                offset: 0,
            },
        }
    }
}

/// Opens the binlog at its end and reads what the server says first: whether it can be tailed.
///
/// # Errors
/// Why not.
pub async fn probe(config: &Config) -> Result<(), SourceError> {
    let mut session = Session::connect(config).await?;
    let server = Server::inspect(&mut session).await?;
    let head = server
        .head(&mut session)
        .await?
        .map_err(SourceError::Unfit)?;
    let mut stream = Stream::open(config, &mut Tail::new(config, head)).await?;
    stream.next().await.map(drop)
}

/// Reads the binlog for as long as it is told to.
pub struct Reader {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    stop: CancellationToken,
    batches: mpsc::Sender<Batch>,
}

impl Reader {
    /// A reader that hands its batches there.
    pub fn new(
        config: Arc<Config>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
        stop: CancellationToken,
        batches: mpsc::Sender<Batch>,
    ) -> Self {
        Self {
            config,
            metrics,
            health,
            stop,
            batches,
        }
    }

    /// Runs until told to stop, at the end of a transaction.
    ///
    /// # Errors
    /// What connecting again can't mend.
    pub async fn run(self, start: Start) -> Result<(), SourceError> {
        // Where a panic left the tail is not known: the error leads to a new session, from the checkpoint.
        let panicked = match guarded(Box::pin(self.read(start))).await {
            Ok(outcome) => return outcome,
            Err(panicked) => panicked,
        };
        self.metrics.source_up.set(0);
        self.health.bad(Part::Source, panicked.to_string());
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(PANIC_PAUSE) => {}
        }
        Err(panicked)
    }

    async fn read(&self, start: Start) -> Result<(), SourceError> {
        let (mut tail, mut overlap) = match start {
            Start::At(position) => (Tail::new(&self.config, position), None),
            Start::Snapshot => {
                let stop = self.stop.clone();
                let snapshot = tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    snapshot = self.snapshot() => snapshot?,
                };
                let Some(snapshot) = snapshot else {
                    return Ok(());
                };
                (
                    Tail::new(&self.config, snapshot.start.clone()),
                    Overlap::after(snapshot),
                )
            }
        };
        let backoff = Backoff::default();
        let mut attempt = 1;
        let mut rivalry = Rivalry::default();
        loop {
            let before = tail.position().clone();
            let opened = Instant::now();
            let Err(failure) = self.tail(&mut tail, &mut overlap).await else {
                return Ok(());
            };
            self.metrics.source_up.set(0);
            if !failure.is_mended_by_reconnecting() {
                return Err(failure);
            }
            // A stream that brought a transaction was good: start counting anew.
            attempt = if *tail.position() != before {
                2
            } else {
                attempt + 1
            };
            let why = format!("{}; {}", crate::error::chain(&failure), failure.hint());
            let pause = if let SourceError::Displaced { .. } = failure {
                let pause = rivalry.pause(opened.elapsed());
                error!(
                    error = %why, wait_ms = pause.as_millis(),
                    "two replicas with one server id end each other's streams; waiting, so that the other can work"
                );
                pause
            } else {
                warn!(error = %why, attempt, "reading the binlog is interrupted; connecting again");
                backoff.delay(attempt)
            };
            self.health.bad(Part::Source, why);
            self.metrics.reconnects.inc();
            tail.interrupted();
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Reads one stream until it breaks (an error) or the relay stops.
    async fn tail(
        &self,
        tail: &mut Tail,
        overlap: &mut Option<Overlap>,
    ) -> Result<(), SourceError> {
        let opened = tokio::select! {
            () = self.stop.cancelled() => return Ok(()),
            opened = Stream::open(&self.config, tail) => opened?,
        };
        let mut stream = opened;
        info!(position = %tail.position(), "reading the binlog");
        self.health.good(Part::Source);
        self.metrics.source_up.set(1);
        let mut batch = Batch::new();
        let outcome = self.turn(&mut stream, tail, overlap, &mut batch).await;
        // What was read before the stream broke is good.
        self.send(&mut batch).await?;
        outcome
    }

    async fn turn(
        &self,
        stream: &mut Stream,
        tail: &mut Tail,
        overlap: &mut Option<Overlap>,
        batch: &mut Batch,
    ) -> Result<(), SourceError> {
        let mut bytes = 0;
        loop {
            let event = match stream.at_hand()? {
                Some(event) => event,
                None => {
                    self.send(batch).await?;
                    bytes = 0;
                    tokio::select! {
                        () = self.stop.cancelled(), if tail.between_transactions() => return Ok(()),
                        event = stream.next() => event?,
                    }
                }
            };
            let size = event.header().event_size() as usize;
            self.metrics.binlog_bytes.inc_by(size as u64);
            bytes += size;
            let from = batch.len();
            if tail.needs_catalogue(&event) {
                let mut session = Session::connect(&self.config).await?;
                tail.set_catalogue(catalogue::catalogue(&self.config, &mut session).await?);
            }
            tail.feed(&event, batch)?;
            if let Some(open) = overlap {
                let left_out = open.filter(tail, batch, from).await?;
                self.metrics.overlap.inc_by(left_out);
                if open.is_past(tail) {
                    *overlap = None;
                }
            }
            let commits = batch
                .iter()
                .skip(from)
                .filter(|item| matches!(item, Item::Commit { .. }));
            self.metrics.transactions.inc_by(commits.count() as u64);
            if batch.len() >= BATCH_EVENTS || bytes >= BATCH_BYTES {
                self.send(batch).await?;
                bytes = 0;
                if self.stop.is_cancelled() && tail.between_transactions() {
                    return Ok(());
                }
            }
        }
    }

    /// Reads all unpublished rows. Nothing if nobody takes them any more.
    async fn snapshot(&self) -> Result<Option<Snapshot>, SourceError> {
        let mut session = Session::connect(&self.config).await?;
        let server = Server::inspect(&mut session).await?;
        server
            .fitness(&mut session)
            .await?
            .map_err(SourceError::Unfit)?;
        let catalogue = catalogue::catalogue(&self.config, &mut session).await?;
        let select = Select::new(&self.config, &catalogue).map_err(|missing| {
            let table = tail::table_name(&self.config);
            let why = missing.to_string();
            SourceError::Table { table, why }
        })?;
        let has_status = catalogue.bookkeeping(&self.config.columns).status;
        if !finds_only_unpublished(&self.config) || !has_status {
            warn!(
                "rows are not marked, so published ones can't be told from unpublished ones: every row of the table is published"
            );
        }
        let opened = Snapshot::open(&self.config, &server, session, select, has_status).await?;
        let mut snapshot = opened.map_err(SourceError::Unfit)?;
        self.metrics.snapshots.inc();
        self.health.good(Part::Source);
        let mut rows = 0;
        loop {
            let page = snapshot.page().await.map_err(SourceError::SnapshotLost)?;
            if page.is_empty() {
                break;
            }
            rows += page.len();
            info!(rows, "publishing rows that were there before");
            let batch = page.into_iter().map(Item::Event).collect();
            if self.batches.send(batch).await.is_err() {
                return Ok(None);
            }
        }
        let step = Step::Reset(Box::new(snapshot.start.clone()));
        let commit = Item::Commit {
            step,
            noteworthy: true,
        };
        if self.batches.send(vec![commit]).await.is_err() {
            return Ok(None);
        }
        info!(rows, position = %snapshot.start, "all unpublished rows are read; going on with the binlog");
        Ok(Some(snapshot))
    }

    async fn send(&self, batch: &mut Batch) -> Result<(), SourceError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.batches
            .send(std::mem::take(batch))
            .await
            .map_err(|_| SourceError::NoTaker)
    }
}

/// What a future gives, or that it panicked.
async fn guarded<T>(future: impl Future<Output = T>) -> Result<T, SourceError> {
    let guarded = AssertUnwindSafe(future).catch_unwind().await;
    guarded.map_err(|panic| SourceError::panicked(&*panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mysql::Remedy;

    #[tokio::test]
    async fn a_panic_becomes_an_error_that_may_pass() {
        let text = "what the driver says";
        for (future, word) in [
            (async { panic!("{text}") }.boxed(), text),
            (async { panic!("plain") }.boxed(), "plain"),
            (async { std::panic::panic_any(7_u8) }.boxed(), "no message"),
        ] {
            let error = guarded::<()>(future).await.unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert_eq!(error.remedy(), Remedy::Retry);
            assert!(!error.is_gap());
        }
        assert_eq!(guarded(async { 5 }).await.ok(), Some(5));
    }
}
