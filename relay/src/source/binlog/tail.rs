//! Binlog events → items (no sockets): transactions, the outbox table's inserts, XA, and where all that stands.
//!
//! A group is what lies between a GTID event (or BEGIN) and its end: XID, COMMIT, ROLLBACK, XA PREPARE, or a statement
//! of its own such as DDL. A row-format binlog holds committed transactions, so the events of a large one go out as they
//! are read; the first few are held until its end, for the rare one that is rolled back in the binlog itself.
//! XA is the exception: the rows stand in the binlog at XA PREPARE, so they are held until XA COMMIT says that they
//! count, and the position that a checkpoint may take stays before them.

mod group;
mod outbox;
mod place;
mod plan;
mod prepared;
mod statement;
#[cfg(test)]
mod tests;
mod transactions;

use mysql_common::binlog::events::{Event, GtidEvent};

use super::decode::{
    DecodeError, Gtid, MariaDbGtidEvent, Query, Rotate, XaPrepare, XaStatement, event_type,
    uncompress_query, uncompress_rows,
};
use super::{Batch, SourceError};
use crate::catalogue::Catalogue;
use crate::config::Config;
use crate::mysql::Server;
use crate::position::{MariaDbGtid, Position, Source};
use crate::source::snapshot::finds_only_unpublished;
use group::Identity;
use outbox::Outbox;
use place::Place;
use plan::Unreadable;
use statement::{Statement, inserts_into};
use transactions::{Entangled, Transactions};

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
    outbox: Outbox,
    transactions: Transactions,
    /// Whether a snapshot finds only unpublished rows, so that taking one is no flood.
    finds_unpublished: bool,
    /// A compressed transaction has been announced and none of its events has come yet.
    payload_open: bool,
}

impl Tail {
    pub(super) fn new(config: &Config, position: Position) -> Self {
        Self {
            outbox: Outbox::new(config),
            transactions: Transactions::new(position),
            finds_unpublished: finds_only_unpublished(config),
            payload_open: false,
        }
    }

    /// A new stream of that server begins.
    pub(super) fn follow(&mut self, server: &Server) {
        self.outbox.follow(server.folds_names);
        self.transactions.follow();
    }

    /// The stream has broken: it will be opened again behind the last whole transaction.
    pub(super) fn interrupted(&mut self) {
        self.transactions.interrupted();
        self.payload_open = false;
        self.outbox.forget();
    }

    /// Where a stream has to begin.
    pub(super) fn position(&self) -> &Position {
        self.transactions.position()
    }

    /// Whether everything handed out is sealed by a commit.
    pub(super) fn between_transactions(&self) -> bool {
        self.transactions.all_sealed()
    }

    /// Whether everything up to `end` has been read.
    pub(super) fn position_reaches(&self, end: &Position) -> bool {
        // A MariaDB server may have got its first GTID meanwhile; the file tells in any case.
        self.position().reaches(end) || self.transactions.place.position().reaches(end)
    }

    /// Whether the transaction of what the last event gave lies at or before `end`.
    pub(super) fn group_lies_in(&self, end: &Position) -> bool {
        self.transactions.last_lies_in(end)
    }

    /// Whether the event is about the outbox table, and the binlog does not name its columns, and neither has the
    /// catalogue been asked.
    pub(super) fn needs_catalogue(&self, event: &Event) -> bool {
        event.header().event_type_raw() == event_type::TABLE_MAP
            && self.outbox.needs_catalogue(event.data())
    }

    pub(super) fn set_catalogue(&mut self, catalogue: Catalogue) {
        self.outbox.set_catalogue(catalogue);
    }

    /// Takes an event in; what comes of it goes to the end of `out`.
    pub(super) fn feed(&mut self, event: &Event, out: &mut Batch) -> Result<(), SourceError> {
        let (header, data) = (event.header(), event.data());
        let kind = header.event_type_raw();
        self.transactions.next_event(header.log_pos());
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
            XID => self.transactions.commit(out),
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

    fn rotate(
        &mut self,
        data: &[u8],
        artificial: bool,
        out: &mut Batch,
    ) -> Result<(), SourceError> {
        let rotate = self.read(Rotate::parse(data))?;
        let place = Place {
            file: String::from_utf8_lossy(rotate.file).into(),
            offset: rotate.position,
        };
        self.outbox.forget_ids();
        self.transactions.rotate(place, artificial, out);
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
        let committed_at = Some(i64::from(timestamp) * 1_000_000);
        let begun = self
            .transactions
            .begin(Identity::MariaDb(identity), committed_at);
        let Ok(group) = begun else {
            return Err(self.entangled());
        };
        group.in_transaction = !gtid.is_standalone();
        if gtid.is_prepared_xa() {
            group.begin_xa();
        }
        Ok(())
    }

    fn begin(&mut self, identity: Identity, committed_at: Option<i64>) -> Result<(), SourceError> {
        match self.transactions.begin(identity, committed_at) {
            Ok(_) => Ok(()),
            Err(Entangled) => Err(self.entangled()),
        }
    }

    fn query(&mut self, data: &[u8], out: &mut Batch) -> Result<(), SourceError> {
        let query = self.read(Query::parse(data))?;
        let sql = query.sql.trim_ascii();
        match Statement::parse(sql) {
            Statement::Begin => self.transactions.open().in_transaction = true,
            Statement::Commit => self.transactions.commit(out),
            Statement::Rollback => self.transactions.end(out),
            Statement::Savepoint(name) => self.transactions.open().save(name),
            Statement::RollbackTo(name) => self.transactions.open().roll_back_to(name),
            Statement::XaStart => self.transactions.open().begin_xa(),
            Statement::XaPause => {}
            Statement::XaCommit(statement) => self.xa_commit(&statement, out)?,
            Statement::XaRollback(statement) => {
                self.transactions.forget_prepared(&statement.xid);
                self.transactions.end(out);
            }
            Statement::Other { .. } if self.transactions.in_transaction() => {
                if inserts_into(sql, self.outbox.table()) {
                    let why = "a session with binlog_format = STATEMENT or MIXED wrote to the outbox table";
                    return Err(SourceError::Partial(why.to_owned()));
                }
            }
            Statement::Other { opens } => {
                self.outbox.may_be_altered();
                let group = self.transactions.open();
                group.noteworthy = true;
                if opens {
                    group.in_transaction = true;
                } else {
                    self.transactions.end(out);
                }
            }
        }
        Ok(())
    }

    fn xa_commit(&mut self, statement: &XaStatement, out: &mut Batch) -> Result<(), SourceError> {
        let known = self.transactions.commit_prepared(&statement.xid, out);
        if !known && !statement.one_phase && self.finds_unpublished {
            // It was prepared before the first event that we read: only the table tells whether it has rows of ours.
            let why = "a distributed transaction was committed that had been prepared before it";
            return Err(SourceError::Gap(why.to_owned()));
        }
        self.transactions.commit(out);
        Ok(())
    }

    fn xa_prepare(&mut self, data: &[u8], out: &mut Batch) -> Result<(), SourceError> {
        let prepare = self.read(XaPrepare::parse(data))?;
        if prepare.one_phase {
            self.transactions.commit(out);
        } else {
            self.transactions.prepare(prepare.xid, out);
        }
        Ok(())
    }

    fn table_map(&mut self, data: &[u8], timestamp: u32) -> Result<(), SourceError> {
        let mapped = self.outbox.map(data, timestamp);
        let noteworthy = self.read(mapped)?;
        if noteworthy {
            self.transactions.open().noteworthy = true;
        }
        Ok(())
    }

    fn rows(&mut self, kind: u8, data: &[u8], out: &mut Batch) -> Result<(), SourceError> {
        let Self {
            outbox,
            transactions,
            ..
        } = self;
        let read = outbox.events(kind, data, |event| transactions.event(event, out));
        match read {
            Ok(ours) => {
                if ours {
                    self.transactions.open().noteworthy = true;
                }
                Ok(())
            }
            Err(Unreadable::Decode(error)) => self.read(Err(error)),
            Err(Unreadable::Nameless(why)) => Err(SourceError::Gap(why)),
            Err(Unreadable::Partial(why)) => Err(SourceError::Partial(why)),
        }
    }

    fn read<T>(&self, decoded: Result<T, DecodeError>) -> Result<T, SourceError> {
        decoded.map_err(|source| SourceError::Decode {
            place: self.transactions.place.to_string(),
            source,
        })
    }

    fn entangled(&self) -> SourceError {
        self.damaged("a transaction begins within another")
    }

    fn damaged(&self, why: &'static str) -> SourceError {
        SourceError::Damaged {
            place: self.transactions.place.to_string(),
            why,
        }
    }
}

fn micros(commit: u64) -> Option<i64> {
    i64::try_from(commit).ok().filter(|micros| *micros > 0)
}
