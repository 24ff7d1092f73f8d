//! Idempotent routes of an `axum` server. Feature `axum`.
//!
//! ```no_run
//! use axum::extract::State;
//! use axum::response::Response;
//! use mysql_async::prelude::Queryable as _;
//! use reliability::idempotency::http::{IdempotentRequest, Problem};
//! use reliability::idempotency::{Answer, Idempotency};
//!
//! async fn create(State(idempotency): State<Idempotency>, request: IdempotentRequest) -> Response {
//!     // First what is wrong with the request in itself: no key is used up for that.
//!     let Ok(number) = serde_json::from_slice::<i64>(request.body()) else {
//!         return axum::response::IntoResponse::into_response((axum::http::StatusCode::BAD_REQUEST, "no number"));
//!     };
//!     request
//!         .answer(&idempotency, move |ticket| async move {
//!             ticket
//!                 .run(async move |tx| {
//!                     tx.exec_drop("INSERT INTO invoices (number) VALUES (?)", (number,)).await?;
//!                     Ok::<_, mysql_async::Error>(Answer::new(201, "created"))
//!                 })
//!                 .await
//!                 .map_or_else(|_| Problem::unavailable().into(), Response::from)
//!         })
//!         .await
//! }
//! # let _ = axum::Router::<Idempotency>::new().route("/invoices", axum::routing::post(create));
//! ```

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tracing::error;

use super::{Answer, Claim, Fingerprint, Idempotency, Key, KeyError, Ticket};

/// The header that names a request.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header of an answer that was given before.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// A request with its key and its whole body, within the router's limit of bodies. Nothing is claimed yet.
#[derive(Debug)]
pub struct IdempotentRequest {
    key: Key,
    fingerprint: Fingerprint,
    headers: HeaderMap,
    body: Bytes,
}

/// Why a request is not worked on, as `application/problem+json` (RFC 9457).
#[derive(Debug, Clone)]
pub struct Problem {
    status: StatusCode,
    detail: String,
    retry_after: Option<Duration>,
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            retry_after: None,
        }
    }

    /// 503: the database can't be used; the client may try again in a second.
    #[must_use]
    pub fn unavailable() -> Self {
        Self {
            retry_after: Some(Duration::from_secs(1)),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the database can't be used at the moment; repeat the request with the same idempotency key",
            )
        }
    }

    fn in_progress(retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(
                StatusCode::CONFLICT,
                "a request with this idempotency key is in progress; repeat it later",
            )
        }
    }

    fn mismatch() -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "this idempotency key was used for another request; use a new one",
        )
    }
}

impl From<KeyError> for Problem {
    fn from(error: KeyError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if let Some(wait) = self.retry_after {
            // In whole seconds, at least one: zero would mean at once.
            let seconds = wait.as_secs_f64().ceil().max(1.0);
            if let Ok(value) = HeaderValue::try_from(seconds.to_string()) {
                headers.insert(header::RETRY_AFTER, value);
            }
        }
        response
    }
}

impl From<Problem> for Response {
    fn from(problem: Problem) -> Self {
        problem.into_response()
    }
}

impl From<Answer> for Response {
    fn from(answer: Answer) -> Self {
        answer.into_response()
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let unfit = |what: &str| {
            error!(what, "an answer can't be sent over HTTP");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        };
        let Ok(status) = StatusCode::from_u16(self.status()) else {
            return unfit("status");
        };
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers() {
            let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value))
            else {
                return unfit(name);
            };
            headers.append(name, value);
        }
        (status, headers, Body::from(self.into_body())).into_response()
    }
}

impl<S: Send + Sync> FromRequest<S> for IdempotentRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let key = key(request.headers())?;
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let headers = request.headers().clone();
        let body = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| Problem::new(rejection.status(), rejection.body_text()))?;
        Ok(Self::new(key, &method, &uri, headers, body))
    }
}

fn key(headers: &HeaderMap) -> Result<Key, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "the header Idempotency-Key is missing; give each request a key of its own, a UUID for one, and repeat it with the same",
        ));
    };
    if values.next().is_some() {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "there is more than one header Idempotency-Key",
        ));
    }
    let text = value.to_str().map_err(|_| KeyError::NotVisible)?;
    Ok(Key::new(text)?)
}

impl IdempotentRequest {
    fn new(key: Key, method: &Method, uri: &Uri, headers: HeaderMap, body: Bytes) -> Self {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let fingerprint = Fingerprint::of(method.as_str(), path, &body);
        Self {
            key,
            fingerprint,
            headers,
            body,
        }
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// With keys of that tenant or client only; without, all clients share them.
    ///
    /// # Errors
    /// The scope is longer than 128 characters.
    pub fn scoped(mut self, scope: impl Into<String>) -> Result<Self, KeyError> {
        self.key = self.key.scoped(scope)?;
        Ok(self)
    }

    /// Claims the key and lets `work` answer; or answers with what is stored (`Idempotent-Replayed: true`), 409 with Retry-After
    /// while another request with the key is in progress, 422 if the key was used for another request, 503 if the database
    /// can't be used.
    ///
    /// All of it runs to its end in a task of its own, also when the client hangs up and the server drops this future: the order
    /// that a client has sent is placed, and its repetition gets the answer. What bounds the work must be in it, as the bounds of
    /// [`Database::transaction`](crate::mysql::Database::transaction) are. If the work panics, the key is released.
    pub async fn answer<F, R>(self, idempotency: &Idempotency, work: F) -> Response
    where
        F: FnOnce(Ticket) -> R + Send + 'static,
        R: Future<Output = Response> + Send + 'static,
    {
        let store = idempotency.clone();
        let task = idempotency.shared.tasks.spawn(async move {
            match store.claim(&self.key, &self.fingerprint).await {
                Ok(Claim::New(ticket)) => work(ticket).await,
                Ok(Claim::Replay(answer)) => {
                    let mut response = answer.into_response();
                    let replayed = HeaderValue::from_static("true");
                    response.headers_mut().insert(IDEMPOTENT_REPLAYED, replayed);
                    response
                }
                Ok(Claim::InProgress { retry_after }) => {
                    Problem::in_progress(retry_after).into_response()
                }
                Ok(Claim::Mismatch) => Problem::mismatch().into_response(),
                Err(failure) => {
                    error!(
                        error = &failure as &dyn std::error::Error,
                        "idempotency key not claimed"
                    );
                    Problem::unavailable().into_response()
                }
            }
        });
        match task.await {
            Ok(response) => response,
            Err(failure) => {
                error!(
                    error = &failure as &dyn std::error::Error,
                    "the work of a request was cut off"
                );
                let detail = "the request failed; repeat it with the same idempotency key";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response()
            }
        }
    }
}
