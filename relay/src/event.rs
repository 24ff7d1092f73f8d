//! An outbox row as an event, and the envelope it is published in (pure).

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
    /// An unsigned integer column beyond the signed range.
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
