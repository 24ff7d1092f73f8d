//! The transactions that events belong to, whatever the events are made of (pure): what goes out when, and how far the
//! position gets by it.

use super::group::{Group, Identity};
use super::place::Place;
use super::prepared::Prepared;
use crate::event::OutboxEvent;
use crate::position::{Position, Step};
use crate::source::binlog::decode::Xid;
use crate::source::{Batch, Item};

/// A transaction begins within another, which has events.
#[derive(Debug)]
pub(super) struct Entangled;

/// The transaction being read, and what became of those before.
pub(super) struct Transactions {
    /// Read up to here: ahead of what may be checkpointed while an XA transaction is prepared.
    position: Position,
    pub(super) place: Place,
    group: Option<Group>,
    /// The transaction that the last event ended.
    ended: Option<Group>,
    /// Events of the interrupted transaction that are out already.
    skip: u64,
    prepared: Prepared,
}

impl Transactions {
    pub(super) fn new(position: Position) -> Self {
        Self {
            position,
            place: Place::new(),
            group: None,
            ended: None,
            skip: 0,
            prepared: Prepared::new(),
        }
    }

    /// A new stream begins behind the last whole transaction.
    pub(super) fn follow(&mut self) {
        if let Position::File { file, offset } = &self.position {
            self.place.file = file.clone();
            self.place.offset = *offset;
        }
    }

    /// The stream has broken.
    pub(super) fn interrupted(&mut self) {
        self.skip = self
            .group
            .take()
            .map_or(self.skip, |group| group.emitted.max(self.skip));
    }

    pub(super) fn position(&self) -> &Position {
        &self.position
    }

    /// Whether everything handed out is sealed by a commit.
    pub(super) fn all_sealed(&self) -> bool {
        self.group.is_none() && self.skip == 0
    }

    /// Whether statements are part of a transaction that is open.
    pub(super) fn in_transaction(&self) -> bool {
        self.group
            .as_ref()
            .is_some_and(|group| group.in_transaction)
    }

    /// Whether the transaction of what the last event gave lies at or before `end`.
    pub(super) fn last_lies_in(&self, end: &Position) -> bool {
        let Some(group) = self.group.as_ref().or(self.ended.as_ref()) else {
            return false;
        };
        match (end, self.step_of(group)) {
            // The end of the transaction is not known yet; its events are asked about one too often at most.
            (Position::File { .. }, _) => end.covers(&Step::File {
                file: self.place.file.clone(),
                offset: group.began,
            }),
            (Position::Gtid(_) | Position::MariaDb(_), step) => end.covers(&step),
        }
    }

    /// The next event is read: what the last one ended is past.
    pub(super) fn next_event(&mut self, log_pos: u32) {
        self.ended = None;
        self.place.advance(log_pos);
    }

    /// Goes on in another file, at that place; `artificial` where the binlog itself does not say so.
    pub(super) fn rotate(&mut self, place: Place, artificial: bool, out: &mut Batch) {
        self.place = place;
        // An offset beyond 4 GiB can't be asked for: the next file's start can.
        if !artificial && matches!(self.position, Position::File { .. }) && self.group.is_none() {
            let step = self.place.step();
            self.position.advance(step.clone());
            self.prepared.release(step, false, out);
        }
    }

    pub(super) fn begin(
        &mut self,
        identity: Identity,
        committed_at: Option<i64>,
    ) -> Result<&mut Group, Entangled> {
        if self.group.as_ref().is_some_and(Group::has_events) {
            return Err(Entangled);
        }
        let group = Group::new(identity, committed_at, self.place.offset);
        Ok(self.group.insert(group))
    }

    /// The open group, or a new one: old binlogs have no event before BEGIN.
    pub(super) fn open(&mut self) -> &mut Group {
        let offset = self.place.offset;
        self.group
            .get_or_insert_with(|| Group::new(Identity::None, None, offset))
    }

    /// A row of the open transaction.
    pub(super) fn event(&mut self, event: OutboxEvent, out: &mut Batch) {
        if let Some(held) = &mut self.open().xa {
            held.push(event);
        } else {
            self.emit(event, out);
        }
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

    /// The transaction counts, with what of it was held.
    pub(super) fn commit(&mut self, out: &mut Batch) {
        for event in self.open().take_xa() {
            self.emit(event, out);
        }
        self.let_go(out);
        self.end(out);
    }

    /// The transaction ends, without what of it was held.
    pub(super) fn end(&mut self, out: &mut Batch) {
        let Some(group) = self.group.take() else {
            return;
        };
        self.skip = 0;
        let step = self.step_of(&group);
        self.position.advance(step.clone());
        self.prepared.release(step, group.noteworthy, out);
        self.ended = Some(group);
    }

    /// The transaction is prepared: whether it counts is decided by another.
    pub(super) fn prepare(&mut self, xid: Xid, out: &mut Batch) {
        let held = self.open().take_xa();
        let Some(group) = self.group.take() else {
            return;
        };
        let step = self.step_of(&group);
        self.position.advance(step.clone());
        self.prepared
            .prepare(xid, held, step, group.noteworthy, out);
    }

    /// A prepared transaction is committed by the open one; whether its preparation was read.
    pub(super) fn commit_prepared(&mut self, xid: &Xid, out: &mut Batch) -> bool {
        let events = self.prepared.resolve(xid);
        let known = events.is_some();
        for event in events.unwrap_or_default() {
            self.emit(event, out);
        }
        known
    }

    /// A prepared transaction is rolled back by the open one.
    pub(super) fn forget_prepared(&mut self, xid: &Xid) {
        self.prepared.resolve(xid);
    }

    fn step_of(&self, group: &Group) -> Step {
        match (&group.identity, &self.position) {
            (_, Position::File { .. }) | (Identity::None, _) => self.place.step(),
            (Identity::Gtid(source, gno), _) => Step::Gtid {
                source: source.clone(),
                first: *gno,
                last: *gno,
            },
            (Identity::MariaDb(gtid), _) => Step::MariaDb(*gtid),
        }
    }
}
