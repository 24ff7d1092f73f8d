//! An outbox row as an event, and the envelope it is published in (pure).
//!
//! The binlog and the claimer both hand in [`Datum`]s, so what follows is the same either way.

use std::fmt;

/// One column value of an outbox row, the same whether it came from the binlog or from a query.
#[derive(Debug, Clone, PartialEq)]
pub enum Datum {
    /// SQL NULL.
    Null,
    /// Any signed integer column.
    Int(i64),
    /// Any unsigned integer column (YEAR, BIT and unsigned integers).
    UInt(u64),
    /// Text, binary, ENUM and SET labels, DECIMAL, DATE, TIME and floats: the bytes that `SELECT` would send.
    Bytes(Vec<u8>),
    /// DATETIME and TIMESTAMP, in microseconds since 1970-01-01T00:00:00 (UTC is assumed for DATETIME).
    Micros(i64),
}

/// A key of the application's choice: a number or a text (UUIDs among them).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A signed integer column.
    Int(i64),
    /// An unsigned integer column.
    UInt(u64),
    /// A text column.
    Text(Box<str>),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Int(n) => n.fmt(f),
            Key::UInt(n) => n.fmt(f),
            Key::Text(s) => s.fmt(f),
        }
    }
}

/// A column of the outbox table that the relay reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Whether there is no event without it.
    pub required: bool,
}

const fn field(name: &'static str, required: bool) -> Field {
    Field { name, required }
}

/// The columns read, in the order in which [`OutboxEvent::from_row`] takes their values.
pub const FIELDS: [Field; 9] = [
    field("id", true),
    field("aggregate_type", true),
    field("aggregate_id", true),
    field("event_type", true),
    field("payload", true),
    field("idempotency_key", true),
    field("created_at", false),
    field("headers", false),
    field("status", false),
];

/// An outbox row.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxEvent {
    /// Primary key of the row.
    pub id: Key,
    /// Kind of the aggregate, such as `order`.
    pub aggregate_type: Box<str>,
    /// Which aggregate.
    pub aggregate_id: Key,
    /// What happened, such as `OrderCreated`.
    pub event_type: Box<str>,
    /// JSON text, byte for byte as `SELECT payload` sends it.
    pub payload: Vec<u8>,
    /// The message id: consumers recognise a duplicate by it.
    pub idempotency_key: Box<str>,
    /// Microseconds since 1970.
    pub created_at: Option<i64>,
    /// A flat JSON object of extra message headers.
    pub headers: Option<Vec<u8>>,
    /// When its transaction was committed, in microseconds since 1970, where the source tells.
    pub committed_at: Option<i64>,
    /// Why this row can never be published as it is, if so.
    pub defect: Option<Box<str>>,
}

impl OutboxEvent {
    /// The event of a row, or `None` where the row's status says that it is not to be published
    /// (`PUBLISHED` or `FAILED`: a restored backup, a row moved by hand).
    ///
    /// A value that can't be used does not fail the source: the event carries the [`defect`](Self::defect)
    /// and becomes a dead letter.
    pub fn from_row(row: [Datum; FIELDS.len()]) -> Option<Self> {
        let [
            id,
            aggregate_type,
            aggregate_id,
            event_type,
            payload,
            key,
            created,
            headers,
            status,
        ] = row;
        if let Datum::Bytes(status) = &status
            && (status == b"PUBLISHED" || status == b"FAILED")
        {
            return None;
        }
        let mut defect = None;
        let mut event = Self {
            id: key_of("id", id, &mut defect),
            aggregate_type: text_of("aggregate_type", aggregate_type, &mut defect),
            aggregate_id: key_of("aggregate_id", aggregate_id, &mut defect),
            event_type: text_of("event_type", event_type, &mut defect),
            payload: bytes_of("payload", payload, &mut defect),
            idempotency_key: text_of("idempotency_key", key, &mut defect),
            created_at: if let Datum::Micros(micros) = created {
                Some(micros)
            } else {
                None
            },
            headers: if let Datum::Bytes(bytes) = headers {
                Some(bytes)
            } else {
                None
            },
            committed_at: None,
            defect: None,
        };
        if defect.is_none()
            && serde_json::from_slice::<serde::de::IgnoredAny>(&event.payload).is_err()
        {
            defect = Some("payload is not valid JSON".to_owned());
        }
        event.defect = defect.map(String::into_boxed_str);
        Some(event)
    }

    /// Bytes that the event takes while it is held, roughly.
    pub fn weight(&self) -> usize {
        // The fixed part covers the struct, its boxes and its entry in the window.
        320 + self.payload.len()
            + self.headers.as_ref().map_or(0, Vec::len)
            + self.aggregate_type.len()
            + self.event_type.len()
            + self.idempotency_key.len()
    }

    /// The message body: the payload with the row's other fields round it.
    pub fn envelope(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.payload.len() + 256);
        body.extend_from_slice(b"{\"event_id\":");
        json_key(&mut body, &self.id);
        body.extend_from_slice(b",\"event_type\":");
        json_text(&mut body, &self.event_type);
        body.extend_from_slice(b",\"aggregate_type\":");
        json_text(&mut body, &self.aggregate_type);
        body.extend_from_slice(b",\"aggregate_id\":");
        json_key(&mut body, &self.aggregate_id);
        body.extend_from_slice(b",\"idempotency_key\":");
        json_text(&mut body, &self.idempotency_key);
        body.extend_from_slice(b",\"created_at\":");
        match self.created_at {
            Some(micros) => json_text(&mut body, &rfc3339(micros)),
            None => body.extend_from_slice(b"null"),
        }
        body.extend_from_slice(b",\"payload\":");
        body.extend_from_slice(&self.payload);
        body.push(b'}');
        body
    }
}

fn key_of(column: &str, datum: Datum, defect: &mut Option<String>) -> Key {
    match datum {
        Datum::Int(number) => Key::Int(number),
        Datum::UInt(number) => Key::UInt(number),
        other @ (Datum::Null | Datum::Bytes(_) | Datum::Micros(_)) => {
            Key::Text(text_of(column, other, defect))
        }
    }
}

fn text_of(column: &str, datum: Datum, defect: &mut Option<String>) -> Box<str> {
    match datum {
        Datum::Bytes(bytes) => match String::from_utf8(bytes) {
            Ok(text) => text.into_boxed_str(),
            Err(error) => {
                note(defect, column, "is not valid UTF-8");
                String::from_utf8_lossy(error.as_bytes()).into()
            }
        },
        Datum::Int(number) => number.to_string().into(),
        Datum::UInt(number) => number.to_string().into(),
        Datum::Micros(micros) => rfc3339(micros).into(),
        Datum::Null => {
            note(defect, column, "is NULL");
            "".into()
        }
    }
}

fn bytes_of(column: &str, datum: Datum, defect: &mut Option<String>) -> Vec<u8> {
    match datum {
        Datum::Bytes(bytes) => bytes,
        Datum::Null => {
            note(defect, column, "is NULL");
            b"null".to_vec()
        }
        Datum::Int(_) | Datum::UInt(_) | Datum::Micros(_) => {
            note(defect, column, "is neither JSON nor text");
            b"null".to_vec()
        }
    }
}

fn note(defect: &mut Option<String>, column: &str, what: &str) {
    defect.get_or_insert_with(|| format!("column {column} {what}"));
}

fn json_key(body: &mut Vec<u8>, key: &Key) {
    match key {
        Key::Int(_) | Key::UInt(_) => body.extend_from_slice(key.to_string().as_bytes()),
        Key::Text(text) => json_text(body, text),
    }
}

/// A JSON string: quotes, backslashes and control characters escaped, all else as it is.
fn json_text(body: &mut Vec<u8>, text: &str) {
    body.push(b'"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..=0x1f => b"",
            _ => continue,
        };
        body.extend_from_slice(text.as_bytes().get(plain..at).unwrap_or_default());
        if escape.is_empty() {
            body.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
        } else {
            body.extend_from_slice(escape);
        }
        plain = at + 1;
    }
    body.extend_from_slice(text.as_bytes().get(plain..).unwrap_or_default());
    body.push(b'"');
}

/// `2026-12-01T09:30:00.123456Z`: six digits always, so that text order is time order.
pub fn rfc3339(micros: i64) -> String {
    let seconds = micros.div_euclid(1_000_000);
    let fraction = micros.rem_euclid(1_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
}

/// Days since 1970-01-01 to a date of the proleptic Gregorian calendar (Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms"): years start in March, eras are 400 of them.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn event(id: i64, aggregate: i64) -> OutboxEvent {
        OutboxEvent::from_row(row(id, aggregate)).unwrap()
    }

    fn text(text: &str) -> Datum {
        Datum::Bytes(text.as_bytes().to_vec())
    }

    fn row(id: i64, aggregate: i64) -> [Datum; FIELDS.len()] {
        [
            Datum::Int(id),
            text("order"),
            Datum::Int(aggregate),
            text("OrderCreated"),
            text("{\"total\": 5}"),
            text(&format!("order:{id}:created")),
            Datum::Micros(1_764_581_400_123_456),
            Datum::Null,
            text("PENDING"),
        ]
    }

    #[test]
    fn the_envelope_is_the_contract() {
        assert_eq!(
            String::from_utf8(event(501, 1001).envelope()).unwrap(),
            "{\"event_id\":501,\"event_type\":\"OrderCreated\",\"aggregate_type\":\"order\",\
             \"aggregate_id\":1001,\"idempotency_key\":\"order:501:created\",\
             \"created_at\":\"2025-12-01T09:30:00.123456Z\",\"payload\":{\"total\": 5}}"
        );
    }

    #[test]
    fn published_and_failed_rows_are_no_events() {
        for (status, is_event) in [
            ("PENDING", true),
            ("PROCESSING", true),
            ("PUBLISHED", false),
            ("FAILED", false),
        ] {
            let mut row = row(1, 1);
            row[8] = text(status);
            assert_eq!(OutboxEvent::from_row(row).is_some(), is_event, "{status}");
        }
    }

    #[test]
    fn unusable_values_become_defects() {
        for (column, value, word) in [
            (1, Datum::Bytes(vec![0xff]), "UTF-8"),
            (4, text("not json"), "JSON"),
            (4, Datum::Null, "NULL"),
            (5, Datum::Null, "NULL"),
        ] {
            let mut row = row(1, 1);
            row[column] = value;
            let defect = OutboxEvent::from_row(row).unwrap().defect.unwrap();
            assert!(defect.contains(word), "{defect}");
        }
    }

    #[test]
    fn dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999999Z");
        assert_eq!(rfc3339(951_782_400_000_000), "2000-02-29T00:00:00.000000Z");
        assert_eq!(
            rfc3339(253_402_300_799_999_999),
            "9999-12-31T23:59:59.999999Z"
        );
    }

    proptest! {
        #[test]
        fn any_text_survives_the_envelope(
            aggregate_type in ".*", event_type in ".*", key in ".*", id in any::<u64>()
        ) {
            let mut row = row(1, 1);
            row[0] = Datum::UInt(id);
            row[1] = text(&aggregate_type);
            row[2] = text(&key);
            row[3] = text(&event_type);
            let body = OutboxEvent::from_row(row).unwrap().envelope();
            let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
            prop_assert_eq!(json["event_id"].as_u64(), Some(id));
            prop_assert_eq!(json["aggregate_type"].as_str(), Some(aggregate_type.as_str()));
            prop_assert_eq!(json["aggregate_id"].as_str(), Some(key.as_str()));
            prop_assert_eq!(json["event_type"].as_str(), Some(event_type.as_str()));
        }
    }
}
