//! `POST /orders`, `GET /orders/{id}`.

use std::error::Error as StdError;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use reliability::idempotency::http::IdempotentRequest;
use reliability::idempotency::{self, Answer, Ticket, WorkError};
use reliability::mysql::TransactionError;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{error, warn};

use super::problem::Problem;
use crate::http::Shared;
use crate::orders::state::Status;
use crate::orders::store::{self, StoreError};
use crate::orders::{FAULTS_MAX, Fault, NewOrder};
use crate::telemetry::chain;

/// The preference of a client that does not wait (RFC 7240 section 4.1).
const RESPOND_ASYNC: &str = "respond-async";
/// Longest read of an order.
const READ: Duration = Duration::from_secs(5);

/// Places an order: once for each idempotency key, whatever becomes of the client.
///
/// What is wrong with the request in itself is told before the key is claimed.
pub(super) async fn create(
    State(shared): State<Shared>,
    request: Result<IdempotentRequest, idempotency::http::Problem>,
) -> Result<Response, Response> {
    let request = request.map_err(IntoResponse::into_response)?;
    let order = read(&request).map_err(IntoResponse::into_response)?;
    let manner = Manner::of(request.headers());
    Ok(request
        .answer(&shared.idempotency, move |ticket| {
            place(ticket, order, manner)
        })
        .await)
}

/// How the client wants to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// 201: the order is there, and its saga follows from its event.
    Created,
    /// 202: the command that starts the saga is there, too, and is worked on whether or not the broker is up.
    Accepted,
}

impl Manner {
    /// Reads `Prefer: respond-async` (RFC 7240 section 4.1), wherever it stands in a list of preferences.
    fn of(headers: &HeaderMap) -> Self {
        let asked = headers
            .get_all("prefer")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|preference| preference.split([';', '=']).next())
            .any(|name| name.trim().eq_ignore_ascii_case(RESPOND_ASYNC));
        if asked { Self::Accepted } else { Self::Created }
    }
}

fn read(request: &IdempotentRequest) -> Result<NewOrder, Problem> {
    if !is_json(request.headers()) {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the header Content-Type must be application/json",
        ));
    }
    let body: Value = serde_json::from_slice(request.body()).map_err(|error| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            format!("the body is not JSON: {error}"),
        )
    })?;
    NewOrder::parse(&body).map_err(Problem::invalid)
}

/// The order, its event and the answer for its key, in one transaction.
async fn place(ticket: Ticket, order: NewOrder, manner: Manner) -> Response {
    let placed = ticket
        .run(async move |tx| {
            let unknown = store::unknown_goods(tx, &order).await?;
            if !unknown.is_empty() {
                return Ok::<_, StoreError>(unknown_goods(&unknown));
            }
            let id = store::create(tx, &order, manner == Manner::Accepted).await?;
            let body = json!({
                "id": id,
                "status": Status::Created.as_str(),
                "total_cents": order.total_cents,
            });
            let answer = |status: StatusCode| {
                Answer::new(status.as_u16(), body.to_string())
                    .with_header("content-type", "application/json")
                    .with_header("location", format!("/orders/{id}"))
            };
            Ok(match manner {
                Manner::Created => answer(StatusCode::CREATED),
                Manner::Accepted => {
                    answer(StatusCode::ACCEPTED).with_header("preference-applied", RESPOND_ASYNC)
                }
            })
        })
        .await;
    match placed {
        Ok(answer) => answer.into_response(),
        Err(failure) => failed(&failure).into_response(),
    }
}

/// Refused by the business: stored with the key, and told again.
fn unknown_goods(places: &[usize]) -> Answer {
    let faults = places
        .iter()
        .take(FAULTS_MAX)
        .map(|place| Fault {
            field: format!("items[{place}].sku"),
            detail: "is not in the stock".to_owned(),
        })
        .collect();
    let problem = Problem::invalid(faults);
    Answer::new(problem.status().as_u16(), problem.body().to_string())
        .with_header("content-type", super::problem::MEDIA_TYPE)
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

fn failed(failure: &TransactionError<WorkError<StoreError>>) -> Problem {
    if failure.outcome_unknown() {
        error!(error = %chain(failure), "outcome of an order unknown");
        return Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the connection was lost at the last moment: the order may have been placed or not; repeat the request \
             with the same idempotency key",
        );
    }
    unavailable(failure)
}

/// Logs a failure; the client learns no more than that it may try again.
pub(super) fn unavailable(failure: &(dyn StdError + 'static)) -> Problem {
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
    fn the_preference_is_found_in_any_list() {
        let manner = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("prefer", value.parse().unwrap());
            }
            Manner::of(&headers)
        };
        for asked in [
            &["respond-async"][..],
            &["wait=10, Respond-Async"],
            &["a", "respond-async;x=1"],
        ] {
            assert_eq!(manner(asked), Manner::Accepted, "{asked:?}");
        }
        for other in [
            &[][..],
            &["respond-asynchronously"],
            &["handling=respond-async"],
        ] {
            assert_eq!(manner(other), Manner::Created, "{other:?}");
        }
    }

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
