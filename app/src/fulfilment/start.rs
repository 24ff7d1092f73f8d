//! From an order to its saga, and the workers of both.

use std::time::Duration;

use anyhow::{Context as _, Result};
use mysql_async::Transaction;
use reliability::commands::{
    self, BoxError, Command, CommandError, Enqueued, Handler, NewCommand, Queue,
};
use reliability::mysql::Database;
use reliability::resilience::Backoff;
use reliability::saga::{self, Engine, Policy};
use tokio_util::sync::CancellationToken;

use super::provider::Provider;
use crate::cli::ProviderSettings;
use crate::metrics::External;

use super::{Order, SAGA, correlation_id, steps};

/// The command that starts the saga of an order.
const START: &str = "StartOrderSaga";
/// Longest delay between two attempts of a step.
const STEP_CAP: Duration = Duration::from_secs(10);
/// Longest delay until a failed compensation is tried again.
const STUCK_CAP: Duration = Duration::from_secs(600);

/// How the workers of the saga behave.
#[derive(Debug, Clone)]
pub(crate) struct SagaSettings {
    /// How long a saga or a command stays with a worker that says nothing more.
    pub(crate) lease: Duration,
    /// Longest time between two looks for work.
    pub(crate) poll_interval: Duration,
    /// Attempts of a step, and of its undo.
    pub(crate) attempts: u32,
    /// First delay between attempts.
    pub(crate) retry: Duration,
    /// First delay until a failed compensation is tried again.
    pub(crate) recover: Duration,
    /// Sagas worked on at once.
    pub(crate) concurrency: usize,
}

/// Asks for the saga of an order, in the caller's transaction; once, however often it is asked.
pub(crate) async fn enqueue(
    tx: &mut Transaction<'_>,
    order: &Order,
) -> Result<Enqueued, CommandError> {
    let key = format!("{}:start", correlation_id(order.order_id));
    commands::enqueue(tx, &NewCommand::new(START, order).key(&key)).await
}

/// Starts and runs the sagas of orders. Clones share everything.
#[derive(Clone)]
pub(crate) struct Fulfilment {
    queue: Queue,
    engine: Engine,
}

impl Fulfilment {
    /// Workers on that database, with these providers.
    pub(crate) fn new(
        database: &Database,
        settings: &SagaSettings,
        providers: &ProviderSettings,
        external: &External,
    ) -> Result<Self> {
        let payment = Provider::payment(providers, external)?;
        let shipping = Provider::shipping(providers, external)?;
        let worker = format!("app:{}", std::process::id());
        let policy = Policy {
            attempts: settings.attempts,
            undo_attempts: settings.attempts,
            // A call may wait for its turn, and then for its answer: those bounds come first, and say more.
            timeout: 2 * providers.timeout + Duration::from_secs(2),
            backoff: Backoff::new(settings.retry, STEP_CAP.max(settings.retry)),
        };
        let definition = steps::definition(&policy, payment, shipping)
            .context("the saga of orders is not valid")?;
        let engine = Engine::new(
            database.clone(),
            vec![definition],
            saga::Settings {
                worker: worker.clone(),
                lease: settings.lease,
                concurrency: settings.concurrency,
                poll_interval: settings.poll_interval,
                stuck_backoff: Backoff::new(settings.recover, STUCK_CAP.max(settings.recover)),
                ..saga::Settings::default()
            },
        )
        .context("the saga of orders is not valid")?;
        let queue = Queue::new(
            database.clone(),
            commands::Settings {
                worker,
                lease: settings.lease,
                poll_interval: settings.poll_interval,
                ..commands::Settings::default()
            },
        );
        Ok(Self { queue, engine })
    }

    /// What the sagas' engine did so far.
    pub(crate) fn sagas(&self) -> saga::Counters {
        self.engine.counters()
    }

    /// What the commands' workers did so far.
    pub(crate) fn commands(&self) -> commands::Counters {
        self.queue.counters()
    }

    /// Orders were asked for, and that is committed.
    pub(crate) fn wake(&self) {
        self.queue.wake();
    }

    /// Runs until `stop`, and then what is in hand.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        let start = Start {
            engine: self.engine.clone(),
        };
        tokio::join!(
            self.queue.run(stop.clone(), start),
            self.engine.run(stop.clone())
        );
    }
}

/// Starts sagas.
struct Start {
    engine: Engine,
}

impl Handler for Start {
    async fn handle(&self, tx: &mut Transaction<'_>, command: &Command) -> Result<(), BoxError> {
        if command.command_type != START {
            return Err(
                format!("no worker here knows the command {}", command.command_type).into(),
            );
        }
        let order: Order = command.payload()?;
        saga::start(tx, SAGA, &correlation_id(order.order_id), &order).await?;
        Ok(())
    }

    fn committed(&self, _command: &Command) {
        self.engine.wake();
    }
}
