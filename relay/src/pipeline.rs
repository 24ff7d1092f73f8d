//! The one loop that sees every stage: source → window → broker → ledger.
//!
//! Its priorities, in this order: stop, lease, ledger, broker, timers, intake. Intake comes last, so a full window, a
//! broker that is gone or marks that lag stop the reading of the binlog rather than fill the memory.

mod broker;
mod circuit;
mod missing;
mod outcomes;
mod settling;
mod sweeping;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::Config;
use crate::health::Health;
use crate::leader::Lease;
use crate::ledger::{LedgerError, Receipt, Settlement};
use crate::metrics::Metrics;
use crate::publish::{PublishError, Signal};
use crate::route::Router;
use crate::source::binlog::SourceError;
use crate::source::sweep::Sweep;
use crate::source::{Batch, Item};
use crate::window::{Slot, Window};
use broker::{Broker, Change};
use missing::Missing;
use settling::Settling;
use sweeping::{SweepWait, next_sweep};

pub use broker::{Dial, Dialing};

/// Encoded and unwritten bytes above which nothing more is published: a few socket buffers, so that the socket
/// never runs dry and a stalled one holds little.
const OUTPUT_BOUND: usize = 1 << 20;
/// Part of the shutdown timeout that confirms may take; the rest is for the last marks and checkpoint.
const DRAIN_SHARE: f64 = 0.8;

/// The ends of the pipeline.
pub struct Links {
    /// What the source reads.
    pub source: mpsc::Receiver<Batch>,
    /// The source's task.
    pub source_task: JoinHandle<Result<(), SourceError>>,
    /// What the sweeper asks, where there is one.
    pub sweeps: Option<mpsc::Receiver<Sweep>>,
    /// To the ledger, one settlement at a time.
    pub settlements: mpsc::Sender<Arc<Settlement>>,
    /// From the ledger.
    pub receipts: mpsc::Receiver<Receipt>,
    /// The ledger's task.
    pub ledger_task: JoinHandle<Result<(), LedgerError>>,
    /// Makes connections to the broker.
    pub dial: Dial,
    /// Leave to publish.
    pub lease: Lease,
    /// Ends the relay. The source ends by itself at the next end of a transaction.
    pub stop: CancellationToken,
}

/// How a pipeline ends that has not failed.
#[derive(Debug)]
pub enum Ended {
    /// Told to, and drained.
    Stopped,
    /// Told to, and not drained in time: that many events are undecided and will be published again.
    Undrained(usize),
    /// Another relay of this name may lead: nothing more was published or written.
    LeaseOver,
    /// The source gave up; everything it had read is confirmed and checkpointed.
    SourceFailed(SourceError),
}

/// Why a pipeline fails.
#[derive(Debug, Error)]
pub enum PipelineError {
    /// Marks and checkpoints can't be written.
    #[error("marks and checkpoints can't be written")]
    Ledger(#[source] LedgerError),
    /// The broker refuses this relay.
    #[error(transparent)]
    Broker(PublishError),
    /// A task broke down: a fault in the relay.
    #[error("the {task} task broke down")]
    Task {
        /// Which.
        task: &'static str,
        /// How.
        #[source]
        source: tokio::task::JoinError,
    },
}

enum Phase {
    Active,
    /// No more intake once the source has ended; until `deadline`, if there is one.
    Draining {
        deadline: Option<Instant>,
    },
}

/// The state of the loop.
pub struct Pipeline {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    window: Window,
    router: Router,
    broker: Broker,
    signals: Vec<Signal>,
    missing: Missing,
    settling: Settling,
    sweep: Option<SweepWait>,
    phase: Phase,
    /// The source's last word, once its channel has closed.
    source_end: Option<Result<(), SourceError>>,
}

impl Pipeline {
    /// A pipeline around an empty window, which renews the leases of what it holds that often.
    pub fn new(
        config: Arc<Config>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
        window: Window,
        renewal_interval: Option<Duration>,
    ) -> Self {
        let router = Router::new(&config);
        Self {
            broker: Broker::new(metrics.clone(), health),
            settling: Settling::new(&config, renewal_interval),
            config,
            metrics,
            window,
            router,
            signals: Vec::new(),
            missing: Missing::default(),
            sweep: None,
            phase: Phase::Active,
            source_end: None,
        }
    }

    /// Runs until told to stop, or until the source ends.
    ///
    /// # Errors
    /// What no retry mends.
    pub async fn run(mut self, mut links: Links) -> Result<Ended, PipelineError> {
        let mut ended = self.turn_until_end(&mut links).await;
        if !links.lease.stands() && !matches!(ended, Ok(Ended::Stopped)) {
            // Whatever else failed, failed because another relay may lead.
            ended = Ok(Ended::LeaseOver);
        }
        links.source_task.abort();
        links.ledger_task.abort();
        if links.lease.stands() {
            self.broker.close().await;
        }
        self.metrics.in_flight.set(0);
        ended
    }

    async fn turn_until_end(&mut self, links: &mut Links) -> Result<Ended, PipelineError> {
        loop {
            let now = Instant::now();
            if !links.lease.stands() {
                return Ok(Ended::LeaseOver);
            }
            self.publish(now);
            let draining = self.draining();
            self.settling
                .hand_over(&mut self.window, &links.settlements, draining, now);
            self.answer_sweeper();
            if let Some(ended) = self.ended(now) {
                return Ok(ended);
            }
            self.show();
            let wake = self.next_deadline(now);
            let room = self.window.has_room() && self.settling.has_room();
            let intake = self.source_end.is_none() && room;
            tokio::select! {
                biased;
                () = links.stop.cancelled(), if matches!(self.phase, Phase::Active | Phase::Draining { deadline: None }) => {
                    info!(events = self.window.len(), "stopping: waiting for confirms");
                    let deadline = Some(now + self.config.shutdown_timeout);
                    self.phase = Phase::Draining { deadline };
                }
                () = links.lease.over() => return Ok(Ended::LeaseOver),
                receipt = links.receipts.recv() => match receipt {
                    Some(receipt) => self.settled(&receipt),
                    None => return Err(ledger_failure(&mut links.ledger_task).await),
                },
                change = self.broker.change(&links.dial, &mut self.signals) => self.broker_changed(change)?,
                () = tokio::time::sleep_until(wake.into()) => {}
                sweep = next_sweep(&mut links.sweeps), if intake => self.swept(sweep),
                batch = links.source.recv(), if intake => match batch {
                    Some(batch) => self.take_in(batch),
                    None => {
                        let end = (&mut links.source_task).await;
                        self.source_end = Some(end.map_err(|source| PipelineError::Task { task: "source", source })?);
                        if matches!(self.phase, Phase::Active) {
                            self.phase = Phase::Draining { deadline: None };
                        }
                    }
                },
            }
        }
    }

    fn take_in(&mut self, batch: Batch) {
        for item in batch {
            match item {
                Item::Event(event) => self.window.push_event(event),
                Item::Commit { step, noteworthy } => self.window.push_commit(step, noteworthy),
            }
        }
    }

    fn publish(&mut self, now: Instant) {
        while self.broker.takes(OUTPUT_BOUND) {
            let Some(slot) = self.window.next_ready(now) else {
                break;
            };
            let Some(event) = self.window.event(slot) else {
                continue;
            };
            let publication = match self.router.publication(event) {
                Ok(publication) => publication,
                Err(error) => {
                    self.doom(slot, error.to_string());
                    continue;
                }
            };
            if let Some(words) = self.missing.words(&publication.exchange, now) {
                let why = words.to_owned();
                if let Some(verdict) = self.window.failed_unsent(slot, now) {
                    self.decided(verdict, why);
                }
                continue;
            }
            match self.broker.publish(&publication) {
                Ok(tag) => {
                    self.window.sent(slot, tag, now);
                    self.metrics.published.inc();
                    self.metrics.publish_attempts.inc();
                }
                Err(refused) => self.doom(slot, crate::error::chain(&refused)),
            }
        }
        let wait = self.config.confirm_timeout;
        let since = self
            .window
            .oldest_sent()
            .map(|sent| self.broker.clock_start(sent));
        if since.is_some_and(|since| now.saturating_duration_since(since) >= wait) {
            let why = format!("no confirm within {wait:?}; check the broker's load and its queues");
            self.broker_lost(&why);
        }
    }

    /// Gives up an event that can never be published.
    fn doom(&mut self, slot: Slot, why: String) {
        let attempts = self.window.doom(slot);
        self.bury(slot, attempts, why);
    }

    fn broker_changed(&mut self, change: Change) -> Result<(), PipelineError> {
        match change {
            Change::Connected | Change::Waited => Ok(()),
            Change::Refused(error) => Err(PipelineError::Broker(error)),
            Change::Lost(PublishError::PublicationRefused { code, text })
                if self.refused(code, &text) =>
            {
                Ok(())
            }
            Change::Lost(error) => {
                self.broker_lost(&format!(
                    "{}; {}",
                    crate::error::chain(&error),
                    error.hint()
                ));
                Ok(())
            }
            Change::Signals => {
                let now = Instant::now();
                for signal in std::mem::take(&mut self.signals) {
                    match signal {
                        Signal::Settled { tag, outcome } => self.landed(tag, outcome, now),
                        Signal::Blocked { reason } => self.broker.blocked(&reason),
                        Signal::Unblocked => self.broker.unblocked(now),
                    }
                }
                Ok(())
            }
        }
    }

    fn broker_lost(&mut self, why: &str) {
        warn!(error = %why, undecided = self.window.in_flight(), "the broker connection is lost; connecting again");
        self.metrics.reconnects.inc();
        self.broker.lost(why);
        self.window.disconnected();
        self.signals.clear();
    }

    fn settled(&mut self, receipt: &Receipt) {
        self.settling.settled();
        for slot in &receipt.buried {
            self.window.buried(*slot);
            self.metrics.dead_letters.inc();
        }
        self.metrics.marks.inc_by(receipt.marks);
        if receipt.checkpoint {
            self.metrics.checkpoint_writes.inc();
            self.metrics.checkpoint_time.set(micros_now() / 1_000_000);
        }
    }

    fn draining(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. })
    }

    fn ended(&mut self, now: Instant) -> Option<Ended> {
        let Phase::Draining { deadline } = self.phase else {
            return None;
        };
        let drained = self.source_end.is_some() && self.window.is_empty();
        let written = self.settling.is_written() && !self.window.has_progress();
        if drained && written {
            return Some(match self.source_end.take() {
                Some(Err(error)) if deadline.is_none() => Ended::SourceFailed(error),
                Some(_) | None => Ended::Stopped,
            });
        }
        let deadline = deadline?;
        let share = self.config.shutdown_timeout.mul_f64(1.0 - DRAIN_SHARE);
        let enough = now + share >= deadline && written;
        (enough || now >= deadline).then(|| Ended::Undrained(self.window.len()))
    }

    fn next_deadline(&self, now: Instant) -> Instant {
        let confirm = self
            .window
            .oldest_sent()
            .map(|sent| self.broker.clock_start(sent) + self.config.confirm_timeout);
        let ledger = self.settling.next_due(&self.window, self.draining(), now);
        let drain = match self.phase {
            Phase::Draining {
                deadline: Some(deadline),
            } => {
                let share = self.config.shutdown_timeout.mul_f64(1.0 - DRAIN_SHARE);
                let soft = deadline.checked_sub(share).unwrap_or(deadline);
                Some(if soft > now { soft } else { deadline })
            }
            Phase::Draining { deadline: None } | Phase::Active => None,
        };
        let far = now + Duration::from_secs(60);
        [self.window.next_retry(), confirm, ledger, drain]
            .into_iter()
            .flatten()
            .fold(far, Instant::min)
    }

    fn show(&self) {
        self.metrics
            .in_flight
            .set(i64::try_from(self.broker.in_flight()).unwrap_or(i64::MAX));
        self.metrics
            .window
            .set(i64::try_from(self.window.len()).unwrap_or(i64::MAX));
    }
}

async fn ledger_failure(task: &mut JoinHandle<Result<(), LedgerError>>) -> PipelineError {
    match task.await {
        Ok(Err(error)) => PipelineError::Ledger(error),
        Ok(Ok(())) => PipelineError::Ledger(LedgerError::Checkpoint(
            crate::checkpoint::CheckpointError::Fenced {
                name: String::new(),
                epoch: 0,
            },
        )),
        Err(source) => PipelineError::Task {
            task: "ledger",
            source,
        },
    }
}

fn micros_now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
