//! Binlog events → items (no sockets): transactions, the outbox table's inserts, XA, and where all that stands.
//!
//! A group is what lies between a GTID event (or BEGIN) and its end: XID, COMMIT, ROLLBACK, XA PREPARE, or a statement
//! of its own such as DDL. A row-format binlog holds committed transactions, so the events of a large one go out as they
//! are read; the first few are held until its end, for the rare one that is rolled back in the binlog itself.
//! XA is the exception: the rows stand in the binlog at XA PREPARE, so they are held until XA COMMIT says that they
//! count, and the position that a checkpoint may take stays before them.

mod group;
mod plan;
mod prepared;
mod statement;

use std::sync::Arc;

use mysql_common::binlog::events::{Event, GtidEvent};

use super::decode::{
    DecodeError, Gtid, MariaDbGtidEvent, Query, Rotate, RowPlan, RowsEvent, TableName, XaPrepare,
    XaStatement, XaVerb, event_type, uncompress_query, uncompress_rows,
};
use super::{Batch, Item, SourceError};
use crate::catalogue::{Catalogue, Finish};
use crate::config::{Columns, Config};
use crate::event::{OutboxEvent, Row};
use crate::mysql::Server;
use crate::position::{MariaDbGtid, Position, Source, Step};
use crate::source::snapshot::finds_only_unpublished;
use group::{Group, Identity};
use plan::Plan;
use prepared::Prepared;
use statement::{after, inserts_into};

/// `XID_EVENT`: the commit of a transaction.
const XID: u8 = 16;
/// `INCIDENT_EVENT`: the server says that its binlog may lack something.
const INCIDENT: u8 = 26;
/// `HEARTBEAT_LOG_EVENT`.
const HEARTBEAT: u8 = 27;
/// `TRANSACTION_PAYLOAD_EVENT`: a compressed transaction; the driver yields its events behind it.
const PAYLOAD: u8 = 40;
/// `GTID_TAGGED_LOG_EVENT`.
const GTID_TAGGED: u8 = 42;

/// `database.table` of the outbox.
pub(super) fn table_name(config: &Config) -> String {
    format!("{}.{}", config.mysql.database(), config.table.as_str())
}

/// Where reading stands, and what is known there.
pub(super) struct Tail {
    schema: Vec<u8>,
    table: Vec<u8>,
    checkpoint_table: Vec<u8>,
    columns: Columns,
    folds_names: bool,
    /// Whether a snapshot finds only unpublished rows, so that taking one is no flood.
    finds_unpublished: bool,
    /// Read up to here: ahead of what may be checkpointed while an XA transaction is prepared.
    position: Position,
    file: Arc<str>,
    offset: u64,
    group: Option<Group>,
    /// The transaction that the last event ended.
    ended: Option<Group>,
    plan: Option<Plan>,
    catalogue: Option<Catalogue>,
    /// A compressed transaction has been announced and none of its events has come yet.
    payload_open: bool,
    /// Events of the interrupted transaction that are out already.
    skip: u64,
    prepared: Prepared,
}

impl Tail {
    pub(super) fn new(config: &Config, position: Position) -> Self {
        Self {
            schema: config.mysql.database().as_bytes().to_vec(),
            table: config.table.as_str().as_bytes().to_vec(),
            checkpoint_table: config.checkpoint_table.as_str().as_bytes().to_vec(),
            columns: config.columns.clone(),
            folds_names: false,
            finds_unpublished: finds_only_unpublished(config),
            prepared: Prepared::new(),
            position,
            file: "".into(),
            offset: 0,
            group: None,
            ended: None,
            plan: None,
            catalogue: None,
            payload_open: false,
            skip: 0,
        }
    }

    /// A new stream of that server begins.
    pub(super) fn follow(&mut self, server: &Server) {
        self.folds_names = server.folds_names;
        if let Position::File { file, offset } = &self.position {
            self.file = file.clone();
            self.offset = *offset;
        }
    }

    /// The stream has broken: it will be opened again behind the last whole transaction.
    pub(super) fn interrupted(&mut self) {
        self.skip = self
            .group
            .take()
            .map_or(self.skip, |group| group.emitted.max(self.skip));
        self.payload_open = false;
        self.plan = None;
        self.catalogue = None;
    }

    /// Where a stream has to begin.
    pub(super) fn position(&self) -> &Position {
        &self.position
    }

    /// Whether everything handed out is sealed by a commit.
    pub(super) fn between_transactions(&self) -> bool {
        self.group.is_none() && self.skip == 0
    }

    /// Whether everything up to `end` has been read.
    pub(super) fn position_reaches(&self, end: &Position) -> bool {
        // A MariaDB server may have got its first GTID meanwhile; the file tells in any case.
        self.position.reaches(end) || self.place().reaches(end)
    }

    /// Whether the transaction of what the last event gave lies at or before `end`.
    pub(super) fn group_lies_in(&self, end: &Position) -> bool {
        let Some(group) = self.group.as_ref().or(self.ended.as_ref()) else {
            return false;
        };
        match (end, self.step_of(group)) {
            // The end of the transaction is not known yet; its events are asked about one too often at most.
            (Position::File { .. }, _) => end.covers(&Step::File {
                file: self.file.clone(),
                offset: group.began,
            }),
            (Position::Gtid(_) | Position::MariaDb(_), step) => end.covers(&step),
        }
    }

    /// Whether the event is about the outbox table, and the binlog does not name its columns, and neither has the
    /// catalogue been asked.
    pub(super) fn needs_catalogue(&self, event: &Event) -> bool {
        event.header().event_type_raw() == event_type::TABLE_MAP
            && self.catalogue.is_none()
            && TableName::peek(event.data()).is_ok_and(|name| self.is_outbox(&name))
            && self
                .plan
                .as_ref()
                .is_none_or(|plan| plan.map != event.data())
    }

    pub(super) fn set_catalogue(&mut self, catalogue: Catalogue) {
        self.catalogue = Some(catalogue);
    }

    /// Takes an event in; what comes of it goes to the end of `out`.
    pub(super) fn feed(&mut self, event: &Event, out: &mut Batch) -> Result<(), SourceError> {
        self.ended = None;
        let (header, data) = (event.header(), event.data());
        let kind = header.event_type_raw();
        self.advance_offset(header.log_pos());
        if self.payload_open
            && matches!(
                kind,
                HEARTBEAT | GTID_TAGGED | event_type::GTID | event_type::ANONYMOUS_GTID
            )
        {
            // The driver swallows a decompression that fails, and would go on behind the transaction.
            return Err(self.damaged("a compressed transaction could not be decompressed"));
        }
        if kind != PAYLOAD && kind != HEARTBEAT {
            self.payload_open = false;
        }
        match kind {
            PAYLOAD => self.payload_open = true,
            INCIDENT => {
                let why = "the server logged an incident: its binlog may lack transactions";
                return Err(SourceError::Gap(why.to_owned()));
            }
            event_type::ROTATE => self.rotate(data, header.log_pos() == 0, out)?,
            event_type::GTID => {
                let gtid = self.read(Gtid::parse(data))?;
                let identity = Identity::Gtid(Source::untagged(gtid.sid), gtid.gno);
                self.begin(identity, gtid.immediate_commit.and_then(micros))?;
            }
            GTID_TAGGED => self.begin_tagged(event)?,
            event_type::ANONYMOUS_GTID => {
                let gtid = self.read(Gtid::parse(data))?;
                self.begin(Identity::None, gtid.immediate_commit.and_then(micros))?;
            }
            event_type::MARIADB_GTID => {
                self.begin_mariadb(data, header.server_id(), header.timestamp())?;
            }
            event_type::QUERY => self.query(data, out)?,
            event_type::MARIADB_QUERY_COMPRESSED => {
                let plain = self.read(uncompress_query(data))?;
                self.query(&plain, out)?;
            }
            XID => self.commit(out),
            event_type::XA_PREPARE => self.xa_prepare(data, out)?,
            event_type::TABLE_MAP => self.table_map(data, header.timestamp())?,
            event_type::WRITE_ROWS_V1 | event_type::WRITE_ROWS => self.rows(kind, data, out)?,
            event_type::MARIADB_WRITE_ROWS_COMPRESSED_V1
            | event_type::MARIADB_WRITE_ROWS_COMPRESSED => {
                let (kind, plain) = self.read(uncompress_rows(kind, data))?;
                self.rows(kind, &plain, out)?;
            }
            // Updates, deletes, variables, format, previous GTIDs, heartbeats: nothing in them is for the relay.
            _ => {}
        }
        Ok(())
    }

    /// `log_pos` has 32 bits and wraps in a binlog beyond 4 GiB; events are smaller than that. 0 means an event that
    /// is not in the file.
    fn advance_offset(&mut self, log_pos: u32) {
        if log_pos != 0 {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the low half is what is compared"
            )]
            let low = self.offset as u32;
            self.offset += u64::from(log_pos.wrapping_sub(low));
        }
    }

    fn rotate(
        &mut self,
        data: &[u8],
        artificial: bool,
        out: &mut Batch,
    ) -> Result<(), SourceError> {
        let rotate = self.read(Rotate::parse(data))?;
        self.file = String::from_utf8_lossy(rotate.file).into();
        self.offset = rotate.position;
        // Table ids are handed out anew after a restart.
        self.plan = None;
        // An offset beyond 4 GiB can't be asked for: the next file's start can.
        if !artificial && matches!(self.position, Position::File { .. }) && self.group.is_none() {
            let step = Step::File {
                file: self.file.clone(),
                offset: self.offset,
            };
            self.position.advance(step.clone());
            self.prepared.release(step, false, out);
        }
        Ok(())
    }

    fn begin_tagged(&mut self, event: &Event) -> Result<(), SourceError> {
        let Ok(gtid) = event.read_event::<GtidEvent>() else {
            return Err(self.damaged("a tagged GTID event can't be read"));
        };
        let source = match gtid.tag() {
            Some(tag) => Source::tagged(gtid.sid(), tag),
            None => Source::untagged(gtid.sid()),
        };
        self.begin(
            Identity::Gtid(source, gtid.gno()),
            micros(gtid.immediate_commit_timestamp()),
        )
    }

    fn begin_mariadb(
        &mut self,
        data: &[u8],
        server_id: u32,
        timestamp: u32,
    ) -> Result<(), SourceError> {
        let gtid = self.read(MariaDbGtidEvent::parse(data))?;
        let identity = MariaDbGtid {
            domain: gtid.domain,
            server_id,
            sequence: gtid.sequence,
        };
        self.begin(
            Identity::MariaDb(identity),
            Some(i64::from(timestamp) * 1_000_000),
        )?;
        if let Some(group) = &mut self.group {
            group.in_transaction = !gtid.is_standalone();
            if gtid.is_prepared_xa() {
                group.begin_xa();
            }
        }
        Ok(())
    }

    fn begin(&mut self, identity: Identity, committed_at: Option<i64>) -> Result<(), SourceError> {
        if self.group.as_ref().is_some_and(Group::has_events) {
            return Err(self.damaged("a transaction begins within another"));
        }
        self.group = Some(Group::new(identity, committed_at, self.offset));
        Ok(())
    }

    /// The open group, or a new one: old binlogs have no event before BEGIN.
    fn open(&mut self) -> &mut Group {
        let offset = self.offset;
        self.group
            .get_or_insert_with(|| Group::new(Identity::None, None, offset))
    }

    fn query(&mut self, data: &[u8], out: &mut Batch) -> Result<(), SourceError> {
        let query = self.read(Query::parse(data))?;
        let sql = query.sql.trim_ascii();
        let is = |word: &str| sql.eq_ignore_ascii_case(word.as_bytes());
        let xa = after(sql, "XA ").and_then(|_| XaStatement::parse(sql));
        if is("BEGIN") {
            self.open().in_transaction = true;
        } else if is("COMMIT") {
            self.commit(out);
        } else if is("ROLLBACK") {
            self.end(out);
        } else if let Some(name) = after(sql, "SAVEPOINT ") {
            self.open().save(name);
        } else if let Some(name) = after(sql, "ROLLBACK TO ") {
            self.open()
                .roll_back_to(after(name, "SAVEPOINT ").unwrap_or(name));
        } else if let Some(statement) = xa {
            match statement.verb {
                XaVerb::Start => self.open().begin_xa(),
                XaVerb::End | XaVerb::Prepare => {}
                XaVerb::Commit => self.xa_commit(&statement, out)?,
                XaVerb::Rollback => {
                    self.prepared.resolve(&statement.xid);
                    self.end(out);
                }
            }
        } else if self
            .group
            .as_ref()
            .is_some_and(|group| group.in_transaction)
        {
            if inserts_into(sql, &self.table) {
                let why =
                    "a session with binlog_format = STATEMENT or MIXED wrote to the outbox table";
                return Err(SourceError::Partial(why.to_owned()));
            }
            // Another statement within a transaction.
        } else {
            let opens = sql.to_ascii_uppercase().ends_with(b"START TRANSACTION");
            let group = self.open();
            group.noteworthy = true;
            // DDL may have changed the table.
            self.catalogue = None;
            if opens {
                // CREATE TABLE … SELECT: its rows follow (MySQL 8.0.21).
                self.open().in_transaction = true;
            } else {
                self.end(out);
            }
        }
        Ok(())
    }

    fn xa_commit(&mut self, statement: &XaStatement, out: &mut Batch) -> Result<(), SourceError> {
        let known = self.prepared.resolve(&statement.xid);
        if known.is_none() && !statement.one_phase && self.finds_unpublished {
            // It was prepared before the first event that we read: only the table tells whether it has rows of ours.
            let why = "a distributed transaction was committed that had been prepared before it";
            return Err(SourceError::Gap(why.to_owned()));
        }
        for event in known.unwrap_or_default() {
            self.emit(event, out);
        }
        self.commit(out);
        Ok(())
    }

    fn xa_prepare(&mut self, data: &[u8], out: &mut Batch) -> Result<(), SourceError> {
        let prepare = self.read(XaPrepare::parse(data))?;
        if prepare.one_phase {
            self.commit(out);
            return Ok(());
        }
        let held = self.open().take_xa();
        let Some(group) = self.group.take() else {
            return Ok(());
        };
        let step = self.step_of(&group);
        self.position.advance(step.clone());
        self.prepared
            .prepare(prepare.xid, held, step, group.noteworthy, out);
        Ok(())
    }

    /// The transaction counts, with what of it was held.
    fn commit(&mut self, out: &mut Batch) {
        for event in self.open().take_xa() {
            self.emit(event, out);
        }
        self.let_go(out);
        self.end(out);
    }

    fn end(&mut self, out: &mut Batch) {
        let Some(group) = self.group.take() else {
            return;
        };
        self.skip = 0;
        let step = self.step_of(&group);
        self.position.advance(step.clone());
        self.prepared.release(step, group.noteworthy, out);
        self.ended = Some(group);
    }

    fn step_of(&self, group: &Group) -> Step {
        match (&group.identity, &self.position) {
            (_, Position::File { .. }) | (Identity::None, _) => Step::File {
                file: self.file.clone(),
                offset: self.offset,
            },
            (Identity::Gtid(source, gno), _) => Step::Gtid {
                source: source.clone(),
                first: *gno,
                last: *gno,
            },
            (Identity::MariaDb(gtid), _) => Step::MariaDb(*gtid),
        }
    }

    fn table_map(&mut self, data: &[u8], timestamp: u32) -> Result<(), SourceError> {
        let name = self.read(TableName::peek(data))?;
        if !self.is_outbox(&name) {
            let own = self.is_named(name.schema, &self.schema)
                && self.is_named(name.table, &self.checkpoint_table);
            self.open().noteworthy |= !own;
            self.plan = self.plan.take_if(|plan| plan.table_id != name.table_id);
            return Ok(());
        }
        if self.plan.as_ref().is_some_and(|plan| plan.map == data) {
            return Ok(());
        }
        let plan = Plan::new(
            data,
            name.table_id,
            timestamp,
            self.catalogue.as_ref(),
            &self.columns,
        );
        self.plan = Some(plan);
        Ok(())
    }

    fn rows(&mut self, kind: u8, data: &[u8], out: &mut Batch) -> Result<(), SourceError> {
        let rows = self.read(RowsEvent::parse(kind, data))?;
        let Some(plan) = self.plan.take_if(|plan| plan.table_id == rows.table_id) else {
            return Ok(());
        };
        let decoded = match &plan.rows {
            Ok((row_plan, finish)) => self.decode_rows(row_plan, finish, &rows, out),
            // The rows are in the table as well, where their columns have names.
            Err(why) => Err(SourceError::Gap(why.clone())),
        };
        self.plan = Some(plan);
        decoded
    }

    fn decode_rows(
        &mut self,
        plan: &RowPlan,
        finish: &Finish,
        rows: &RowsEvent<'_>,
        out: &mut Batch,
    ) -> Result<(), SourceError> {
        let mut rows = self.read(rows.rows(plan))?;
        self.open().noteworthy = true;
        while let Some(row) = rows.next_row() {
            let mut row: Row = match row {
                Err(absent @ DecodeError::ColumnAbsent { .. }) => {
                    let why =
                        format!("{absent}: binlog_row_image is MINIMAL in the writer's session");
                    return Err(SourceError::Partial(why));
                }
                row => self.read(row)?,
            };
            finish.apply(&mut row);
            let Some(event) = OutboxEvent::from_row(row) else {
                continue;
            };
            let group = self.open();
            if let Some(held) = &mut group.xa {
                held.push(event);
            } else {
                self.emit(event, out);
            }
        }
        Ok(())
    }

    fn emit(&mut self, mut event: OutboxEvent, out: &mut Batch) {
        let group = self.open();
        event.committed_at = group.commit_time(event.created_at);
        if group.hold(event) {
            self.let_go(out);
        }
    }

    /// Hands out the events held back; those that were handed out before an interruption are left out.
    fn let_go(&mut self, out: &mut Batch) {
        let skip = self.skip;
        let group = self.open();
        for event in group.let_go() {
            group.emitted += 1;
            if group.emitted > skip {
                out.push(Item::Event(event));
            }
        }
    }

    fn is_outbox(&self, name: &TableName<'_>) -> bool {
        self.is_named(name.schema, &self.schema) && self.is_named(name.table, &self.table)
    }

    fn is_named(&self, name: &[u8], wanted: &[u8]) -> bool {
        if self.folds_names {
            name.eq_ignore_ascii_case(wanted)
        } else {
            name == wanted
        }
    }

    /// File and offset, whatever the position is made of.
    fn place(&self) -> Position {
        Position::File {
            file: self.file.clone(),
            offset: self.offset,
        }
    }

    fn read<T>(&self, decoded: Result<T, DecodeError>) -> Result<T, SourceError> {
        decoded.map_err(|source| SourceError::Decode {
            place: self.place().to_string(),
            source,
        })
    }

    fn damaged(&self, why: &'static str) -> SourceError {
        SourceError::Damaged {
            place: self.place().to_string(),
            why,
        }
    }
}

fn micros(commit: u64) -> Option<i64> {
    i64::try_from(commit).ok().filter(|micros| *micros > 0)
}
