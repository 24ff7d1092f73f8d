//! Why a call to a provider has no result, and what that says about the work.

use std::time::{Duration, SystemTime};

use reliability::resilience::{BulkheadFull, CircuitOpen, RateLimited};
use reliability::saga::FailureKind;
use serde_json::Value;
use thiserror::Error;

/// Longest pause that a provider may ask for: a wrong clock at its side must not stop us for days.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Most characters of a provider's words that are kept.
const WORDS_MAX: usize = 200;

/// A call that has no result.
#[derive(Debug, Error)]
#[error("the {provider} provider at {address} did not {operation}")]
pub(super) struct CallFailed {
    pub(super) provider: &'static str,
    pub(super) address: String,
    pub(super) operation: &'static str,
    #[source]
    pub(super) cause: Cause,
}

/// What was in the way.
#[derive(Debug, Error)]
pub(super) enum Cause {
    #[error("it was not asked: too many calls are under way")]
    Full(#[from] BulkheadFull),
    #[error("it was not asked: it failed too often")]
    Open(#[from] CircuitOpen),
    #[error("it was not asked: no more calls are allowed now")]
    Limited(#[from] RateLimited),
    #[error("the request cannot be made")]
    Request(#[source] anyhow::Error),
    #[error("no connection; is it running?")]
    NotConnected(#[source] reqwest::Error),
    #[error("no answer within {after:?}; it may have done the work or not")]
    NotAnswered { after: Duration },
    #[error("the connection broke before the answer; it may have done the work or not")]
    Broken(#[source] reqwest::Error),
    #[error("the answer has more than {most} bytes; it may have done the work or not")]
    TooLong { most: usize },
    #[error("the answer is not JSON; it may have done the work or not")]
    Body(#[source] serde_json::Error),
    #[error("it answered {status}: {words}")]
    Status {
        status: u16,
        words: String,
        retry_after: Option<Duration>,
    },
}

impl Cause {
    /// An answer that is no success.
    pub(super) fn status(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        Self::Status {
            status,
            words: words(body),
            retry_after,
        }
    }

    /// What it says about the work. When in doubt, unknown.
    pub(super) fn kind(&self) -> FailureKind {
        match self {
            Self::Full(_) | Self::Open(_) | Self::Limited(_) | Self::NotConnected(_) => {
                FailureKind::Technical
            }
            // It would be as wrong the next time.
            Self::Request(_) => FailureKind::Refused,
            Self::NotAnswered { .. } | Self::Broken(_) | Self::TooLong { .. } | Self::Body(_) => {
                FailureKind::Unknown
            }
            Self::Status { status, .. } => match status {
                // Too slow to be read, too early, too many, not now: the request was turned away as a whole.
                408 | 425 | 429 | 503 => FailureKind::Technical,
                400..=499 => FailureKind::Refused,
                _ => FailureKind::Unknown,
            },
        }
    }

    /// Whether the provider is at fault, so that it should be left alone. Only of calls that were made.
    pub(super) fn is_failure_of_provider(&self) -> bool {
        match self {
            Self::Full(_) | Self::Open(_) | Self::Limited(_) | Self::Request(_) => false,
            Self::NotConnected(_)
            | Self::NotAnswered { .. }
            | Self::Broken(_)
            | Self::TooLong { .. }
            | Self::Body(_) => true,
            // A refusal is an answer, and so is "too many".
            Self::Status { status, .. } => !(400..=499).contains(status),
        }
    }

    pub(super) fn is_timeout(&self) -> bool {
        match self {
            Self::NotAnswered { .. } => true,
            Self::NotConnected(error) => error.is_timeout(),
            Self::Full(_)
            | Self::Open(_)
            | Self::Limited(_)
            | Self::Request(_)
            | Self::Broken(_)
            | Self::TooLong { .. }
            | Self::Body(_)
            | Self::Status { .. } => false,
        }
    }

    /// How long the provider wants to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status {
                status: 429 | 503,
                retry_after,
                ..
            } => *retry_after,
            Self::Status { .. }
            | Self::Full(_)
            | Self::Open(_)
            | Self::Limited(_)
            | Self::Request(_)
            | Self::NotConnected(_)
            | Self::NotAnswered { .. }
            | Self::Broken(_)
            | Self::TooLong { .. }
            | Self::Body(_) => None,
        }
    }
}

/// The word for a kind in metrics.
pub(super) fn label(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Refused => "refused",
        FailureKind::Technical => "technical",
        FailureKind::Unknown => "unknown",
    }
}

/// Reads `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3).
pub(super) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let pause = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text)
            .ok()?
            .duration_since(now)
            .unwrap_or_default(),
    };
    Some(pause.min(PAUSE_MAX))
}

/// The `detail` or `title` of a problem (RFC 9457), else the beginning of the text; one line.
fn words(body: &[u8]) -> String {
    let problem: Option<Value> = serde_json::from_slice(body).ok();
    let said = problem
        .as_ref()
        .and_then(|problem| problem.get("detail").or_else(|| problem.get("title")))
        .and_then(Value::as_str);
    let text = said.map_or_else(|| String::from_utf8_lossy(body), Into::into);
    let line = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(WORDS_MAX)
        .collect::<String>();
    match line.trim() {
        "" => "no words".to_owned(),
        line => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_became_of_the_work() {
        for (status, kind, at_fault) in [
            (400, FailureKind::Refused, false),
            (402, FailureKind::Refused, false),
            (404, FailureKind::Refused, false),
            (408, FailureKind::Technical, false),
            (409, FailureKind::Refused, false),
            (422, FailureKind::Refused, false),
            (425, FailureKind::Technical, false),
            (429, FailureKind::Technical, false),
            (500, FailureKind::Unknown, true),
            (502, FailureKind::Unknown, true),
            (503, FailureKind::Technical, true),
            (504, FailureKind::Unknown, true),
            (302, FailureKind::Unknown, true),
        ] {
            let cause = Cause::status(status, None, b"");
            assert_eq!(cause.kind(), kind, "{status}");
            assert_eq!(cause.is_failure_of_provider(), at_fault, "{status}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let seconds = |text| retry_after(text, now).map(|pause| pause.as_secs());
        assert_eq!(seconds("3"), Some(3));
        assert_eq!(seconds(" 0 "), Some(0));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:50 GMT"), Some(13));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:00 GMT"), Some(0));
        assert_eq!(seconds("86400"), Some(600));
        for text in ["", "-1", "soon", "1.5"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn only_429_and_503_may_ask_for_a_pause() {
        let pause = Some(Duration::from_secs(2));
        for (status, asked) in [(429, pause), (503, pause), (500, None), (402, None)] {
            assert_eq!(Cause::status(status, pause, b"").retry_after(), asked);
        }
    }

    #[test]
    fn the_words_of_a_provider_are_one_short_line() {
        assert_eq!(
            words(br#"{"title":"Conflict","detail":"undone before"}"#),
            "undone before"
        );
        assert_eq!(words(br#"{"title":"Conflict"}"#), "Conflict");
        assert_eq!(words(b"<h1>\nBad\x1b[31m"), "<h1> Bad [31m");
        assert_eq!(words(b""), "no words");
        assert_eq!(words("ä".repeat(1000).as_bytes()).chars().count(), 200);
    }
}
