//! What a dead letter's table can hold of an event (pure): whatever it is that made the event fail, its letter has to be
//! written, or the checkpoint stands still behind it.

use serde::de::IgnoredAny;
use serde_json::json;

use crate::table::{ERROR_CHARS, first_chars};

/// Characters of the kind of event, by its column.
const EVENT_TYPE_CHARS: usize = 128;
/// Characters of the row's key, by its column.
const KEY_CHARS: usize = 255;
/// Bytes of a payload that are kept where it can't be kept whole.
const EXCERPT_BYTES: usize = 64 << 10;

/// How a payload is stored, each way with less demands than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The document that it is. The server refuses some: too deep, numbers beyond a double, half a surrogate pair.
    Json,
    /// A JSON string of what can be read of it.
    Text,
    /// How long it is and how it begins.
    Excerpt,
}

impl Form {
    /// The first to try for a payload, where a statement has room for that many bytes of it.
    pub(super) fn first(payload: &[u8], room: usize) -> Self {
        let is_json = std::str::from_utf8(payload).is_ok()
            && serde_json::from_slice::<IgnoredAny>(payload).is_ok();
        if !is_json {
            Form::Text.fitting(payload, room)
        } else if payload.len() <= room {
            Form::Json
        } else {
            Form::Excerpt
        }
    }

    /// The next to try after the server refused this one.
    pub(super) fn next(self, payload: &[u8], room: usize) -> Option<Self> {
        match self {
            Form::Json => Some(Form::Text.fitting(payload, room)),
            Form::Text => Some(Form::Excerpt),
            Form::Excerpt => None,
        }
    }

    /// This one, or an excerpt where it may be too long.
    fn fitting(self, payload: &[u8], room: usize) -> Self {
        // A control character takes six bytes in a JSON string.
        if payload.len().saturating_mul(6) > room {
            Form::Excerpt
        } else {
            self
        }
    }

    /// The payload in this form: JSON in any case.
    pub(super) fn of(self, payload: &[u8]) -> Vec<u8> {
        let value = match self {
            Form::Json => return payload.to_vec(),
            Form::Text => json!(String::from_utf8_lossy(payload)),
            Form::Excerpt => {
                let begin = payload.get(..EXCERPT_BYTES).unwrap_or(payload);
                json!({
                    "truncated": "the payload is too large for this table: the outbox row has it whole",
                    "bytes": payload.len(),
                    "begins": String::from_utf8_lossy(begin),
                })
            }
        };
        value.to_string().into_bytes()
    }
}

/// Bytes of a payload that a statement and a later answer with it have room for, on a server with that
/// `max_allowed_packet`: the server puts spaces into JSON, and the other values want some room too.
pub(super) fn room(max_allowed_packet: u64) -> usize {
    usize::try_from(max_allowed_packet / 2).unwrap_or(usize::MAX)
}

/// The kind of event as its column takes it.
pub(super) fn event_type(text: &str) -> &str {
    first_chars(text, EVENT_TYPE_CHARS)
}

/// The key as its column takes it.
pub(super) fn key(text: &str) -> &str {
    first_chars(text, KEY_CHARS)
}

/// An error as its column takes it.
pub(super) fn error(text: &str) -> &str {
    first_chars(text, ERROR_CHARS)
}

/// Whether the server refuses a value for what it is, so that it will refuse it again: not JSON (3140, 3141), too deep
/// (3157), of another character set (1300, 1366, 3144), too long (1105, 1118, 1153, 1301, 1406, 3150), or against MariaDB's check
/// of a JSON column (4025).
pub(super) fn is_refusal(code: Option<u16>) -> bool {
    matches!(
        code,
        Some(
            1105 | 1118
                | 1153
                | 1300
                | 1301
                | 1366
                | 1406
                | 3140
                | 3141
                | 3144
                | 3150
                | 3157
                | 4025
        )
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_payload_is_kept_as_whole_as_it_can_be() {
        for (payload, room, form) in [
            (&b"{\"a\": 1}"[..], 8, Form::Json),
            (b"{\"a\": 1}", 7, Form::Excerpt),
            (b"a\"b", 18, Form::Text),
            (b"a\"b", 17, Form::Excerpt),
            // Not the encoding that JSON has.
            (b"\"\xff\"", 100, Form::Text),
        ] {
            assert_eq!(Form::first(payload, room), form, "{payload:?}");
        }
        let deep = [vec![b'['; 300], vec![b']'; 300]].concat();
        assert_eq!(Form::first(&deep, 10_000), Form::Json);
        assert_eq!(Form::Json.next(&deep, 10_000), Some(Form::Text));
        assert_eq!(Form::Json.next(&deep, 1_000), Some(Form::Excerpt));
        assert_eq!(Form::Text.next(&deep, 10_000), Some(Form::Excerpt));
        assert_eq!(Form::Excerpt.next(&deep, 10_000), None);
    }

    proptest! {
        #[test]
        fn every_form_is_json_within_its_bound(
            payload in prop::collection::vec(any::<u8>(), 0..300), room in 0_usize..2_000
        ) {
            let mut form = Some(Form::first(&payload, room));
            while let Some(now) = form {
                let stored = now.of(&payload);
                prop_assert!(serde_json::from_slice::<serde_json::Value>(&stored).is_ok());
                // An excerpt is small beside any server's bound.
                prop_assert!(now == Form::Excerpt || stored.len() <= room.max(2));
                form = now.next(&payload, room);
            }
        }
    }
}
