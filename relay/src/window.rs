//! In flight → watermark: order, retries, attempts and dead letters, decided here alone (pure).
//!
//! ```text
//! push_event ─▶ lane of its aggregate ─▶ ready ─▶ in flight ─▶ confirmed ─┐
//!                     ▲                    ▲          │ own failure        ├▶ watermark
//!                     │                    └─ backoff ◀┤                   │
//!                     └ next of the lane               └▶ dead letter ─────┘
//! ```
//!
//! Every event belongs to a batch, which a commit seals. The watermark moves over sealed batches without
//! an outstanding event, from the front only: it never passes an event that is neither confirmed nor
//! durably dead-lettered. The default of every outcome is "not confirmed".

mod progress;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault};
use std::time::{Duration, Instant};

use reliability::resilience::Backoff;
use rustc_hash::FxHasher;
use thiserror::Error;

use crate::config::Ordering;
use crate::event::{Key, OutboxEvent};
use crate::position::{Position, Step};
use progress::Progress;

/// The bounds and the policy of a window.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Events held at once.
    pub events: usize,
    /// Bytes held at once.
    pub bytes: usize,
    /// Transactions held behind the first that is not settled. A retried event holds up the watermark but
    /// not the others; this bounds what may pile up behind it.
    pub transactions: usize,
    /// Order kept.
    pub ordering: Ordering,
    /// Failures of its own that make an event a dead letter.
    pub max_attempts: u32,
    /// Delays between attempts.
    pub backoff: Backoff,
}

/// Names an event in the window; valid until it is confirmed or dead-lettered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(usize);

/// An event's own failure, as opposed to an outage.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// No queue is bound for it.
    #[error("unroutable: {code} {text}")]
    Returned {
        /// AMQP reply code.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// The broker refused to take responsibility for it.
    #[error("the broker answered nack")]
    Nacked,
}

/// What the broker's word on an event leads to.
#[derive(Debug)]
pub enum Verdict {
    /// Done; the event has left the window.
    Confirmed(Box<OutboxEvent>),
    /// To be tried again.
    Retry {
        /// Which.
        slot: Slot,
        /// Failures so far.
        attempts: u32,
    },
    /// Given up; [`Window::buried`] takes it out once the dead letter is durable.
    DeadLetter {
        /// Which.
        slot: Slot,
        /// Failures so far.
        attempts: u32,
    },
}

/// A tag that is not in flight: the connection can't be trusted.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the broker settled delivery tag {0}, which is not in flight")]
pub struct UnknownTag(pub u64);

#[derive(Debug)]
struct Entry {
    event: Box<OutboxEvent>,
    weight: usize,
    lane: u64,
    batch: u64,
    attempts: u32,
    sent: Option<Instant>,
}

/// Events between capture and confirm.
#[derive(Debug)]
pub struct Window {
    limits: Limits,
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    bytes: usize,
    /// Aggregates with an event that is ready, in flight, in backoff or being buried: the events behind it.
    lanes: HashMap<u64, VecDeque<usize>, BuildHasherDefault<FxHasher>>,
    ready: VecDeque<usize>,
    backoff: BinaryHeap<Reverse<(Instant, usize)>>,
    /// By delivery tag, from `first_tag`; `None` is settled.
    in_flight: VecDeque<Option<usize>>,
    first_tag: u64,
    progress: Progress,
}

impl Window {
    /// An empty window behind `position`.
    pub fn new(limits: Limits, position: Position) -> Self {
        Self {
            limits,
            entries: Vec::new(),
            free: Vec::new(),
            bytes: 0,
            lanes: HashMap::default(),
            ready: VecDeque::new(),
            backoff: BinaryHeap::new(),
            in_flight: VecDeque::new(),
            first_tag: 1,
            progress: Progress::new(position),
        }
    }

    /// Whether more may be taken in.
    pub fn has_room(&self) -> bool {
        self.len() < self.limits.events
            && self.bytes < self.limits.bytes
            && self.progress.held() < self.limits.transactions
    }

    /// Takes in the next event of the open transaction.
    pub fn push_event(&mut self, event: OutboxEvent) {
        let lane = lane_of(&event);
        let weight = event.weight();
        let batch = self.progress.event();
        // What a row knows of failures before this relay's time counts.
        let attempts = event.attempts;
        let entry = Entry {
            event: Box::new(event),
            weight,
            lane,
            batch,
            attempts,
            sent: None,
        };
        self.bytes += weight;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.entries.push(None);
                self.entries.len() - 1
            }
        };
        if let Some(place) = self.entries.get_mut(slot) {
            *place = Some(entry);
        }
        match self.limits.ordering {
            Ordering::None => self.ready.push_back(slot),
            Ordering::Aggregate => match self.lanes.get_mut(&lane) {
                Some(behind) => behind.push_back(slot),
                None => {
                    self.lanes.insert(lane, VecDeque::new());
                    self.ready.push_back(slot);
                }
            },
        }
    }

    /// Ends the open transaction, or counts one without events. `noteworthy` transactions make the
    /// checkpoint worth writing; the relay's own marks and checkpoints are not.
    pub fn push_commit(&mut self, step: Step, noteworthy: bool) {
        self.progress.commit(step, noteworthy);
    }

    /// The next event to publish. It must then be [`sent`](Self::sent) or [`doomed`](Self::doom).
    pub fn next_ready(&mut self, now: Instant) -> Option<Slot> {
        while let Some(Reverse((due, slot))) = self.backoff.peek().copied() {
            if due > now {
                break;
            }
            self.backoff.pop();
            self.ready.push_back(slot);
        }
        self.ready.pop_front().map(Slot)
    }

    /// When the next event leaves its backoff.
    pub fn next_retry(&self) -> Option<Instant> {
        self.backoff.peek().map(|Reverse((due, _))| *due)
    }

    /// Whether [`next_ready`](Self::next_ready) would give an event, backoffs aside.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The event in a slot.
    pub fn event(&self, slot: Slot) -> Option<&OutboxEvent> {
        self.entry(slot.0).map(|entry| &*entry.event)
    }

    /// Notes that a ready event was published under the connection's next tag.
    pub fn sent(&mut self, slot: Slot, tag: u64, now: Instant) {
        debug_assert_eq!(
            tag,
            self.first_tag + self.in_flight.len() as u64,
            "tags are consecutive"
        );
        self.in_flight.push_back(Some(slot.0));
        if let Some(entry) = self.entry_mut(slot.0) {
            entry.sent = Some(now);
        }
    }

    /// A confirm.
    ///
    /// # Errors
    /// The tag is not in flight.
    pub fn confirmed(&mut self, tag: u64) -> Result<Verdict, UnknownTag> {
        let slot = self.land(tag)?;
        let event = self.finish(slot).ok_or(UnknownTag(tag))?;
        Ok(Verdict::Confirmed(event))
    }

    /// The event's own failure: it is tried again after a backoff, up to the limit.
    ///
    /// # Errors
    /// The tag is not in flight.
    pub fn failed(&mut self, tag: u64, now: Instant) -> Result<Verdict, UnknownTag> {
        let slot = self.land(tag)?;
        self.fail(slot, now).ok_or(UnknownTag(tag))
    }

    /// A ready event's own failure, known without sending it; as [`failed`](Self::failed).
    pub fn failed_unsent(&mut self, slot: Slot, now: Instant) -> Option<Verdict> {
        self.fail(slot.0, now)
    }

    /// What is in flight, in the order of sending.
    pub fn sent_events(&self) -> impl Iterator<Item = (u64, &OutboxEvent)> {
        let tags = self.first_tag..;
        tags.zip(&self.in_flight).filter_map(|(tag, slot)| {
            let entry = self.entry((*slot)?)?;
            Some((tag, &*entry.event))
        })
    }

    /// The keys of all events held.
    pub fn keys(&self) -> Vec<Key> {
        let entries = self.entries.iter().flatten();
        entries.map(|entry| entry.event.id.clone()).collect()
    }

    fn fail(&mut self, slot: usize, now: Instant) -> Option<Verdict> {
        let (max_attempts, backoff) = (self.limits.max_attempts, self.limits.backoff.clone());
        let entry = self.entry_mut(slot)?;
        entry.attempts += 1;
        let attempts = entry.attempts;
        if attempts >= max_attempts {
            return Some(Verdict::DeadLetter {
                slot: Slot(slot),
                attempts,
            });
        }
        // The next attempt is the one whose delay counts.
        self.backoff
            .push(Reverse((now + backoff.delay(attempts + 1), slot)));
        Some(Verdict::Retry {
            slot: Slot(slot),
            attempts,
        })
    }

    /// Gives up a ready event that can never be published; the number of its attempts comes back.
    pub fn doom(&mut self, slot: Slot) -> u32 {
        self.entry_mut(slot.0).map_or(0, |entry| {
            entry.attempts += 1;
            entry.attempts
        })
    }

    /// Takes out an event whose dead letter is durable; its aggregate goes on.
    pub fn buried(&mut self, slot: Slot) {
        self.finish(slot.0);
    }

    /// The connection is gone, or a new one begins: everything in flight is undecided and goes back to
    /// the front in its order. No attempt is counted.
    pub fn disconnected(&mut self) {
        while let Some(back) = self.in_flight.pop_back() {
            if let Some(slot) = back {
                self.ready.push_front(slot);
                if let Some(entry) = self.entry_mut(slot) {
                    entry.sent = None;
                }
            }
        }
        self.first_tag = 1;
    }

    /// How long the oldest unconfirmed publication has waited.
    pub fn oldest_wait(&self, now: Instant) -> Option<Duration> {
        self.oldest_sent()
            .map(|sent| now.saturating_duration_since(sent))
    }

    /// When the oldest unconfirmed publication was sent.
    pub fn oldest_sent(&self) -> Option<Instant> {
        let slot = self.in_flight.front().copied().flatten()?;
        self.entry(slot)?.sent
    }

    /// Everything up to here is confirmed or durably dead-lettered.
    pub fn watermark(&self) -> &Position {
        self.progress.watermark()
    }

    /// Whether the watermark has moved over a noteworthy transaction since it was last
    /// [taken](Self::take_progress).
    pub fn has_progress(&self) -> bool {
        self.progress.noteworthy()
    }

    /// The watermark, as noted for a checkpoint.
    pub fn take_progress(&mut self) -> Position {
        self.progress.take()
    }

    /// Events held.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether no event is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Publications without a word from the broker.
    pub fn in_flight(&self) -> usize {
        self.in_flight.iter().filter(|slot| slot.is_some()).count()
    }

    fn entry(&self, slot: usize) -> Option<&Entry> {
        self.entries.get(slot)?.as_ref()
    }

    fn entry_mut(&mut self, slot: usize) -> Option<&mut Entry> {
        self.entries.get_mut(slot)?.as_mut()
    }

    /// Takes a tag out of flight.
    fn land(&mut self, tag: u64) -> Result<usize, UnknownTag> {
        let at = tag
            .checked_sub(self.first_tag)
            .and_then(|at| usize::try_from(at).ok());
        let place = at
            .and_then(|at| self.in_flight.get_mut(at))
            .ok_or(UnknownTag(tag))?;
        let slot = place.take().ok_or(UnknownTag(tag))?;
        while matches!(self.in_flight.front(), Some(None)) {
            self.in_flight.pop_front();
            self.first_tag += 1;
        }
        Ok(slot)
    }

    /// Takes an event out of the window and lets the next of its aggregate go.
    fn finish(&mut self, slot: usize) -> Option<Box<OutboxEvent>> {
        let entry = self.entries.get_mut(slot)?.take()?;
        self.free.push(slot);
        self.bytes -= entry.weight;
        self.progress.settled(entry.batch);
        if self.limits.ordering == Ordering::Aggregate {
            match self.lanes.get_mut(&entry.lane).map(VecDeque::pop_front) {
                Some(Some(next)) => self.ready.push_back(next),
                Some(None) | None => {
                    self.lanes.remove(&entry.lane);
                }
            }
        }
        Some(entry.event)
    }
}

/// Two aggregates of the same hash share a lane, which costs them speed but never their order.
fn lane_of(event: &OutboxEvent) -> u64 {
    BuildHasherDefault::<FxHasher>::default().hash_one((&event.aggregate_type, &event.aggregate_id))
}

#[cfg(test)]
mod tests;
