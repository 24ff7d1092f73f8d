//! `POST /orders`, `GET /orders/{id}`.

use std::error::Error as StdError;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use reliability::mysql::IsolationLevel::ReadCommitted;
use reliability::mysql::TransactionError;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{error, warn};

use super::BODY_MAX;
use super::problem::Problem;
use crate::http::Shared;
use crate::orders::store::{self, StoreError};
use crate::orders::{CREATED, NewOrder};
use crate::telemetry::chain;

/// Longest read of an order.
const READ: Duration = Duration::from_secs(5);

/// Places an order.
pub(super) async fn create(
    State(shared): State<Shared>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    if !is_json(&headers) {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the header Content-Type must be application/json",
        ));
    }
    let body = body.map_err(|rejection| match rejection.status() {
        status @ StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
            status,
            format!("the body must have at most {BODY_MAX} bytes"),
        ),
        status => Problem::new(status, rejection.body_text()),
    })?;
    let body: Value = serde_json::from_slice(&body).map_err(|error| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            format!("the body is not JSON: {error}"),
        )
    })?;
    let order = NewOrder::parse(&body).map_err(Problem::invalid)?;
    let total_cents = order.total_cents;
    let id = shared
        .database
        .transaction(ReadCommitted, async move |tx| {
            store::create(tx, &order).await
        })
        .await
        .map_err(failed)?;
    let location = [(header::LOCATION, format!("/orders/{id}"))];
    let body = Json(json!({ "id": id, "status": CREATED, "total_cents": total_cents }));
    Ok((StatusCode::CREATED, location, body).into_response())
}

/// Shows an order.
pub(super) async fn show(
    State(shared): State<Shared>,
    id: Result<Path<i64>, PathRejection>,
) -> Result<Response, Problem> {
    let missing = || Problem::new(StatusCode::NOT_FOUND, "there is no such order");
    let Ok(Path(id)) = id else {
        return Err(missing());
    };
    let mut conn = shared
        .database
        .connection()
        .await
        .map_err(|error| unavailable(&error))?;
    match timeout(READ, store::find(&mut conn, id)).await {
        Ok(Ok(Some(order))) => Ok(Json(order).into_response()),
        Ok(Ok(None)) => Err(missing()),
        Ok(Err(error)) => Err(unavailable(&error)),
        Err(_) => {
            warn!(order_id = id, after = ?READ, "order not read in time");
            Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the order could not be read in time",
            ))
        }
    }
}

/// `application/json`, or a kind of it such as `application/vnd.shop+json`; parameters don't matter.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
    else {
        return false;
    };
    let kind = kind
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

fn failed(failure: TransactionError<StoreError>) -> Problem {
    if failure.outcome_unknown() {
        error!(error = %chain(&failure), "outcome of an order unknown");
        return Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the connection was lost at the last moment: the order may have been placed or not",
        );
    }
    unavailable(&failure)
}

/// Logs a failure; the client learns no more than that it may try again.
fn unavailable(failure: &(dyn StdError + 'static)) -> Problem {
    error!(error = %chain(failure), "request failed");
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "the database can't be used at the moment; nothing was changed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_json_with_any_parameter() {
        let kind = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, text.parse().unwrap());
            is_json(&headers)
        };
        assert!(kind("application/json"));
        assert!(kind("Application/JSON; charset=utf-8"));
        assert!(kind("application/vnd.shop+json"));
        assert!(!kind("text/plain"));
        assert!(!kind("application/jsonp"));
        assert!(!is_json(&HeaderMap::new()));
    }
}
