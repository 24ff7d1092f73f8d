//! Errors as `application/problem+json` (RFC 9457).

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::orders::Fault;

/// An answer that says what went wrong.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    faults: Vec<Fault>,
}

impl Problem {
    /// Of that status, in those words.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            faults: Vec::new(),
        }
    }

    /// Well-formed, and not valid.
    pub(crate) fn invalid(faults: Vec<Fault>) -> Self {
        let first = faults
            .first()
            .map(|fault| format!("{} {}", fault.field, fault.detail));
        let detail = first.unwrap_or_default();
        Self {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            detail,
            faults,
        }
    }
}

/// Of a problem's body (RFC 9457 section 3).
pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

impl Problem {
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn body(&self) -> Value {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if !self.faults.is_empty() {
            body["errors"] = json!(self.faults);
        }
        body
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static(MEDIA_TYPE);
        headers.insert(header::CONTENT_TYPE, kind);
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
