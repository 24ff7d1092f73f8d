//! The HTTP API.

mod orders;
mod problem;
mod sagas;

use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::handler::Handler as _;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use tokio::time::timeout;

use crate::http::{self, Shared};
pub(crate) use problem::Problem;

/// Largest body.
pub(crate) const BODY_MAX: usize = 256 * 1024;
/// Longest time from a request's head to its answer: three attempts of a transaction that waits for locks.
const REQUEST: Duration = Duration::from_secs(30);

/// The API and the pages beside it.
pub(crate) fn router(shared: Shared) -> Router {
    let tracked = |route: &'static str, handlers: MethodRouter<Shared>| {
        let label = Label {
            shared: shared.clone(),
            route,
        };
        let handlers = handlers.fallback(not_allowed);
        (route, handlers.layer(from_fn_with_state(label, track)))
    };
    let (orders, create) = tracked("/orders", post(orders::create));
    let (order, show) = tracked("/orders/{id}", get(orders::show));
    let (saga, history) = tracked("/sagas/{id}", get(sagas::show));
    let other = Label {
        shared: shared.clone(),
        route: "other",
    };
    Router::new()
        .route(orders, create)
        .route(order, show)
        .route(saga, history)
        .fallback(not_found.layer(from_fn_with_state(other, track)))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(shared.clone())
        .merge(http::router(shared))
}

#[derive(Clone)]
struct Label {
    shared: Shared,
    route: &'static str,
}

/// Bounds a request and counts it.
async fn track(State(label): State<Label>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let response = match timeout(REQUEST, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            "the request was not answered in time; what it asked for may have happened or not",
        )
        .into_response(),
    };
    let metrics = &label.shared.metrics;
    metrics
        .requests
        .with_label_values(&[label.route, response.status().as_str()])
        .inc();
    let seconds = started.elapsed().as_secs_f64();
    metrics
        .request_seconds
        .with_label_values(&[label.route])
        .observe(seconds);
    response
}

async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "there is no such page")
}

async fn not_allowed() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this page does not take that method",
    )
}
