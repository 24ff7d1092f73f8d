//! The wiring: config → sessions → source, pipeline, ledger; and their restart after an outage.

use std::sync::Arc;

use anyhow::Context as _;
use reliability::resilience::Backoff;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::checkpoint::{self, Checkpoint, CheckpointError};
use crate::config::{Config, Sink};
use crate::health::{Health, Part};
use crate::http::{self, Pages};
use crate::leader::{Leader, Lease};
use crate::ledger::{Fence, Ledger, LedgerError};
use crate::metrics::Metrics;
use crate::mysql::{Remedy, Session};
use crate::pipeline::{Dial, Ended, Links, Pipeline};
use crate::publish::log::LogPublisher;
use crate::publish::rabbitmq::{RabbitMq, RabbitSettings};
use crate::source::binlog::{Reader, Start};
use crate::window::{Limits, Window};

/// Batches between source and pipeline: enough that neither waits for the other's turn, few enough that rows of
/// many megabytes don't pile up.
const SOURCE_QUEUE: usize = 8;
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
    Again { from_snapshot: bool },
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
        let pages = Pages {
            metrics: self.metrics.clone(),
            health: self.health.clone(),
        };
        let serving = http::serve(listener, pages, CancellationToken::new());
        Ok(Some(tokio::spawn(serving)))
    }

    /// One session after another: each begins at the checkpoint, under a lock that is held as long as it can be.
    async fn sessions(&self) -> anyhow::Result<()> {
        let mut leader = None;
        let mut from_snapshot = false;
        let ended = loop {
            let held = match self.take_over(&mut leader).await {
                Ok(held) => held,
                Err(failure) => break Err(failure),
            };
            let (Some(mut checkpoint), Some(lock)) = (held, &leader) else {
                break Ok(());
            };
            if from_snapshot {
                checkpoint.position = None;
            }
            match self.session(checkpoint, lock.lease()).await {
                Ok(Next::Stop) => break Ok(()),
                Ok(Next::Again {
                    from_snapshot: again,
                }) => from_snapshot = again,
                Err(failure) => break Err(failure),
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
    async fn take_over(&self, leader: &mut Option<Leader>) -> anyhow::Result<Option<Checkpoint>> {
        let backoff = Backoff::default();
        let mut attempt = 1;
        loop {
            let failure = tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                taken = self.try_take_over(leader) => match taken {
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
            if leader.is_none() {
                if !self.health.is_standby() {
                    info!("another relay of this name leads; standing by");
                }
                self.health.set_standby(true);
                return Ok(None);
            }
        }
        let mut session = Session::connect(&self.config).await?;
        let checkpoint = checkpoint::take_over(&self.config, &mut session).await?;
        info!(epoch = checkpoint.epoch, "leading");
        self.metrics.leader.set(1);
        self.health.set_standby(false);
        Ok(Some(checkpoint))
    }

    async fn session(&self, checkpoint: Checkpoint, lease: &Lease) -> anyhow::Result<Next> {
        let Checkpoint { epoch, position } = checkpoint;
        let start = match position {
            Some(position) => {
                info!(%position, epoch, "resuming from the checkpoint");
                Start::At(position)
            }
            None => {
                info!(
                    epoch,
                    "no checkpoint to resume from: reading all unpublished rows first"
                );
                Start::Snapshot
            }
        };
        let window = Window::new(self.limits(), start.position());
        let links = self.links(start, epoch, lease);
        let (config, metrics, health) = (
            self.config.clone(),
            self.metrics.clone(),
            self.health.clone(),
        );
        let pipeline = Pipeline::new(config, metrics, health, window);
        match pipeline.run(links).await {
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
                Ok(Next::Again {
                    from_snapshot: false,
                })
            }
            Ok(Ended::SourceFailed(failure)) => {
                let why = format!("{}; {}", crate::error::chain(&failure), failure.hint());
                if failure.remedy() == Remedy::Stop {
                    error!(error = %why, "the source can't go on");
                    anyhow::bail!(why);
                }
                warn!(error = %why, "starting over from the checkpoint");
                self.health.bad(Part::Source, why);
                Ok(Next::Again {
                    from_snapshot: failure.is_gap(),
                })
            }
            Err(failure) => {
                let hint = match &failure {
                    crate::pipeline::PipelineError::Ledger(error) => error.diagnosis().1,
                    crate::pipeline::PipelineError::Broker(error) => error.hint(),
                    crate::pipeline::PipelineError::Task { .. } => "please report this",
                };
                anyhow::bail!("{}; {hint}", crate::error::chain(&failure))
            }
        }
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

    fn links(&self, start: Start, epoch: u64, lease: &Lease) -> Links {
        let (batches, source) = mpsc::channel(SOURCE_QUEUE);
        let reader = Reader::new(
            self.config.clone(),
            self.metrics.clone(),
            self.health.clone(),
            self.stop.clone(),
            batches,
        );
        let (settlements, inbox) = mpsc::channel(1);
        let (outbox, receipts) = mpsc::channel(1);
        let fence = Fence { epoch, claim: None };
        let ledger = Ledger::new(
            self.config.clone(),
            self.metrics.clone(),
            self.health.clone(),
            fence,
        );
        Links {
            source,
            source_task: tokio::spawn(reader.run(start)),
            settlements,
            receipts,
            ledger_task: tokio::spawn(ledger.run(inbox, outbox)),
            dial: dial(&self.config, lease),
            lease: lease.clone(),
            stop: self.stop.clone(),
        }
    }
}

fn dial(config: &Arc<Config>, lease: &Lease) -> Dial {
    match config.sink {
        Sink::Log => Box::new(|| {
            Box::pin(async {
                Ok(Box::new(LogPublisher::default()) as Box<dyn crate::publish::Publisher>)
            })
        }),
        Sink::Rabbitmq => {
            let settings = Arc::new(RabbitSettings::new(config, lease.clone()));
            Box::new(move || {
                let settings = settings.clone();
                Box::pin(async move {
                    let publisher = RabbitMq::connect(&settings).await?;
                    Ok(Box::new(publisher) as Box<dyn crate::publish::Publisher>)
                })
            })
        }
    }
}
