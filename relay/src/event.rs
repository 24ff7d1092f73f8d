//! An outbox row as an event (pure).
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
    /// The 16 bytes of a `BINARY(16)` column that holds a key.
    Uuid([u8; 16]),
    /// DATETIME and TIMESTAMP, in microseconds since 1970-01-01T00:00:00 (UTC is assumed for DATETIME).
    Micros(i64),
}

/// A key of the application's choice: a number, a UUID or a text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A signed integer column.
    Int(i64),
    /// An unsigned integer column.
    UInt(u64),
    /// A `BINARY(16)` column: a UUID in its 16 bytes.
    Uuid([u8; 16]),
    /// A text column.
    Text(Box<str>),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Int(n) => n.fmt(f),
            Key::UInt(n) => n.fmt(f),
            Key::Uuid(bytes) => uuid::Uuid::from_bytes(*bytes).fmt(f),
            Key::Text(s) => s.fmt(f),
        }
    }
}

/// A column of the outbox table that the relay reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// What it is called here, and in the table unless the configuration maps it.
    pub name: &'static str,
    /// Whether there is no event without it.
    pub required: bool,
}

const fn field(name: &'static str, required: bool) -> Field {
    Field { name, required }
}

/// The columns read, in the order in which [`OutboxEvent::from_row`] takes their values.
pub const FIELDS: [Field; 12] = [
    field("id", true),
    field("aggregate_type", true),
    field("aggregate_id", true),
    field("event_type", true),
    field("payload", true),
    field("idempotency_key", true),
    field("created_at", false),
    field("headers", false),
    field("status", false),
    field("exchange", false),
    field("routing_key", false),
    field("attempts", false),
];

/// Place of the primary key among [`FIELDS`].
pub const ID: usize = 0;
/// Place of the status among [`FIELDS`].
pub const STATUS: usize = 8;

/// The values of [`FIELDS`] in a row; NULL where the table has no such column.
pub type Row = [Datum; FIELDS.len()];

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
    /// The exchange that the row asks for, where the table has a column for it.
    pub exchange: Option<Box<str>>,
    /// The routing key that the row asks for, where the table has a column for it.
    pub routing_key: Option<Box<str>>,
    /// Failed attempts that the row knows of.
    pub attempts: u32,
    /// When its transaction was committed, in microseconds since 1970, where the source tells.
    pub committed_at: Option<i64>,
    /// Why this row can never be published as it is, if so.
    pub defect: Option<Box<str>>,
}

impl OutboxEvent {
    /// Whether both are of one aggregate.
    pub fn is_of_the_aggregate_of(&self, other: &OutboxEvent) -> bool {
        (&self.aggregate_type, &self.aggregate_id) == (&other.aggregate_type, &other.aggregate_id)
    }

    /// The event of a row, or `None` where the row's status says that it is not to be published
    /// (`PUBLISHED` or `FAILED`: a restored backup, a row moved by hand).
    ///
    /// A value that can't be used does not fail the source: the event carries the [`defect`](Self::defect)
    /// and becomes a dead letter.
    pub fn from_row(row: Row) -> Option<Self> {
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
            exchange,
            routing_key,
            attempts,
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
            exchange: optional_text_of("exchange", exchange, &mut defect),
            routing_key: optional_text_of("routing_key", routing_key, &mut defect),
            attempts: match attempts {
                Datum::Int(count) => u32::try_from(count).unwrap_or(0),
                Datum::UInt(count) => u32::try_from(count).unwrap_or(0),
                Datum::Null | Datum::Bytes(_) | Datum::Micros(_) | Datum::Uuid(_) => 0,
            },
            committed_at: None,
            defect: None,
        };
        if defect.is_none() && !is_json(&event.payload) {
            defect = Some("payload is not valid JSON in UTF-8".to_owned());
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
}

/// Whether bytes are a JSON document; what is skipped in a string is not looked at by the parser.
fn is_json(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok()
        && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

fn key_of(column: &str, datum: Datum, defect: &mut Option<String>) -> Key {
    match datum {
        Datum::Int(number) => Key::Int(number),
        Datum::UInt(number) => Key::UInt(number),
        Datum::Uuid(bytes) => Key::Uuid(bytes),
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
        Datum::Uuid(bytes) => Key::Uuid(bytes).to_string().into(),
        Datum::Micros(micros) => rfc3339(micros).into(),
        Datum::Null => {
            note(defect, column, "is NULL");
            "".into()
        }
    }
}

fn optional_text_of(column: &str, datum: Datum, defect: &mut Option<String>) -> Option<Box<str>> {
    match datum {
        Datum::Null => None,
        given => Some(text_of(column, given, defect)),
    }
}

fn bytes_of(column: &str, datum: Datum, defect: &mut Option<String>) -> Vec<u8> {
    match datum {
        Datum::Bytes(bytes) => bytes,
        Datum::Null => {
            note(defect, column, "is NULL");
            b"null".to_vec()
        }
        Datum::Int(_) | Datum::UInt(_) | Datum::Micros(_) | Datum::Uuid(_) => {
            note(defect, column, "is neither JSON nor text");
            b"null".to_vec()
        }
    }
}

fn note(defect: &mut Option<String>, column: &str, what: &str) {
    defect.get_or_insert_with(|| format!("column {column} {what}"));
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
    use super::*;

    pub(crate) fn event(id: i64, aggregate: i64) -> OutboxEvent {
        OutboxEvent::from_row(row(id, aggregate)).unwrap()
    }

    fn text(text: &str) -> Datum {
        Datum::Bytes(text.as_bytes().to_vec())
    }

    fn row(id: i64, aggregate: i64) -> Row {
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
            Datum::Null,
            Datum::Null,
            Datum::Int(0),
        ]
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
            row[STATUS] = text(status);
            assert_eq!(OutboxEvent::from_row(row).is_some(), is_event, "{status}");
        }
    }

    #[test]
    fn unusable_values_become_defects() {
        for (column, value, word) in [
            (1, Datum::Bytes(vec![0xff]), "UTF-8"),
            (4, text("not json"), "JSON"),
            (4, Datum::Bytes(b"{\"a\": \"\xff\"}".to_vec()), "UTF-8"),
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
}
