//! The transaction being read.

use crate::event::OutboxEvent;
use crate::position::{MariaDbGtid, Source};

/// Events of a transaction that are held back until its end is read: hardly any has more, and a rollback behind them
/// (a temporary table makes MariaDB log one) still takes them out.
const HELD: usize = 256;
/// Bytes of such events.
const HELD_BYTES: usize = 4 << 20;

/// By what a transaction is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Identity {
    /// By its place in the binlog alone.
    None,
    /// By a MySQL GTID.
    Gtid(Source, u64),
    /// By a MariaDB GTID.
    MariaDb(MariaDbGtid),
}

/// A transaction that has begun and not ended.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) identity: Identity,
    committed_at: Option<i64>,
    /// Offset behind the event that began it.
    pub(super) began: u64,
    /// Between BEGIN and COMMIT: statements in it do not end it.
    pub(super) in_transaction: bool,
    /// Whether it holds anything but the relay's own writes.
    pub(super) noteworthy: bool,
    /// Events that are not out yet.
    held: Vec<OutboxEvent>,
    held_bytes: usize,
    /// Savepoints, each with the number of events before it.
    savepoints: Vec<(Vec<u8>, u64)>,
    /// Events that are out, or were before an interruption.
    pub(super) emitted: u64,
    /// Events of an XA transaction, held until it is known to be committed.
    pub(super) xa: Option<Vec<OutboxEvent>>,
}

impl Group {
    pub(super) fn new(identity: Identity, committed_at: Option<i64>, began: u64) -> Self {
        Self {
            identity,
            committed_at,
            began,
            in_transaction: false,
            noteworthy: false,
            held: Vec::new(),
            held_bytes: 0,
            savepoints: Vec::new(),
            emitted: 0,
            xa: None,
        }
    }

    pub(super) fn begin_xa(&mut self) {
        self.in_transaction = true;
        self.xa.get_or_insert_default();
    }

    pub(super) fn take_xa(&mut self) -> Vec<OutboxEvent> {
        self.xa.take().unwrap_or_default()
    }

    /// Holds an event back; whether it is time to let go.
    pub(super) fn hold(&mut self, event: OutboxEvent) -> bool {
        self.held_bytes += event.weight();
        self.held.push(event);
        self.held.len() > HELD || self.held_bytes > HELD_BYTES
    }

    /// Whether it has given events, or would at its end.
    pub(super) fn has_events(&self) -> bool {
        self.emitted > 0 || !self.held.is_empty()
    }

    pub(super) fn let_go(&mut self) -> Vec<OutboxEvent> {
        self.held_bytes = 0;
        std::mem::take(&mut self.held)
    }

    /// A savepoint is set; an earlier one of its name is gone.
    pub(super) fn save(&mut self, name: &[u8]) {
        let name = plain(name);
        self.savepoints.retain(|(other, _)| *other != name);
        self.savepoints.push((name, self.count()));
    }

    /// What came after the savepoint does not count.
    pub(super) fn roll_back_to(&mut self, name: &[u8]) {
        let name = plain(name);
        let Some(at) = self.savepoints.iter().position(|(other, _)| *other == name) else {
            return;
        };
        let kept = self.savepoints.get(at).map_or(0, |(_, before)| *before);
        self.savepoints.truncate(at + 1);
        let kept = usize::try_from(kept.saturating_sub(self.emitted)).unwrap_or(usize::MAX);
        // An XA transaction holds all of its events apart, and has let none go.
        self.xa.as_mut().unwrap_or(&mut self.held).truncate(kept);
    }

    /// Events so far.
    fn count(&self) -> u64 {
        self.emitted + self.xa.as_ref().unwrap_or(&self.held).len() as u64
    }

    /// MariaDB tells the second of the commit only: the row's own time is nearer where it lies within that second.
    pub(super) fn commit_time(&self, created_at: Option<i64>) -> Option<i64> {
        let committed = self.committed_at?;
        if !matches!(self.identity, Identity::MariaDb(_)) {
            return Some(committed);
        }
        let within = |micros: &i64| (committed..committed + 1_000_000).contains(micros);
        Some(created_at.filter(within).unwrap_or(committed))
    }
}

/// The name of a savepoint without its quotes; names compare without case.
fn plain(name: &[u8]) -> Vec<u8> {
    name.trim_ascii()
        .iter()
        .filter(|byte| **byte != b'`')
        .map(u8::to_ascii_lowercase)
        .collect()
}
