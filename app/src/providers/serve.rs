//! The providers' HTTP pages.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path as Segment, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use reliability::idempotency::Key;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::book::{Book, Fact, Refusal, Request, Service};
use super::journal::Journal;
use super::mode::{Change, Fault, Mode, Modes};
use super::wire::{Cuttable, Knife};
use crate::api::Problem;
use crate::http;

/// Largest body: a few fields are expected.
const BODY_MAX: usize = 64 * 1024;

/// Where work is handed in: the book, its journal, and what shall go wrong. Clones share them.
#[derive(Clone)]
pub(super) struct Counter {
    shelf: Arc<Mutex<Shelf>>,
    modes: Arc<Mutex<Modes>>,
    stop: CancellationToken,
}

struct Shelf {
    book: Book,
    journal: Option<Journal>,
}

/// A call to one of the providers.
enum Call {
    Do(Request),
    Undo,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Payment {
    order_id: u64,
    amount_cents: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shipment {
    order_id: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Filter {
    order_id: Option<u64>,
}

impl Counter {
    /// With what the state file says was done before; `stop` ends calls that hang.
    pub(super) fn open(state: Option<&Path>, stop: CancellationToken) -> Result<Self> {
        let (journal, book) = match state {
            Some(path) => {
                let (journal, book) = Journal::open(path)?;
                (Some(journal), book)
            }
            None => (None, Book::default()),
        };
        Ok(Self {
            shelf: Arc::new(Mutex::new(Shelf { book, journal })),
            modes: Arc::default(),
            stop,
        })
    }

    /// Goes wrong as the mode says, or does the work.
    async fn call(&self, service: Service, key: &str, call: Call, knife: &Knife) -> Response {
        let latency = self.modes_of(service, &call, |mode| mode.latency_ms);
        if latency > 0 {
            sleep(Duration::from_millis(latency)).await;
        }
        let settled = lock(&self.shelf).is_settled(service, key, &call);
        let fault = self.modes_of(service, &call, |mode| mode.next(fastrand::f64(), settled));
        match fault {
            Fault::None => self.work(service, key, &call),
            Fault::LostAnswer => {
                let answer = self.work(service, key, &call);
                knife.cut();
                answer
            }
            Fault::Hang => {
                self.stop.cancelled().await;
                knife.cut();
                problem(StatusCode::SERVICE_UNAVAILABLE, "stopping")
            }
            Fault::Error => problem(
                StatusCode::INTERNAL_SERVER_ERROR,
                "failed before anything was done",
            ),
            Fault::Unavailable => {
                let mut answer = problem(StatusCode::SERVICE_UNAVAILABLE, "closed for now");
                answer.headers_mut().remove(header::RETRY_AFTER);
                answer
            }
            Fault::RateLimit => {
                let mut answer = problem(StatusCode::TOO_MANY_REQUESTS, "too many calls");
                let pause = HeaderValue::from_static("1");
                answer.headers_mut().insert(header::RETRY_AFTER, pause);
                answer
            }
            Fault::Decline => match call {
                Call::Do(_) => problem(StatusCode::PAYMENT_REQUIRED, "declined"),
                Call::Undo => problem(StatusCode::UNPROCESSABLE_ENTITY, "the undo was declined"),
            },
        }
    }

    fn modes_of<T>(&self, service: Service, call: &Call, read: impl FnOnce(&mut Mode) -> T) -> T {
        let mut modes = lock(&self.modes);
        let sides = modes.sides(service);
        read(match call {
            Call::Do(_) => &mut sides.forward,
            Call::Undo => &mut sides.undo,
        })
    }

    fn work(&self, service: Service, key: &str, call: &Call) -> Response {
        let mut shelf = lock(&self.shelf);
        let (fact, status) = match call {
            Call::Do(request) => match shelf.book.forward(service, key, request) {
                Ok(fact) => (fact, StatusCode::CREATED),
                Err(refusal) => return refused(refusal),
            },
            Call::Undo => (shelf.book.undo(service, key), StatusCode::OK),
        };
        if let Some(fact) = fact
            && let Err(failure) = shelf.note(fact)
        {
            let reason = format!("{failure:#}");
            error!(reason, "nothing was done");
            return problem(StatusCode::INTERNAL_SERVER_ERROR, reason);
        }
        let entry = shelf.book.entry(service, key);
        (status, Json(entry.map(super::book::Entry::answer))).into_response()
    }
}

impl Shelf {
    /// In the file first: what is answered for must be there after a crash.
    fn note(&mut self, fact: Fact) -> Result<()> {
        if let Some(journal) = &mut self.journal {
            journal.append(&fact)?;
        }
        self.book.apply(fact).context("the book is wrong")
    }

    /// Whether there is nothing left to do for that call.
    fn is_settled(&self, service: Service, key: &str, call: &Call) -> bool {
        match call {
            Call::Do(request) => !matches!(self.book.forward(service, key, request), Ok(Some(_))),
            Call::Undo => self.book.undo(service, key).is_none(),
        }
    }
}

/// All pages.
pub(super) fn router(counter: Counter) -> Router {
    Router::new()
        .merge(desk(
            Service::Payment,
            "/payments",
            "/payments/{key}/refund",
        ))
        .merge(desk(
            Service::Shipment,
            "/shipments",
            "/shipments/{key}/cancel",
        ))
        .route("/ledger", get(ledger))
        .route("/modes", get(modes))
        .route("/modes/{service}", put(change))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(async || Json(json!({ "ready": true }))))
        .fallback(async || problem(StatusCode::NOT_FOUND, "there is no such page"))
        .method_not_allowed_fallback(async || {
            problem(
                StatusCode::METHOD_NOT_ALLOWED,
                "this page does not take that method",
            )
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(counter)
}

/// Serves until `stop`.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> Result<()> {
    let address = listener
        .local_addr()
        .context("cannot read the address of the HTTP server")?;
    info!(%address, "serving HTTP");
    let service = router.into_make_service_with_connect_info::<Knife>();
    let serving = axum::serve(Cuttable(listener), service)
        .with_graceful_shutdown(stop.clone().cancelled_owned());
    http::drain(serving.into_future(), stop).await
}

/// The pages of one provider.
fn desk(service: Service, page: &'static str, undo: &'static str) -> Router<Counter> {
    let forward = async move |State(counter): State<Counter>,
                              ConnectInfo(knife): ConnectInfo<Knife>,
                              headers: HeaderMap,
                              body: Bytes| {
        let asked = key(&headers).and_then(|key| Ok((key, request(service, &body)?)));
        match asked {
            Ok((key, request)) => {
                let call = Call::Do(request);
                counter.call(service, &key, call, &knife).await
            }
            Err(detail) => problem(StatusCode::BAD_REQUEST, detail),
        }
    };
    let backward = async move |State(counter): State<Counter>,
                               ConnectInfo(knife): ConnectInfo<Knife>,
                               Segment(undone): Segment<String>,
                               headers: HeaderMap| {
        match key(&headers) {
            Ok(_) => counter.call(service, &undone, Call::Undo, &knife).await,
            Err(detail) => problem(StatusCode::BAD_REQUEST, detail),
        }
    };
    Router::new()
        .route(page, post(forward))
        .route(undo, post(backward))
}

async fn ledger(State(counter): State<Counter>, filter: Query<Filter>) -> Response {
    Json(lock(&counter.shelf).book.ledger(filter.order_id)).into_response()
}

async fn modes(State(counter): State<Counter>) -> Response {
    Json(&*lock(&counter.modes)).into_response()
}

async fn change(
    State(counter): State<Counter>,
    Segment(service): Segment<String>,
    body: Bytes,
) -> Response {
    let service = match service.as_str() {
        "payment" => Service::Payment,
        "shipment" => Service::Shipment,
        _ => {
            return problem(
                StatusCode::NOT_FOUND,
                "there are /modes/payment and /modes/shipment",
            );
        }
    };
    match Change::parse(&body) {
        Ok(change) => lock(&counter.modes).change(service, change),
        Err(detail) => return problem(StatusCode::BAD_REQUEST, detail),
    }
    let now = lock(&counter.modes).clone();
    info!(modes = %json!(now), "modes changed");
    Json(now).into_response()
}

fn key(headers: &HeaderMap) -> Result<String, String> {
    let value = headers
        .get("Idempotency-Key")
        .ok_or("the header Idempotency-Key is missing")?;
    let text = value.to_str().map_err(|error| error.to_string())?;
    let key = Key::new(text).map_err(|error| error.to_string())?;
    Ok(key.as_str().to_owned())
}

fn request(service: Service, body: &[u8]) -> Result<Request, String> {
    let read = match service {
        Service::Payment => serde_json::from_slice(body).map(|payment: Payment| Request {
            order_id: payment.order_id,
            amount_cents: Some(payment.amount_cents),
        }),
        Service::Shipment => serde_json::from_slice(body).map(|shipment: Shipment| Request {
            order_id: shipment.order_id,
            amount_cents: None,
        }),
    };
    read.map_err(|error| format!("the body is not valid: {error}"))
}

fn refused(refusal: Refusal) -> Response {
    let status = match refusal {
        Refusal::OtherRequest => StatusCode::UNPROCESSABLE_ENTITY,
        Refusal::UndoneBefore => StatusCode::CONFLICT,
    };
    problem(status, refusal.to_string())
}

fn problem(status: StatusCode, detail: impl Into<String>) -> Response {
    Problem::new(status, detail).into_response()
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here panics half way.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
