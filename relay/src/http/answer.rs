//! Answers: text, JSON, and problems (RFC 9457).

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

/// What is sent back.
pub(super) type Answer = Response<Full<Bytes>>;

/// Plain text.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    of_kind(status, "text/plain; charset=utf-8", body)
}

/// JSON.
pub(super) fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => of_kind(StatusCode::OK, "application/json", body),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// What went wrong, in words.
pub(super) fn problem(status: StatusCode, detail: impl Into<String>) -> Answer {
    let body = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail.into(),
    });
    of_kind(status, "application/problem+json", body.to_string())
}

/// A body of that media type.
pub(super) fn of_kind(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    set(&mut answer, CONTENT_TYPE, kind);
    answer
}

/// Sets a header.
pub(super) fn set(answer: &mut Answer, name: HeaderName, value: &'static str) {
    answer
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}
