//! All unpublished rows at one moment, and the binlog position to tail from after them.
//!
//! ```text
//!  position `start` ─▶ (own write) ─▶ read view opened ─▶ (own write) ─▶ position `end`
//! ```
//!
//! Every transaction at or before `start` is visible in the read view; one that is visible lies at or before
//! `end`. So the tail begins at `start` and leaves out, of the events up to `end`, those whose rows the read view
//! holds: they were published from it. What lies behind `end` needs no look.
//!
//! - MySQL with GTIDs: `gtid_executed` grows after a transaction has become visible, so `start` is safe as it is. For
//!   `end` a write of our own is committed after the view was opened: groups of commits follow each other
//!   (`binlog_order_commits`, default), so whatever the view holds is in `gtid_executed` once that write is.
//! - MySQL with files: the binlog grows *before* a transaction becomes visible, so `end` is safe as it is. For `start` our own
//!   write is committed after it was read and before the view is opened: all that lies before it is visible then.
//! - MariaDB: `START TRANSACTION WITH CONSISTENT SNAPSHOT` tells the exact position of the read view.

use mysql_async::{Params, Row, Value};

use crate::config::{CheckpointStore, Config, Mark};
use crate::event::{Datum, FIELDS, Key, OutboxEvent};
use crate::marker::value_of;
use crate::mysql::{Flavor, MysqlError, Server, Session, Unfit};
use crate::position::Position;

/// Rows a page: about a megabyte of events.
const PAGE: usize = 1_000;

/// A read view over the outbox table.
pub(super) struct Snapshot {
    session: Session,
    /// Tail from here.
    pub(super) start: Position,
    /// Whatever the read view holds lies at or before here.
    pub(super) end: Position,
    columns: Vec<bool>,
    table: String,
    last: Option<Key>,
}

impl Snapshot {
    /// Opens the read view. `present` tells which of [`FIELDS`] the table has.
    ///
    /// # Errors
    /// The server can't be asked; inside, why it has no position.
    pub(super) async fn open(
        config: &Config,
        server: &Server,
        mut session: Session,
        present: Vec<bool>,
    ) -> Result<Result<Self, Unfit>, MysqlError> {
        let doing = "open a snapshot";
        session
            .run(doing, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            .await?;
        let begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT";
        let (start, end) = if server.flavor == Flavor::MariaDb {
            session.run(doing, begin).await?;
            match mariadb_position(&mut session).await? {
                Ok(position) => (position.clone(), position),
                Err(unfit) => return Ok(Err(unfit)),
            }
        } else {
            let start = match server.head(&mut session).await? {
                Ok(position) => position,
                Err(unfit) => return Ok(Err(unfit)),
            };
            if !server.gtid {
                crate::checkpoint::touch(config).await?;
            }
            session.run(doing, begin).await?;
            // Without a table of checkpoints an event in that narrow gap may come twice.
            if server.gtid && config.checkpoint == CheckpointStore::Mysql {
                crate::checkpoint::touch(config).await?;
            }
            match server.head(&mut session).await? {
                Ok(end) => (start, end),
                Err(unfit) => return Ok(Err(unfit)),
            }
        };
        let table = config.table.quoted();
        Ok(Ok(Self {
            session,
            start,
            end,
            columns: present,
            table,
            last: None,
        }))
    }

    /// The next rows in the order of their keys; none when all were read.
    ///
    /// # Errors
    /// The connection is gone, and with it the read view.
    pub(super) async fn page(&mut self) -> Result<Vec<OutboxEvent>, MysqlError> {
        let doing = "read unpublished rows";
        loop {
            let (statement, params) = self.query();
            let rows: Vec<Row> = self.session.rows(doing, statement, params).await?;
            let full = rows.len() == PAGE;
            let mut events = Vec::with_capacity(rows.len());
            for row in rows {
                let data = self.data_of(row);
                if let Some(event) = OutboxEvent::from_row(data) {
                    self.last = Some(event.id.clone());
                    events.push(event);
                }
            }
            if !events.is_empty() || !full {
                return Ok(events);
            }
        }
    }

    /// Whether the read view holds the row as unpublished: then it was published from here.
    ///
    /// # Errors
    /// The connection is gone, and with it the read view.
    pub(super) async fn holds(&mut self, id: &Key) -> Result<bool, MysqlError> {
        let status = if self.has_status() { UNPUBLISHED } else { "" };
        let statement = format!("SELECT 1 FROM {} WHERE id = ?{status}", self.table);
        let found: Vec<(u8,)> = self
            .session
            .rows("look into the snapshot", statement, (value_of(id),))
            .await?;
        Ok(!found.is_empty())
    }

    fn has_status(&self) -> bool {
        self.columns.last().copied().unwrap_or(false)
    }

    /// One ordered read an unpublished status: each is served by the index on status and id, where `IN` of both
    /// would sort.
    fn query(&self) -> (String, Params) {
        let names: Vec<&str> = FIELDS
            .iter()
            .zip(&self.columns)
            .filter(|(_, present)| **present)
            .map(|(field, _)| field.name)
            .collect();
        let (names, table) = (names.join(", "), &self.table);
        let after = if self.last.is_some() {
            " AND id > ?"
        } else {
            ""
        };
        let last: Vec<Value> = self.last.iter().map(value_of).collect();
        if !self.has_status() {
            let query =
                format!("SELECT {names} FROM {table} WHERE TRUE{after} ORDER BY id LIMIT {PAGE}");
            return (query, positional(last));
        }
        let part = |status| {
            format!(
                "(SELECT {names} FROM {table} WHERE status = '{status}'{after} ORDER BY id LIMIT {PAGE})"
            )
        };
        let query = format!(
            "{} UNION ALL {} ORDER BY id LIMIT {PAGE}",
            part("PENDING"),
            part("PROCESSING")
        );
        (query, positional([last.clone(), last].concat()))
    }

    fn data_of(&self, row: Row) -> [Datum; FIELDS.len()] {
        let mut values = row.unwrap_raw().into_iter();
        let mut data = [const { Datum::Null }; FIELDS.len()];
        for (datum, present) in data.iter_mut().zip(&self.columns) {
            if *present {
                *datum = values.next().flatten().map_or(Datum::Null, datum_of);
            }
        }
        data
    }
}

const UNPUBLISHED: &str = " AND status IN ('PENDING', 'PROCESSING')";

fn positional(values: Vec<Value>) -> Params {
    if values.is_empty() {
        Params::Empty
    } else {
        Params::Positional(values)
    }
}

/// A value of a query as the binlog would give it.
fn datum_of(value: Value) -> Datum {
    match value {
        Value::NULL => Datum::Null,
        Value::Bytes(bytes) => Datum::Bytes(bytes),
        Value::Int(number) => Datum::Int(number),
        Value::UInt(number) => Datum::UInt(number),
        Value::Float(number) => Datum::Bytes(number.to_string().into_bytes()),
        Value::Double(number) => Datum::Bytes(number.to_string().into_bytes()),
        Value::Date(year, month, day, hour, minute, second, micros) => {
            match days_from_civil(i64::from(year), i64::from(month), i64::from(day)) {
                Some(days) => {
                    let seconds = ((days * 24 + i64::from(hour)) * 60 + i64::from(minute)) * 60
                        + i64::from(second);
                    Datum::Micros(seconds * 1_000_000 + i64::from(micros))
                }
                None => Datum::Null,
            }
        }
        Value::Time(negative, days, hours, minutes, seconds, micros) => {
            let sign = if negative { "-" } else { "" };
            let hours = u32::from(hours) + days * 24;
            let text = format!("{sign}{hours:02}:{minutes:02}:{seconds:02}.{micros:06}");
            Datum::Bytes(text.into_bytes())
        }
    }
}

/// Days since 1970-01-01 (Hinnant, as in [`crate::event`]); none for a zero date.
fn days_from_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    if month == 0 || day == 0 {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// MariaDB manual, "START TRANSACTION WITH CONSISTENT SNAPSHOT": file and offset of the read view, as a GTID list
/// where the binlog has GTIDs by then.
async fn mariadb_position(session: &mut Session) -> Result<Result<Position, Unfit>, MysqlError> {
    let doing = "ask for the snapshot's position";
    let rows: Vec<(String, String)> = session
        .rows(doing, "SHOW STATUS LIKE 'binlog_snapshot_%'", ())
        .await?;
    let value = |name: &str| {
        rows.iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.clone())
    };
    let (Some(file), Some(offset)) = (
        value("binlog_snapshot_file"),
        value("binlog_snapshot_position"),
    ) else {
        return Ok(Err(Unfit::NoPosition));
    };
    let Ok(offset) = offset.parse::<u64>() else {
        return Ok(Err(Unfit::NoPosition));
    };
    if file.is_empty() {
        return Ok(Err(Unfit::NoPosition));
    }
    let list: Vec<(Option<String>,)> = session
        .rows(doing, "SELECT BINLOG_GTID_POS(?, ?)", (&file, offset))
        .await?;
    let list = list
        .into_iter()
        .next()
        .and_then(|(list,)| list)
        .unwrap_or_default();
    if list.is_empty() {
        return Ok(Ok(Position::File {
            file: file.into(),
            offset,
        }));
    }
    Ok(Position::from_mariadb_list(&list).map_err(Unfit::from))
}

/// Whether reading all unpublished rows finds only such: without marks it finds every row there is.
pub(super) fn finds_only_unpublished(config: &Config) -> bool {
    config.mark != Mark::None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::rfc3339;

    proptest! {
        #[test]
        fn dates_and_back(
            year in 1i64..9999, month in 1i64..=12, day in 1i64..=28, hour in 0u8..24, micros in 0u32..1_000_000
        ) {
            let value = Value::Date(
                u16::try_from(year).unwrap(), u8::try_from(month).unwrap(), u8::try_from(day).unwrap(),
                hour, 59, 58, micros,
            );
            let Datum::Micros(count) = datum_of(value) else { panic!() };
            let text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:59:58.{micros:06}Z");
            prop_assert_eq!(rfc3339(count), text);
        }
    }

    #[test]
    fn a_zero_date_is_no_date() {
        assert_eq!(datum_of(Value::Date(0, 0, 0, 0, 0, 0, 0)), Datum::Null);
    }
}
