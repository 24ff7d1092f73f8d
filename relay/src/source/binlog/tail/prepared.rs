//! XA transactions between PREPARE and their end, and the steps that must wait for them.

use std::collections::{HashMap, HashSet};

use crate::event::OutboxEvent;
use crate::position::Step;
use crate::source::binlog::decode::Xid;
use crate::source::{Batch, Item};

#[derive(Debug)]
struct Held {
    events: Vec<OutboxEvent>,
    /// The PREPARE's own step, where leaving it out keeps a hole in the position (GTID sets).
    step: Option<Step>,
}

/// Prepared transactions with outbox rows. A GTID set can leave one out; any other position has to stay before the
/// first of them until all are decided.
#[derive(Debug)]
pub(super) struct Prepared {
    held: HashMap<Xid, Held>,
    /// Prepared transactions without rows of ours.
    foreign: HashSet<Xid>,
    /// Steps kept back while `held` has one that leaves no hole.
    waiting: Vec<Step>,
    noteworthy: bool,
}

impl Prepared {
    pub(super) fn new() -> Self {
        Self {
            held: HashMap::new(),
            foreign: HashSet::new(),
            waiting: Vec::new(),
            noteworthy: false,
        }
    }

    /// A transaction is prepared: its rows may still be rolled back.
    pub(super) fn prepare(
        &mut self,
        xid: Xid,
        events: Vec<OutboxEvent>,
        step: Step,
        noteworthy: bool,
        out: &mut Batch,
    ) {
        if events.is_empty() {
            // Not ours: nothing has to wait for it.
            self.foreign.insert(xid);
            self.release(step, noteworthy, out);
            return;
        }
        if matches!(step, Step::Gtid { .. }) {
            self.noteworthy |= noteworthy;
            self.held.insert(
                xid,
                Held {
                    events,
                    step: Some(step),
                },
            );
        } else {
            self.held.insert(xid, Held { events, step: None });
            self.hold_back(step, noteworthy);
        }
    }

    /// It is decided. Its events, if its PREPARE was read; the PREPARE's step is taken together with the deciding one's.
    pub(super) fn resolve(&mut self, xid: &Xid) -> Option<Vec<OutboxEvent>> {
        if self.foreign.remove(xid) {
            return Some(Vec::new());
        }
        let held = self.held.remove(xid)?;
        self.waiting.extend(held.step);
        Some(held.events)
    }

    /// A transaction has ended with that step.
    pub(super) fn release(&mut self, step: Step, noteworthy: bool, out: &mut Batch) {
        self.hold_back(step, noteworthy);
        if self.held.values().any(|held| held.step.is_none()) {
            return;
        }
        let noteworthy = std::mem::take(&mut self.noteworthy);
        for step in self.waiting.drain(..) {
            out.push(Item::Commit { step, noteworthy });
        }
    }

    fn hold_back(&mut self, step: Step, noteworthy: bool) {
        self.noteworthy |= noteworthy;
        let rest = self.waiting.iter_mut().try_fold(step, |step, earlier| {
            // `Err` is the way out of the fold: the step was taken in.
            earlier.absorb(step).ok_or(())
        });
        self.waiting.extend(rest);
    }
}
