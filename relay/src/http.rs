//! `/metrics`, `/livez` and `/readyz`, on hyper.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::health::Health;
use crate::metrics::Metrics;

/// Scrapers and probes are few; more than this at once is somebody else.
const CONNECTIONS: usize = 64;
/// A client that takes longer to send its request line is let go.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the pages are made of.
#[derive(Debug, Clone)]
pub struct Pages {
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Readiness.
    pub health: Arc<Health>,
}

/// Takes the address.
///
/// # Errors
/// It is taken, or not of this machine.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    info!(%address, "serving /metrics, /livez and /readyz");
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
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
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
                let response = respond(&pages, &request);
                async move { Ok::<_, Infallible>(response) }
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

fn respond(pages: &Pages, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here\n");
        refused
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/livez" => text(StatusCode::OK, "ok\n"),
        "/readyz" if pages.health.is_standby() => text(
            StatusCode::OK,
            "ok: standing by, another relay of this name leads\n",
        ),
        "/readyz" => match pages.health.complaints() {
            complaints if complaints.is_empty() => text(
                StatusCode::OK,
                format!("ok\nsource: {}\n", pages.health.source()),
            ),
            complaints => text(
                StatusCode::SERVICE_UNAVAILABLE,
                complaints.join("\n") + "\n",
            ),
        },
        "/metrics" => {
            let mut page = text(StatusCode::OK, pages.metrics.render());
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            page.headers_mut().insert(CONTENT_TYPE, kind);
            page
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "there are /metrics, /livez and /readyz\n",
        ),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
