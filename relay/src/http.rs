//! `/metrics`, `/livez`, `/readyz`, `/status` and the admin calls on dead letters, on hyper.

mod admin;
mod answer;
mod call;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL};
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::config::Config;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::status::Running;
use admin::Admin;
use answer::{Answer, of_kind, set, text};

/// Scrapers and probes are few; more than this at once is somebody else.
const CONNECTIONS: usize = 64;
/// A client that takes longer to send its request line is let go.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the pages are made of.
#[derive(Debug, Clone)]
pub struct Pages {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    admin: Arc<Admin>,
}

impl Pages {
    /// Of one relay.
    pub fn new(config: Arc<Config>, metrics: Arc<Metrics>, health: Arc<Health>) -> Self {
        Self {
            admin: Arc::new(Admin::new(config.clone(), metrics.clone())),
            config,
            metrics,
            health,
        }
    }
}

/// Takes the address.
///
/// # Errors
/// It is taken, or not of this machine.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    info!(%address, "serving /metrics, /livez, /readyz and /status");
    if !address.ip().is_loopback() {
        warn!(%address, "HTTP is open beyond this machine");
    }
    Ok(listener)
}

/// Serves until told to stop.
pub async fn serve(listener: TcpListener, pages: Pages, stop: CancellationToken) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        let (stream, peer) = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    debug!(%error, "an HTTP connection failed before it began");
                    continue;
                }
            },
        };
        while connections.try_join_next().is_some() {}
        let pages = pages.clone();
        connections.spawn(async move {
            let service = service_fn(|request| {
                let pages = pages.clone();
                async move { Ok::<_, Infallible>(respond(&pages, request, peer).await) }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT);
            if let Err(error) = builder
                .serve_connection(TokioIo::new(stream), service)
                .await
            {
                debug!(%error, "an HTTP connection failed");
            }
            drop(permit);
        });
    }
}

async fn respond(pages: &Pages, request: Request<Incoming>, peer: SocketAddr) -> Answer {
    let path = request.uri().path();
    if path == "/dlq" || path.starts_with("/dlq/") {
        let mut answer = pages.admin.respond(request, peer).await;
        set(&mut answer, CACHE_CONTROL, "no-store");
        return answer;
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here\n");
        set(&mut refused, ALLOW, "GET, HEAD");
        return refused;
    }
    match path {
        "/livez" => text(StatusCode::OK, "ok\n"),
        "/readyz" => readyz(&pages.health),
        "/status" => answer::json(&Running::of(&pages.config, &pages.metrics, &pages.health)),
        "/metrics" => of_kind(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            pages.metrics.render(),
        ),
        _ => text(
            StatusCode::NOT_FOUND,
            "there are /metrics, /livez, /readyz, /status and /dlq\n",
        ),
    }
}

fn readyz(health: &Health) -> Answer {
    if health.is_standby() {
        let body = "ok: standing by, another relay of this name leads\n";
        return text(StatusCode::OK, body);
    }
    match health.complaints() {
        complaints if complaints.is_empty() => {
            text(StatusCode::OK, format!("ok\nsource: {}\n", health.source()))
        }
        complaints => text(
            StatusCode::SERVICE_UNAVAILABLE,
            complaints.join("\n") + "\n",
        ),
    }
}
