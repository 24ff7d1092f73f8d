//! One session after another: leadership, the checkpoint to begin with, and what comes after a session has ended.

mod wiring;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use reliability::resilience::Backoff;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::checkpoint::{self, Checkpoint, CheckpointError};
use crate::config::Config;
use crate::health::{Health, Part};
use crate::http::{self, Pages};
use crate::leader::Leader;
use crate::ledger::LedgerError;
use crate::metrics::Metrics;
use crate::mysql::{Remedy, Session};
use crate::pipeline::{Ended, Pipeline, PipelineError};
use crate::retention::{Busy, Cleaner};
use crate::source::binlog::{SourceError, Start};
use crate::source::claim::RENEWALS_A_LEASE;
use crate::source::supervisor::{Mode, Supervisor};
use crate::window::{Limits, Window};
use wiring::{Helpers, Wiring};

/// Transactions that may wait behind one that is not settled: about 10 MB of bookkeeping.
const TRANSACTIONS_HELD: usize = 100_000;

/// A relay, ready to run.
pub struct Relay {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    stop: CancellationToken,
}

/// What a session ends with.
enum Next {
    Stop,
    /// Another session, with this from the checkpoint.
    Again(From),
    /// Another session with the other source.
    Switch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Checkpoint,
    Snapshot,
}

impl Relay {
    /// A relay that runs until `stop`.
    ///
    /// # Errors
    /// The metrics can't be set up.
    pub fn new(config: Config, stop: CancellationToken) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::new().context("cannot set up the metrics")?);
        Ok(Self {
            config: Arc::new(config),
            metrics,
            health: Arc::default(),
            stop,
        })
    }

    /// Runs until told to stop, through outages of either server.
    ///
    /// # Errors
    /// What a person has to mend.
    pub async fn run(self) -> anyhow::Result<()> {
        info!(
            name = %self.config.name, version = env!("CARGO_PKG_VERSION"),
            mysql = %self.config.mysql, amqp = %self.config.amqp, table = self.config.table.as_str(),
            exchange = %self.config.exchange, "starting"
        );
        let http = self.serve_http().await?;
        let ended = self.sessions().await;
        if let Some(http) = http {
            http.abort();
        }
        ended
    }

    async fn serve_http(&self) -> anyhow::Result<Option<JoinHandle<()>>> {
        let Some(address) = self.config.http_addr else {
            return Ok(None);
        };
        let listener = http::bind(address).await.with_context(|| {
            format!("cannot serve HTTP on {address}; choose another address with RELAY_HTTP_ADDR")
        })?;
        let pages = Pages::new(
            self.config.clone(),
            self.metrics.clone(),
            self.health.clone(),
        );
        let serving = http::serve(listener, pages, CancellationToken::new());
        Ok(Some(tokio::spawn(serving)))
    }

    /// One session after another: each begins at the checkpoint, under a lock that is held as long as it can be.
    async fn sessions(&self) -> anyhow::Result<()> {
        let mut leader = None;
        let mut from = From::Checkpoint;
        let mut supervisor = Supervisor::new(&self.config);
        let backoff = Backoff::default();
        let mut failures = 0;
        let ended = loop {
            let held = match self.take_over(&mut leader, supervisor.mode()).await {
                Ok(held) => held,
                Err(failure) => break Err(failure),
            };
            let (Some(mut checkpoint), Some(lock)) = (held, &leader) else {
                break Ok(());
            };
            if from == From::Snapshot {
                checkpoint.position = None;
            }
            let done_before = self.work_done();
            match self.session(checkpoint, lock, &mut supervisor).await {
                Ok(Next::Stop) => break Ok(()),
                Ok(Next::Again(next)) => from = next,
                Ok(Next::Switch) => {
                    self.metrics.source_switches.inc();
                    from = From::Checkpoint;
                }
                Err(failure) => break Err(failure),
            }
            // Sessions that fail one after the other and get nothing done must not become a busy loop.
            failures = if self.work_done() > done_before {
                0
            } else {
                failures + 1
            };
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(backoff.delay(failures)) => {}
            }
        };
        if let Some(leader) = leader {
            leader.resign().await;
        }
        self.metrics.leader.set(0);
        if ended.is_ok() {
            info!("stopped");
        }
        ended
    }

    /// Gets the lock and takes the checkpoint over, waiting as long as it takes for MySQL and for another leader;
    /// nothing if told to stop meanwhile.
    async fn take_over(
        &self,
        leader: &mut Option<Leader>,
        mode: Mode,
    ) -> anyhow::Result<Option<Checkpoint>> {
        let backoff = Backoff::default();
        let mut attempt = 1;
        loop {
            let failure = tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                taken = self.try_take_over(leader, mode) => match taken {
                    Ok(Some(checkpoint)) => return Ok(Some(checkpoint)),
                    Ok(None) => continue,
                    Err(failure) => LedgerError::Checkpoint(failure),
                },
            };
            let (remedy, hint) = failure.diagnosis();
            let why = format!("{}; {hint}", crate::error::chain(&failure));
            if remedy == Remedy::Stop {
                anyhow::bail!(why);
            }
            warn!(error = %why, attempt, "waiting for MySQL");
            self.health.set_standby(false);
            self.health.bad(Part::Source, why);
            attempt += 1;
            tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(backoff.delay(attempt)) => {}
            }
        }
    }

    /// Nothing if another relay of this name leads.
    async fn try_take_over(
        &self,
        leader: &mut Option<Leader>,
        mode: Mode,
    ) -> Result<Option<Checkpoint>, CheckpointError> {
        if leader
            .as_ref()
            .is_none_or(|leader| !leader.lease().stands())
        {
            if let Some(lost) = leader.take() {
                lost.resign().await;
            }
            self.metrics.leader.set(0);
            *leader = Leader::try_acquire(&self.config).await?;
        }
        let Some(leader) = leader else {
            if !self.health.is_standby() {
                info!("another relay of this name leads; standing by");
            }
            self.health.set_standby(true);
            return Ok(None);
        };
        let config = leader.config();
        let mut session = Session::connect(config).await?;
        let mut checkpoint = checkpoint::take_over(config, &mut session).await?;
        if mode == Mode::Poll && checkpoint.position.is_some() {
            // Polling moves no checkpoint: whoever tails the binlog after it has to begin with the table.
            checkpoint::save(config, &mut session, checkpoint.epoch, None).await?;
            checkpoint.position = None;
        }
        info!(epoch = checkpoint.epoch, server = %session.server_name(), "leading");
        self.metrics.leader.set(1);
        self.health.set_standby(false);
        Ok(Some(checkpoint))
    }

    async fn session(
        &self,
        checkpoint: Checkpoint,
        leader: &Leader,
        supervisor: &mut Supervisor,
    ) -> anyhow::Result<Next> {
        let Checkpoint { epoch, position } = checkpoint;
        let mode = supervisor.mode();
        self.metrics.show_mode(mode.name());
        self.health
            .set_source(format!("{}: {}", mode.name(), supervisor.why()));
        let start = position.map_or(Start::Snapshot, Start::At);
        match (mode, &start) {
            (Mode::Binlog, Start::At(position)) => {
                info!(%position, epoch, "resuming from the checkpoint");
            }
            (Mode::Binlog, Start::Snapshot) => info!(
                epoch,
                "no checkpoint to resume from: reading all unpublished rows first"
            ),
            (Mode::Poll, _) => info!(epoch, why = supervisor.why(), "polling the outbox table"),
        }
        let window = Window::new(self.limits(), start.position());
        let source_stop = self.stop.child_token();
        let mut helpers = Helpers::default();
        let wiring = Wiring {
            config: leader.config(),
            metrics: &self.metrics,
            health: &self.health,
            stop: &self.stop,
            source_stop: &source_stop,
            lease: leader.lease(),
            epoch,
        };
        let (links, renewal) = match mode {
            Mode::Binlog => (wiring.binlog(start, &mut helpers), None),
            Mode::Poll => {
                let links = wiring.poll(supervisor.pause(), &mut helpers);
                (links, Some(self.config.claim_lease / RENEWALS_A_LEASE))
            }
        };
        let (config, metrics, health) = (
            leader.config().clone(),
            self.metrics.clone(),
            self.health.clone(),
        );
        let pipeline = Pipeline::new(config, metrics, health, window, renewal);
        let cleaning = self.cleaner(leader.config()).start(&self.stop);
        let ended = pipeline.run(links).await;
        drop((helpers, cleaning));
        self.judge(ended, supervisor)
    }

    /// What comes after a pipeline that has ended so.
    fn judge(
        &self,
        ended: Result<Ended, PipelineError>,
        supervisor: &mut Supervisor,
    ) -> anyhow::Result<Next> {
        match ended {
            Ok(Ended::Stopped) if !self.stop.is_cancelled() => {
                supervisor.recovered(Instant::now());
                Ok(Next::Switch)
            }
            Ok(Ended::Stopped) => Ok(Next::Stop),
            Ok(Ended::Undrained(events)) => {
                warn!(
                    events,
                    "shutdown_timeout is over; these events are published again on the next start"
                );
                Ok(Next::Stop)
            }
            Ok(Ended::LeaseOver) => {
                warn!(
                    "the lease is over: nothing more was published; what was in flight is published again"
                );
                Ok(Next::Again(From::Checkpoint))
            }
            Ok(Ended::SourceFailed(failure)) => self.source_failed(&failure, supervisor),
            Err(failure) => {
                let hint = match &failure {
                    PipelineError::Ledger(error) => error.diagnosis().1,
                    PipelineError::Broker(error) => error.hint(),
                    PipelineError::Task { .. } => "please report this",
                };
                anyhow::bail!("{}; {hint}", crate::error::chain(&failure))
            }
        }
    }

    fn source_failed(
        &self,
        failure: &SourceError,
        supervisor: &mut Supervisor,
    ) -> anyhow::Result<Next> {
        let why = format!("{}; {}", crate::error::chain(failure), failure.hint());
        if supervisor.failed(failure, Instant::now()) {
            warn!(error = %why, "the binlog can't be read: polling the outbox table until it can");
            return Ok(Next::Switch);
        }
        if failure.remedy() == Remedy::Stop {
            error!(error = %why, "the source can't go on");
            anyhow::bail!(why);
        }
        warn!(error = %why, "starting over from the checkpoint");
        self.health.bad(Part::Source, why);
        Ok(Next::Again(if failure.is_gap() {
            From::Snapshot
        } else {
            From::Checkpoint
        }))
    }

    /// Cleans up while the window is less than half full.
    fn cleaner(&self, config: &Arc<Config>) -> Cleaner {
        let metrics = self.metrics.clone();
        let half = i64::try_from(self.config.window / 2).unwrap_or(i64::MAX);
        let busy: Busy = Arc::new(move || metrics.window.get() > half);
        Cleaner::new(config.clone(), self.metrics.clone(), busy)
    }

    /// Grows with whatever a session gets done.
    fn work_done(&self) -> u64 {
        self.metrics.confirmed.get() + self.metrics.transactions.get()
    }

    fn limits(&self) -> Limits {
        Limits {
            events: self.config.window,
            bytes: self.config.window_bytes,
            transactions: TRANSACTIONS_HELD,
            ordering: self.config.ordering,
            max_attempts: self.config.max_attempts,
            backoff: Backoff::default(),
        }
    }
}
