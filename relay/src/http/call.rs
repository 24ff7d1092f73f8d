//! What an admin call asks for (pure).

use std::borrow::Cow;

use hyper::Method;

use crate::config::duration;
use crate::dead_letter::{Filter, MOST_LETTERS};

/// Letters of a call that names no limit.
const PAGE: usize = 50;
/// Letters of one replay of many at the most, so that the call ends in time.
const MOST_REPLAYED: usize = 1000;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Call {
    Look(Look),
    Change(Change),
}

/// Nothing is changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    List { filter: Filter, limit: usize },
    Show(i64),
}

/// Something is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Replay(i64),
    ReplayAll { filter: Filter, limit: usize },
    Discard(i64),
}

/// Why it is no call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoCall {
    NoSuchPage,
    /// The page takes these methods.
    Method(&'static str),
    /// What is wrong with the query.
    Query(String),
}

impl Call {
    /// Reads method, path and query.
    pub(super) fn of(method: &Method, path: &str, query: &str) -> Result<Self, NoCall> {
        let path: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match path.as_slice() {
            ["dlq"] if *method == Method::GET => {
                let (filter, limit) = filtered(query, MOST_LETTERS)?;
                Ok(Call::Look(Look::List { filter, limit }))
            }
            ["dlq", "replay"] if *method == Method::POST => {
                let (filter, limit) = filtered(query, MOST_REPLAYED)?;
                Ok(Call::Change(Change::ReplayAll { filter, limit }))
            }
            ["dlq", "replay"] => Err(NoCall::Method("POST")),
            ["dlq", id, "replay"] if *method == Method::POST => {
                Ok(Call::Change(Change::Replay(letter(id)?)))
            }
            ["dlq", id] if *method == Method::GET => Ok(Call::Look(Look::Show(letter(id)?))),
            ["dlq", id] if *method == Method::DELETE => {
                Ok(Call::Change(Change::Discard(letter(id)?)))
            }
            ["dlq"] => Err(NoCall::Method("GET")),
            ["dlq", _, "replay"] => Err(NoCall::Method("POST")),
            ["dlq", _] => Err(NoCall::Method("GET, DELETE")),
            _ => Err(NoCall::NoSuchPage),
        }
    }
}

fn letter(text: &str) -> Result<i64, NoCall> {
    let id = text.parse().ok().filter(|id| *id > 0);
    id.ok_or(NoCall::NoSuchPage)
}

fn filtered(query: &str, most: usize) -> Result<(Filter, usize), NoCall> {
    let mut filter = Filter::default();
    let mut limit = PAGE;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value).ok_or_else(|| {
            NoCall::Query(format!("the value of {name} is not percent-encoded UTF-8"))
        })?;
        let wrong = |allowed: &str| NoCall::Query(format!("{name} must be {allowed}"));
        match name {
            "type" => filter.event_type = Some(value.into_owned()),
            "error" => filter.error = Some(value.into_owned()),
            "since" => {
                let since = duration(&value).map_err(|_| wrong("a duration such as 30m or 24h"))?;
                filter.since = Some(since);
            }
            "after" => {
                let id = value.parse().ok().filter(|id| *id >= 0);
                filter.after = Some(id.ok_or_else(|| wrong("the number of a letter"))?);
            }
            "limit" => {
                let number = value.parse().ok().filter(|n| (1..=most).contains(n));
                limit = number.ok_or_else(|| wrong(&format!("a number from 1 to {most}")))?;
            }
            _ => {
                return Err(NoCall::Query(format!(
                    "there is no {name}, but type, error, since, after and limit"
                )));
            }
        }
    }
    Ok((filter, limit))
}

/// A value of a query: `+` is a space, `%XX` a byte.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => hex(rest.next()?)? << 4 | hex(rest.next()?)?,
            other => other,
        });
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn calls_are_read() {
        let of = |method: Method, path, query| Call::of(&method, path, query);
        let list = |filter, limit| Ok(Call::Look(Look::List { filter, limit }));
        assert_eq!(of(Method::GET, "/dlq", ""), list(Filter::default(), PAGE));
        let filter = Filter {
            event_type: Some("Order Created".to_owned()),
            error: Some("я&".to_owned()),
            since: Some(Duration::from_secs(3600)),
            after: Some(7),
        };
        let query = "type=Order+Created&error=%d1%8F%26&since=1h&after=7&limit=3";
        assert_eq!(of(Method::GET, "/dlq", query), list(filter, 3));
        let all = Change::ReplayAll {
            filter: Filter::default(),
            limit: 1000,
        };
        for (method, path, query, call) in [
            (Method::GET, "/dlq/5", "", Call::Look(Look::Show(5))),
            (
                Method::DELETE,
                "/dlq/5",
                "",
                Call::Change(Change::Discard(5)),
            ),
            (
                Method::POST,
                "/dlq/5/replay",
                "",
                Call::Change(Change::Replay(5)),
            ),
            (Method::POST, "/dlq/replay", "limit=1000", Call::Change(all)),
        ] {
            assert_eq!(of(method, path, query), Ok(call), "{path}");
        }
    }

    #[test]
    fn what_is_no_call_changes_nothing() {
        for (method, path, no) in [
            (Method::DELETE, "/dlq", NoCall::Method("GET")),
            (Method::GET, "/dlq/replay", NoCall::Method("POST")),
            (Method::GET, "/dlq/5/replay", NoCall::Method("POST")),
            (Method::POST, "/dlq/5", NoCall::Method("GET, DELETE")),
            (Method::GET, "/dlq/x", NoCall::NoSuchPage),
            (Method::DELETE, "/dlq/-5", NoCall::NoSuchPage),
            (Method::DELETE, "/dlq/0", NoCall::NoSuchPage),
            (Method::GET, "/dlq/5/6", NoCall::NoSuchPage),
            (Method::GET, "/dlq/", NoCall::NoSuchPage),
        ] {
            assert_eq!(Call::of(&method, path, ""), Err(no), "{path}");
        }
        for query in [
            "typ=x",
            "limit=0",
            "limit=1001",
            "since=soon",
            "after=-1",
            "type=%zz",
            "type=%ff",
            "type=%4",
        ] {
            let call = Call::of(&Method::POST, "/dlq/replay", query);
            assert!(matches!(call, Err(NoCall::Query(_))), "{query}");
        }
    }
}
