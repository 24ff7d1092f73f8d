//! `GET /sagas/{id}`.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use reliability::saga;
use tokio::time::timeout;

use super::orders::unavailable;
use super::problem::Problem;
use crate::http::Shared;

/// Longest read of a saga.
const READ: Duration = Duration::from_secs(5);

/// Shows a saga with the history of its steps.
pub(super) async fn show(
    State(shared): State<Shared>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let missing = || Problem::new(StatusCode::NOT_FOUND, "there is no such saga");
    let Ok(Path(id)) = id else {
        return Err(missing());
    };
    match timeout(READ, saga::show(&shared.database, &id)).await {
        Ok(Ok(Some(history))) => Ok(Json(history).into_response()),
        Ok(Ok(None)) => Err(missing()),
        Ok(Err(error)) => Err(unavailable(&error)),
        Err(_) => Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the saga could not be read in time",
        )),
    }
}
