//! A server, a database of the test's own, and its binlog.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::StreamExt as _;
use mysql_async::prelude::{FromValue, Queryable as _};
use mysql_async::{BinlogStreamRequest, Conn, Opts, Row, Value};
use relay::event::Datum;
use relay::source::binlog::decode::{
    ColumnRef, RowPlan, RowsEvent, TableMap, TableName, event_type, uncompress_rows,
};

/// Reading what is there already takes no longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// Columns of the widest table.
const SLOTS: usize = 128;

/// What `SELECT` sends, as text.
pub(crate) type Text = Option<Vec<u8>>;

/// A connection, and a database of the test's own.
pub(crate) struct Scratch {
    pub(crate) conn: Conn,
    opts: Opts,
    pub(crate) database: String,
    pub(crate) is_mariadb: bool,
}

/// Runs a test in a database of its own, which is dropped whatever comes of it.
pub(crate) async fn scratch<F>(variable: &str, test: F) -> Result<()>
where
    F: AsyncFnOnce(&mut Scratch) -> Result<()>,
{
    let Ok(url) = std::env::var(variable) else {
        bail!("{variable} is not set: scripts/services up && eval \"$(scripts/services env)\"");
    };
    let opts = Opts::from_url(&url).with_context(|| format!("{variable} is no URL"))?;
    let conn = Conn::new(opts.clone())
        .await
        .with_context(|| format!("connect to {variable}"))?;
    let database = format!("decode_{}_{:08x}", std::process::id(), fastrand::u32(..));
    let mut scratch = Scratch {
        conn,
        opts,
        database,
        is_mariadb: false,
    };
    let database = scratch.database.clone();
    scratch
        .run(format!("CREATE DATABASE {database} CHARACTER SET utf8mb4"))
        .await?;
    scratch.run(format!("USE {database}")).await?;
    scratch
        .run("SET NAMES utf8mb4, time_zone = '+00:00', sql_mode = ''")
        .await?;
    scratch.is_mariadb = scratch
        .ask::<String>("SELECT VERSION()")
        .await?
        .contains("MariaDB");
    let result = test(&mut scratch).await;
    scratch.run(format!("DROP DATABASE {database}")).await?;
    scratch.conn.disconnect().await?;
    result
}

/// One event as the decoders take it: its type, its body, and the server id of its header.
pub(crate) struct Event {
    pub(crate) kind: u8,
    pub(crate) server_id: u32,
    pub(crate) data: Vec<u8>,
}

/// A place in the binlog.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) file: String,
    pub(crate) position: u64,
}

/// The rows inserted into a table.
pub(crate) struct Decoded {
    /// The last map of it.
    pub(crate) map: Option<TableMap>,
    pub(crate) rows: Vec<Vec<Datum>>,
    /// How many rows events were compressed.
    pub(crate) compressed: usize,
}

impl Scratch {
    pub(crate) async fn run(&mut self, sql: impl AsRef<str>) -> Result<()> {
        let sql = sql.as_ref();
        let result = self.conn.query_drop(sql).await;
        result.with_context(|| sql.chars().take(1_000).collect::<String>())
    }

    pub(crate) async fn ask<T: FromValue>(&mut self, sql: &str) -> Result<T> {
        let row: Row = self
            .conn
            .query_first(sql)
            .await?
            .with_context(|| sql.to_owned())?;
        row.get(0).with_context(|| sql.to_owned())
    }

    /// What `SELECT` sends.
    pub(crate) async fn select(&mut self, sql: &str) -> Result<Vec<Vec<Text>>> {
        let rows: Vec<Row> = self.conn.query(sql).await?;
        let text = |value| match value {
            Value::NULL => Ok(None),
            Value::Bytes(bytes) => Ok(Some(bytes)),
            other => bail!("{other:?} is no text"),
        };
        rows.into_iter()
            .map(|row| row.unwrap().into_iter().map(text).collect())
            .collect()
    }

    /// `COLUMN_TYPE` and `CHARACTER_SET_NAME` of a table's columns.
    pub(crate) async fn definitions(
        &mut self,
        table: &str,
    ) -> Result<Vec<(String, Option<String>)>> {
        let sql = "SELECT COLUMN_TYPE, CHARACTER_SET_NAME FROM information_schema.COLUMNS
                   WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION";
        Ok(self.conn.exec(sql, (self.database.clone(), table)).await?)
    }

    /// Where the next event will be.
    pub(crate) async fn place(&mut self) -> Result<Place> {
        let sql = if self.is_mariadb {
            "SHOW MASTER STATUS"
        } else {
            "SHOW BINARY LOG STATUS"
        };
        let row: Row = self
            .conn
            .query_first(sql)
            .await?
            .context("the binlog is off")?;
        let file = row.get(0).context("no file")?;
        Ok(Place {
            file,
            position: row.get(1).context("no position")?,
        })
    }

    /// All events from there to the end of the binlog.
    pub(crate) async fn events(&self, from: &Place) -> Result<Vec<Event>> {
        let mut conn = Conn::new(self.opts.clone()).await?;
        if self.is_mariadb {
            // Without it the server sends no GTID events.
            conn.query_drop("SET @mariadb_slave_capability = 4").await?;
        }
        let request = BinlogStreamRequest::new(fastrand::u32(1_000_000..))
            .with_filename(from.file.as_bytes())
            .with_pos(from.position)
            .with_non_blocking();
        let read = async {
            let mut stream = conn.get_binlog_stream(request).await?;
            let mut events = Vec::new();
            while let Some(event) = stream.next().await {
                let event = event?;
                let header = event.header();
                let (kind, server_id) = (header.event_type_raw(), header.server_id());
                events.push(Event {
                    kind,
                    server_id,
                    data: event.data().to_vec(),
                });
            }
            stream.close().await?;
            anyhow::Ok(events)
        };
        tokio::time::timeout(DEADLINE, read)
            .await
            .context("the binlog does not end")?
    }

    /// The rows inserted into a table of this database. The columns are picked once its map is known.
    pub(crate) async fn rows(
        &self,
        from: &Place,
        table: &str,
        wanted: impl Fn(&TableMap) -> Vec<ColumnRef>,
    ) -> Result<Decoded> {
        let mut decoded = Decoded {
            map: None,
            rows: Vec::new(),
            compressed: 0,
        };
        let mut plan = None;
        for Event { kind, data, .. } in self.events(from).await? {
            if kind == event_type::TABLE_MAP {
                let name = TableName::peek(&data)?;
                plan = None;
                if name.schema == self.database.as_bytes() && name.table == table.as_bytes() {
                    let map = TableMap::parse(&data)?;
                    plan = Some(RowPlan::new(&map, &wanted(&map))?);
                    decoded.map = Some(map);
                }
            }
            let Some(plan) = &plan else { continue };
            let (kind, data) = match kind {
                event_type::MARIADB_WRITE_ROWS_COMPRESSED_V1
                | event_type::MARIADB_WRITE_ROWS_COMPRESSED => {
                    decoded.compressed += 1;
                    uncompress_rows(kind, &data)?
                }
                event_type::WRITE_ROWS_V1 | event_type::WRITE_ROWS => (kind, data),
                _ => continue,
            };
            let mut rows = RowsEvent::parse(kind, &data)?.rows(plan)?;
            let mut row = vec![Datum::Null; SLOTS];
            while let Some(result) = rows.next_into(&mut row) {
                result?;
                decoded.rows.push(row.clone());
            }
        }
        Ok(decoded)
    }
}

/// A value as `SELECT` would send it; a point in time as its microseconds.
pub(crate) fn as_text(datum: &Datum) -> Text {
    match datum {
        Datum::Null => None,
        Datum::Int(number) => Some(number.to_string().into_bytes()),
        Datum::UInt(number) => Some(number.to_string().into_bytes()),
        Datum::Micros(micros) => Some(micros.to_string().into_bytes()),
        Datum::Bytes(bytes) => Some(bytes.clone()),
        Datum::Uuid(bytes) => Some(bytes.to_vec()),
    }
}

/// A text for a message.
pub(crate) fn shown(text: &Text) -> String {
    text.as_ref().map_or("NULL".to_owned(), |text| {
        String::from_utf8_lossy(text).into_owned()
    })
}
