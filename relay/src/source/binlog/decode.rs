//! Binlog event bodies → values (pure): what the relay needs, for its outbox table alone.
//!
//! Input is an event's body: without the 19-byte header and without the checksum, which the caller has
//! verified. Nothing here trusts it: every length and offset is checked, allocations are bounded by the bytes
//! at hand, and no input panics or loops.
//!
//! ```text
//! TABLE_MAP ──peek──▶ ours? ──TableMap::parse──▶ RowPlan::new(columns wanted) ─┐
//! WRITE_ROWS ──(uncompress)──▶ RowsEvent::parse ──rows(plan)──▶ Rows::next_row ▶ [Datum; N]
//! ```
//!
//! A row is cut into its columns first, whatever their types, and only the wanted slices are decoded: a
//! column type that is unknown stops the table it stands in, never another one.
//!
//! Formats: MySQL source documentation, "Binlog event" (`mysql::binlog::event` classes), and MariaDB's
//! `sql/log_event.cc`.

mod charset;
mod column;
mod compressed;
mod decimal;
mod declared;
mod float;
mod gtid;
mod reader;
mod rows;
mod statement;
mod table_map;
mod temporal;
#[cfg(test)]
mod tests;
mod value;
mod xa;

use thiserror::Error;

use super::jsonb::JsonbError;

pub use charset::Charset;
pub use column::{Column, ColumnKind};
pub use compressed::{uncompress_query, uncompress_rows};
pub use gtid::{Gtid, GtidList, GtidListEntry, MariaDbGtidEvent};
pub use rows::{ColumnRef, RowPlan, Rows, RowsEvent};
pub use statement::{Query, Rotate};
pub use table_map::{TableMap, TableName};
pub use xa::{XaPrepare, XaStatement, XaVerb, Xid};

pub(crate) use decimal::write_decimal;
pub(crate) use float::write_double;
pub(crate) use reader::Reader;
pub(crate) use temporal::{write_packed_datetime, write_packed_time};

/// Event types, by their numbers on the wire (`enum Log_event_type` of both servers).
pub mod event_type {
    /// `QUERY_EVENT`: BEGIN, DDL, XA statements.
    pub const QUERY: u8 = 2;
    /// `ROTATE_EVENT`.
    pub const ROTATE: u8 = 4;
    /// `TABLE_MAP_EVENT`.
    pub const TABLE_MAP: u8 = 19;
    /// `WRITE_ROWS_EVENT_V1`: MariaDB, and MySQL with `log_bin_use_v1_row_events`.
    pub const WRITE_ROWS_V1: u8 = 23;
    /// `WRITE_ROWS_EVENT`.
    pub const WRITE_ROWS: u8 = 30;
    /// `GTID_LOG_EVENT` of MySQL.
    pub const GTID: u8 = 33;
    /// `ANONYMOUS_GTID_LOG_EVENT` of MySQL.
    pub const ANONYMOUS_GTID: u8 = 34;
    /// `XA_PREPARE_LOG_EVENT`.
    pub const XA_PREPARE: u8 = 38;
    /// `GTID_EVENT` of MariaDB.
    pub const MARIADB_GTID: u8 = 162;
    /// `GTID_LIST_EVENT` of MariaDB.
    pub const MARIADB_GTID_LIST: u8 = 163;
    /// `QUERY_COMPRESSED_EVENT` of MariaDB.
    pub const MARIADB_QUERY_COMPRESSED: u8 = 165;
    /// `WRITE_ROWS_COMPRESSED_EVENT_V1` of MariaDB.
    pub const MARIADB_WRITE_ROWS_COMPRESSED_V1: u8 = 166;
    /// `WRITE_ROWS_COMPRESSED_EVENT` of MariaDB.
    pub const MARIADB_WRITE_ROWS_COMPRESSED: u8 = 169;
}

/// Bytes that can't be decoded. None of its messages holds any of them.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Bytes end before the object does, or a length in it points past its end.
    #[error("{what} is cut short or malformed at byte {offset}")]
    Cut {
        /// What was being read.
        what: &'static str,
        /// Where, from the start of the event body.
        offset: usize,
    },
    /// A row ends within a column.
    #[error(
        "row {row} of table {table} is cut short or malformed in column {column}, at byte {offset}"
    )]
    Row {
        /// Schema and table.
        table: Box<str>,
        /// Which column.
        column: Box<str>,
        /// Row number within the event, from 0.
        row: usize,
        /// Offset from the start of the rows.
        offset: usize,
    },
    /// A column's bytes don't form a value of its type.
    #[error("row {row} of table {table}: column {column} holds no valid {kind}")]
    Value {
        /// Schema and table.
        table: Box<str>,
        /// Which column.
        column: Box<str>,
        /// Row number within the event, from 0.
        row: usize,
        /// What it should be.
        kind: &'static str,
    },
    /// A column's binary JSON is malformed.
    #[error("row {row} of table {table}: column {column} holds no valid binary JSON")]
    Json {
        /// Schema and table.
        table: Box<str>,
        /// Which column.
        column: Box<str>,
        /// Row number within the event, from 0.
        row: usize,
        /// Why.
        #[source]
        source: JsonbError,
    },
    /// A column type that this relay does not know, so that no row of the table can be cut into columns.
    #[error("table {table}: column {column} has the unknown type {kind}")]
    UnknownType {
        /// Schema and table.
        table: Box<str>,
        /// Which column.
        column: Box<str>,
        /// The type's number (`enum_field_types`).
        kind: u8,
    },
    /// A wanted text column whose character set is not converted here; `SELECT` would convert it.
    #[error(
        "table {table}: column {column} has a character set (collation {collation}) that is neither UTF-8, latin1, ascii nor binary"
    )]
    Charset {
        /// Schema and table.
        table: Box<str>,
        /// Which column.
        column: Box<str>,
        /// Its collation's number.
        collation: u32,
    },
    /// A TIME, DATETIME or TIMESTAMP column in the storage format of before MySQL 5.6, which MariaDB still writes where
    /// `mysql56_temporal_format` is off: the binlog does not tell the size of its values.
    #[error(
        "table {table}: column {column} is stored in the temporal format of before MySQL 5.6, and the binlog does not tell how large its values are; ALTER TABLE … FORCE stores it anew"
    )]
    OldTemporal {
        /// Schema and table.
        table: Box<str>,
        /// Which column.
        column: Box<str>,
    },
    /// A wanted column that the table does not have.
    #[error("table {table} has {columns} columns, none of number {column} (from 0)")]
    NoColumn {
        /// Schema and table.
        table: Box<str>,
        /// The number asked for.
        column: usize,
        /// How many there are.
        columns: usize,
    },
    /// A wanted column that the row image leaves out (`binlog_row_image`).
    #[error("table {table}: the row image holds no column {column}")]
    ColumnAbsent {
        /// Schema and table.
        table: Box<str>,
        /// Which column.
        column: Box<str>,
    },
    /// A rows event that does not belong to the plan's table map.
    #[error(
        "rows event (table id {found_id}, {found_columns} columns) is not of table {table} (table id {table_id}, {columns} columns)"
    )]
    OtherTable {
        /// Schema and table of the plan.
        table: Box<str>,
        /// Table id of the plan.
        table_id: u64,
        /// Columns of the plan.
        columns: usize,
        /// Table id of the event.
        found_id: u64,
        /// Columns of the event.
        found_columns: usize,
    },
    /// An event of another type than the decoder is for.
    #[error("event type {found} is no {expected}")]
    EventType {
        /// What was expected.
        expected: &'static str,
        /// The event's type.
        found: u8,
    },
    /// A compressed event that can't be decompressed.
    #[error("{what} can't be decompressed: {why}")]
    Compression {
        /// What it is.
        what: &'static str,
        /// Why not.
        why: &'static str,
    },
}
