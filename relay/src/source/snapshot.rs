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

use super::select::{Select, positional};
use crate::config::{CheckpointStore, Config, Identifier, Mark};
use crate::event::{Key, OutboxEvent};
use crate::mysql::{Flavor, MysqlError, Server, Session, Unfit};
use crate::position::Position;
use crate::table::value_of;

/// Rows a page: about a megabyte of events.
const PAGE: usize = 1_000;

/// A read view over the outbox table.
pub(super) struct Snapshot {
    session: Session,
    /// Tail from here.
    pub(super) start: Position,
    /// Whatever the read view holds lies at or before here.
    pub(super) end: Position,
    select: Select,
    /// Whether rows tell that they are published.
    has_status: bool,
    table: String,
    id: String,
    status: String,
    last: Option<Key>,
}

impl Snapshot {
    /// Opens the read view of a table as the catalogue describes it.
    ///
    /// # Errors
    /// The server can't be asked; inside, why it has no position.
    pub(super) async fn open(
        config: &Config,
        server: &Server,
        mut session: Session,
        select: Select,
        has_status: bool,
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
            select,
            has_status,
            table,
            id: config.columns.id().quoted(),
            status: config
                .columns
                .status()
                .map(Identifier::quoted)
                .unwrap_or_default(),
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
                if let Some(event) = self.select.event(row) {
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
        let unpublished = if self.has_status {
            format!(" AND {} IN ('PENDING', 'PROCESSING')", self.status)
        } else {
            String::new()
        };
        let (table, column) = (&self.table, &self.id);
        let statement = format!("SELECT 1 FROM {table} WHERE {column} = ?{unpublished}");
        let found: Vec<(u8,)> = self
            .session
            .rows("look into the snapshot", statement, (value_of(id),))
            .await?;
        Ok(!found.is_empty())
    }

    /// One ordered read an unpublished status: each is served by the index on status and id, where `IN` of both
    /// would sort.
    fn query(&self) -> (String, Params) {
        let (list, table, id) = (&self.select.list, &self.table, &self.id);
        let after = if self.last.is_some() {
            format!(" AND {id} > ?")
        } else {
            String::new()
        };
        let last: Vec<Value> = self.last.iter().map(value_of).collect();
        if !self.has_status {
            let query =
                format!("SELECT {list} FROM {table} WHERE TRUE{after} ORDER BY {id} LIMIT {PAGE}");
            return (query, positional(last));
        }
        let part = |status| {
            let column = &self.status;
            format!(
                "(SELECT {list} FROM {table} WHERE {column} = '{status}'{after} ORDER BY {id} LIMIT {PAGE})"
            )
        };
        let query = format!(
            "{} UNION ALL {} ORDER BY {id} LIMIT {PAGE}",
            part("PENDING"),
            part("PROCESSING")
        );
        (query, positional([last.clone(), last].concat()))
    }
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
