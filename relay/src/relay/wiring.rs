//! What one session is made of: source, ledger and broker, and the channels between them and the pipeline.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Sink};
use crate::health::Health;
use crate::leader::Lease;
use crate::ledger::{Claim, Fence, Ledger};
use crate::metrics::Metrics;
use crate::pipeline::{Dial, Links};
use crate::publish::log::LogPublisher;
use crate::publish::rabbitmq::{RabbitMq, RabbitSettings};
use crate::source::Batch;
use crate::source::binlog::{Reader, SourceError, Start};
use crate::source::claim;
use crate::source::poll::Poller;
use crate::source::supervisor;
use crate::source::sweep::{self, Sweep, Sweeper};

/// Batches between source and pipeline: enough that neither waits for the other's turn, few enough that rows of
/// many megabytes don't pile up.
const SOURCE_QUEUE: usize = 8;

/// One session's tasks beside the pipeline's own, which end with it.
#[derive(Default)]
pub(super) struct Helpers(Vec<JoinHandle<()>>);

impl Helpers {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.push(tokio::spawn(task));
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// What a session is wired from.
pub(super) struct Wiring<'a> {
    /// Pinned to the server that holds the lock.
    pub(super) config: &'a Arc<Config>,
    pub(super) metrics: &'a Arc<Metrics>,
    pub(super) health: &'a Arc<Health>,
    /// Ends the relay.
    pub(super) stop: &'a CancellationToken,
    /// Ends the source alone.
    pub(super) source_stop: &'a CancellationToken,
    pub(super) lease: &'a Lease,
    pub(super) epoch: u64,
}

impl Wiring<'_> {
    /// The binlog, and a sweeper beside it where rows can be swept.
    pub(super) fn binlog(&self, start: Start, helpers: &mut Helpers) -> Links {
        let (batches, source) = mpsc::channel(SOURCE_QUEUE);
        let reader = Reader::new(
            self.config.clone(),
            self.metrics.clone(),
            self.health.clone(),
            self.source_stop.clone(),
            batches,
        );
        let sweeps = sweep::can_sweep(self.config).then(|| {
            let (asks, sweeps) = mpsc::channel(1);
            let sweeper = Sweeper::new(self.config.clone(), self.metrics.clone(), asks);
            helpers.spawn(sweeper.run());
            sweeps
        });
        let fence = Fence {
            epoch: self.epoch,
            claim: None,
        };
        self.links(source, tokio::spawn(reader.run(start)), sweeps, fence)
    }

    /// Polling, and after that pause, if there is one, looks at the binlog.
    pub(super) fn poll(&self, pause: Option<Duration>, helpers: &mut Helpers) -> Links {
        if let Some(pause) = pause {
            let (config, polling) = (self.config.clone(), self.source_stop.clone());
            helpers.spawn(async move { supervisor::watch(&config, pause, polling).await });
        }
        // One batch: what waits in the channel is leased and not yet in anybody's hands.
        let (batches, source) = mpsc::channel(1);
        let claim = Claim {
            token: claim::token(&self.config.name, self.epoch),
            lease: self.config.claim_lease,
        };
        let poller = Poller::new(
            self.config.clone(),
            self.metrics.clone(),
            self.health.clone(),
            self.source_stop.clone(),
            batches,
            claim.clone(),
        );
        let fence = Fence {
            epoch: self.epoch,
            claim: Some(claim),
        };
        self.links(source, tokio::spawn(poller.run()), None, fence)
    }

    fn links(
        &self,
        source: mpsc::Receiver<Batch>,
        source_task: JoinHandle<Result<(), SourceError>>,
        sweeps: Option<mpsc::Receiver<Sweep>>,
        fence: Fence,
    ) -> Links {
        let (settlements, inbox) = mpsc::channel(1);
        let (outbox, receipts) = mpsc::channel(1);
        let ledger = Ledger::new(
            self.config.clone(),
            self.metrics.clone(),
            self.health.clone(),
            fence,
        );
        Links {
            source,
            source_task,
            sweeps,
            settlements,
            receipts,
            ledger_task: tokio::spawn(ledger.run(inbox, outbox)),
            dial: dial(self.config, self.lease),
            lease: self.lease.clone(),
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
