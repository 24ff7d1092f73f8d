//! What every HTTP server of this app has: `/metrics`, `/livez`, `/readyz`, a bound on each request, a graceful stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use mysql_async::prelude::Queryable as _;
use reliability::idempotency::Idempotency;
use reliability::mysql::{Database, server_code};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::metrics::Metrics;
use crate::telemetry::chain;

/// Longest wait for requests in progress once a stop is asked for.
const GRACE: Duration = Duration::from_secs(10);
/// Longest look at MySQL for `/readyz`.
const LOOK: Duration = Duration::from_secs(3);

/// What handlers use.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) database: Database,
    pub(crate) idempotency: Idempotency,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) readiness: Arc<Readiness>,
}

/// What `/readyz` can't ask for itself.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    uses_broker: bool,
    consuming: AtomicBool,
}

impl Readiness {
    /// Of a process that consumes messages.
    pub(crate) fn with_broker() -> Self {
        Self {
            uses_broker: true,
            consuming: AtomicBool::new(false),
        }
    }

    /// Says whether messages can come in.
    pub(crate) fn set_consuming(&self, consuming: bool) {
        self.consuming.store(consuming, Ordering::Relaxed);
    }
}

/// The pages alone.
pub(crate) fn router(shared: Shared) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .with_state(shared)
}

/// Listens on an address that `variable` chose.
pub(crate) async fn bind(address: SocketAddr, variable: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot serve HTTP on {address}; choose another address with {variable}")
    })
}

/// Serves until `stop`, and then what is in progress, for a while.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> Result<()> {
    let address = listener
        .local_addr()
        .context("cannot read the address of the HTTP server")?;
    info!(%address, "serving HTTP");
    let serving =
        axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    drain(serving.into_future(), stop).await
}

/// Waits for a server that ends on `stop`, and cuts it off if it takes too long.
pub(crate) async fn drain(
    serving: impl Future<Output = io::Result<()>>,
    stop: CancellationToken,
) -> Result<()> {
    let too_long = async {
        stop.cancelled().await;
        sleep(GRACE).await;
    };
    tokio::select! {
        served = serving => served.context("the HTTP server failed"),
        () = too_long => {
            warn!(after = ?GRACE, "requests in progress were cut off");
            Ok(())
        }
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let text = shared.metrics.render();
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
        .into_response()
}

async fn readyz(State(shared): State<Shared>) -> Response {
    match ready(&shared).await {
        Ok(()) => Json(json!({ "ready": true })).into_response(),
        Err(reason) => {
            let body = Json(json!({ "ready": false, "reason": reason }));
            (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
        }
    }
}

/// Whether this process can do its work; the reason if it can't.
async fn ready(shared: &Shared) -> Result<(), String> {
    ready_for_sql(&shared.database).await?;
    let readiness = &shared.readiness;
    if readiness.uses_broker && !readiness.consuming.load(Ordering::Relaxed) {
        return Err("not consuming from RabbitMQ".to_owned());
    }
    Ok(())
}

/// Whether MySQL answers and has the tables; the reason if not.
pub(crate) async fn ready_for_sql(database: &Database) -> Result<(), String> {
    match timeout(LOOK, tables(database)).await {
        Ok(looked) => looked,
        Err(_) => Err(format!(
            "{} did not answer within {LOOK:?}",
            database.server()
        )),
    }
}

async fn tables(database: &Database) -> Result<(), String> {
    // The scope, the history of a step and the time of a command came with the last of the migrations that are needed.
    let look = "SELECT scope, undo_attempts, available_at FROM orders, order_items, inventory, outbox_events, inbox_events, \
        idempotency_keys, command_queue, saga_steps LIMIT 0";
    let said = |error: anyhow::Error| chain(error.as_ref());
    let mut conn = database
        .connection()
        .await
        .map_err(|error| said(error.into()))?;
    conn.query_drop(look)
        .await
        .map_err(|error| match server_code(&error) {
            // ER_NO_SUCH_TABLE, ER_BAD_FIELD_ERROR
            Some(1146 | 1054) => format!(
                "tables are missing or old in {}; run: app migrate",
                database.server()
            ),
            _ => said(
                anyhow::Error::new(error).context(format!("cannot query {}", database.server())),
            ),
        })
}
