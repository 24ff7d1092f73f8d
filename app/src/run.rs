//! The wiring: a checked command → runtime, connections, servers → exit code.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use reliability::idempotency::{self, Idempotency};
use reliability::mysql::{Database, MysqlUrl, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cli::{
    Action, BrokerSettings, Command, MysqlSettings, ProviderSettings, SagaAction, StockAction,
};
use crate::fulfilment::{Fulfilment, SagaSettings};
use crate::http::Readiness;
use crate::metrics::Metrics;
use crate::worker::Worker;
use crate::{api, cli, http, load, migrate, providers, sagas, stock, telemetry};

/// How often expired idempotency keys are looked for.
const CLEAN: Duration = Duration::from_secs(60);
/// Longest transaction.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How often sagas are counted for the metrics.
const COUNT: Duration = Duration::from_secs(5);
/// Longest wait for connections to close at the end.
const CLOSE: Duration = Duration::from_secs(5);

/// Runs a command to its end.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    let filter = match telemetry::filter(&command.log) {
        Ok(filter) => filter,
        Err(message) => {
            cli::wrong(message).print().context("cannot print")?;
            return Ok(ExitCode::from(2));
        }
    };
    telemetry::start(filter, command.log_format)?;
    // The TLS of both servers' clients; an error means that one is installed already.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(act(command.action))
}

async fn act(action: Action) -> Result<ExitCode> {
    let stop = stop_signal()?;
    match action {
        Action::Api { mysql, http } => {
            let scene = Scene::new(&mysql)?;
            scene
                .serve(api::router, http, "APP_HTTP_ADDR", Arc::default(), stop)
                .await?;
            scene.close().await;
        }
        Action::Worker {
            mysql,
            broker,
            providers,
            saga,
            http,
        } => {
            let scene = Scene::for_sagas(&mysql, saga.lease)?;
            let fulfilment = scene.fulfilment(&saga, &providers)?;
            let page = (
                http::router as fn(http::Shared) -> axum::Router,
                http,
                "APP_WORKER_HTTP_ADDR",
            );
            scene.work(broker, fulfilment, page, stop).await?;
            scene.close().await;
        }
        Action::Serve {
            mysql,
            broker,
            providers,
            saga,
            http,
        } => {
            let scene = Scene::for_sagas(&mysql, saga.lease)?;
            let fulfilment = scene.fulfilment(&saga, &providers)?;
            let page = (
                api::router as fn(http::Shared) -> axum::Router,
                http,
                "APP_HTTP_ADDR",
            );
            scene.work(broker, fulfilment, page, stop).await?;
            scene.close().await;
        }
        Action::Providers { address, state } => {
            providers::run(address, state.as_deref(), stop).await?;
        }
        Action::Load(args) => return load::run(args, stop).await,
        Action::Saga(url, action) => return saga(&url, action).await,
        Action::Stock(url, action) => stock(&url, action).await?,
        Action::Migrate(url) => migrate::run(&url).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn saga(url: &MysqlUrl, action: SagaAction) -> Result<ExitCode> {
    let database = Database::new(url, Settings::default());
    let done = match action {
        SagaAction::List {
            status,
            limit,
            json,
        } => sagas::list(&database, status, limit, json).await,
        SagaAction::Show { id, json } => sagas::show(&database, &id, json).await,
        SagaAction::Retry { id } => {
            return close(sagas::retry(&database, &id).await, database).await;
        }
    };
    close(done.map(|()| ExitCode::SUCCESS), database).await
}

async fn stock(url: &MysqlUrl, action: StockAction) -> Result<()> {
    let database = Database::new(url, Settings::default());
    let done = match action {
        StockAction::Set { sku, available } => stock::set(&database, &sku, available).await,
        StockAction::Fill { available } => stock::fill(&database, available).await,
        StockAction::List { json } => stock::list(&database, json).await,
    };
    close(done, database).await
}

/// Says goodbye to the server, which else counts an aborted connection; what was done counts more.
async fn close<T>(done: Result<T>, database: Database) -> Result<T> {
    timeout(CLOSE, database.close()).await.ok();
    done
}

/// What the servers of one process share.
struct Scene {
    database: Database,
    idempotency: Idempotency,
    metrics: Arc<Metrics>,
}

impl Scene {
    fn new(mysql: &MysqlSettings) -> Result<Self> {
        Self::with(mysql, ATTEMPT)
    }

    /// A lease has to outlast one and a half transactions: it is not renewed within one.
    fn for_sagas(mysql: &MysqlSettings, lease: Duration) -> Result<Self> {
        Self::with(mysql, ATTEMPT.min(lease / 2))
    }

    fn with(mysql: &MysqlSettings, attempt_timeout: Duration) -> Result<Self> {
        let settings = Settings {
            max_connections: mysql.connections,
            attempt_timeout,
            ..Settings::default()
        };
        let database = Database::new(&mysql.url, settings);
        let idempotency = Idempotency::new(database.clone(), idempotency::Settings::default());
        let metrics = Metrics::new(&database, &idempotency).context("cannot set up the metrics")?;
        info!(version = env!("CARGO_PKG_VERSION"), mysql = %mysql.url, "starting");
        Ok(Self {
            database,
            idempotency,
            metrics: Arc::new(metrics),
        })
    }

    async fn serve(
        &self,
        router: impl FnOnce(http::Shared) -> axum::Router,
        address: SocketAddr,
        variable: &str,
        readiness: Arc<Readiness>,
        stop: CancellationToken,
    ) -> Result<()> {
        let listener = http::bind(address, variable).await?;
        let shared = http::Shared {
            database: self.database.clone(),
            idempotency: self.idempotency.clone(),
            metrics: self.metrics.clone(),
            readiness,
        };
        if let Err(reason) = http::ready_for_sql(&shared.database).await {
            warn!(reason, "not ready yet");
        }
        tokio::select! {
            served = http::serve(listener, router(shared), stop) => served,
            never = self.idempotency.keep_clean(CLEAN) => match never {},
        }
    }

    fn fulfilment(&self, saga: &SagaSettings, providers: &ProviderSettings) -> Result<Fulfilment> {
        let external = &self.metrics.external;
        let fulfilment = Fulfilment::new(&self.database, saga, providers, external)?;
        self.metrics
            .watch_sagas(&fulfilment)
            .context("cannot set up the metrics")?;
        Ok(fulfilment)
    }

    /// A worker, its sagas, and the pages beside it; if one of them ends, so do the others.
    async fn work(
        &self,
        broker: BrokerSettings,
        fulfilment: Fulfilment,
        (router, address, variable): (fn(http::Shared) -> axum::Router, SocketAddr, &str),
        stop: CancellationToken,
    ) -> Result<()> {
        let readiness = Arc::new(Readiness::with_broker());
        let worker = Worker::new(
            broker,
            self.database.clone(),
            fulfilment.clone(),
            self.metrics.clone(),
            readiness.clone(),
        );
        let serving = async {
            let served = self
                .serve(router, address, variable, readiness, stop.clone())
                .await;
            stop.cancel();
            served
        };
        let working = async {
            let worked = worker.run(&stop).await;
            stop.cancel();
            worked
        };
        let fulfilling = async {
            tokio::select! {
                () = fulfilment.run(&stop) => {}
                never = self.metrics.sagas.keep_counting(&self.database, COUNT) => match never {},
            }
        };
        let (served, worked, ()) = tokio::join!(serving, working, fulfilling);
        served.and(worked)
    }

    async fn close(self) {
        // Requests whose clients are gone are still worked on.
        if timeout(CLOSE, self.idempotency.idle()).await.is_err() {
            warn!(after = ?CLOSE, "requests in progress were cut off");
        }
        match timeout(CLOSE, self.database.close()).await {
            Ok(Ok(())) => info!("stopped"),
            Ok(Err(error)) => warn!(%error, "stopped; the connections to MySQL did not close well"),
            Err(_) => warn!("stopped; some connections to MySQL did not close in time"),
        }
    }
}

/// Cancelled by SIGTERM or SIGINT.
fn stop_signal() -> Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let token = stop.clone();
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        info!(signal = name, "stopping");
        token.cancel();
    });
    Ok(stop)
}
