//! What gathers for the ledger, and when it goes there: one settlement at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::config::Config;
use crate::dead_letter::DeadLetter;
use crate::event::Key;
use crate::ledger::{FailureNote, Settlement};
use crate::window::{Slot, Window};

/// Marks that make a settlement worth writing at once.
const MARK_BATCH: usize = 1_000;
/// Marks waiting above which intake stops: what MySQL can't keep up with must not pile up.
const MARK_BOUND: usize = 50_000;

/// The settlement that is open, and the one that the ledger has.
pub(super) struct Settling {
    mark_interval: Duration,
    checkpoint_interval: Duration,
    /// How often leases are renewed, where rows are claimed.
    renewal_interval: Option<Duration>,
    open: Settlement,
    /// When the open settlement got its first part.
    since: Option<Instant>,
    busy: bool,
    /// Settlements handed over.
    handed: u64,
    last_checkpoint: Option<Instant>,
    last_renewal: Instant,
}

impl Settling {
    pub(super) fn new(config: &Config, renewal_interval: Option<Duration>) -> Self {
        Self {
            mark_interval: config.mark_interval,
            checkpoint_interval: config.checkpoint_interval,
            renewal_interval,
            open: Settlement::default(),
            since: None,
            busy: false,
            handed: 0,
            last_checkpoint: None,
            last_renewal: Instant::now(),
        }
    }

    pub(super) fn mark(&mut self, id: Key) {
        self.open.marks.push(id);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Notes a failed attempt; a later one takes the place of an earlier one.
    pub(super) fn fail(&mut self, note: FailureNote) {
        self.open.failures.retain(|other| other.id != note.id);
        self.open.failures.push(note);
        self.since.get_or_insert_with(Instant::now);
    }

    pub(super) fn bury(&mut self, slot: Slot, letter: DeadLetter) {
        self.open.dead_letters.push((slot, letter));
        self.since.get_or_insert_with(Instant::now);
    }

    /// Whether more may be taken in.
    pub(super) fn has_room(&self) -> bool {
        self.open.marks.len() < MARK_BOUND
    }

    /// Whether nothing is open or with the ledger.
    pub(super) fn is_written(&self) -> bool {
        !self.busy && self.open.is_empty()
    }

    /// A number that [`has_written`](Self::has_written) will know once all that has gathered by now is durable.
    pub(super) fn ticket(&self) -> u64 {
        if self.open.is_empty() {
            self.handed
        } else {
            self.handed + 1
        }
    }

    /// Whether what had gathered by that ticket is durable.
    pub(super) fn has_written(&self, ticket: u64) -> bool {
        let written = self.handed - u64::from(self.busy);
        written >= ticket
    }

    /// Gives the ledger what has gathered, if it is free and there is reason to.
    pub(super) fn hand_over(
        &mut self,
        window: &mut Window,
        ledger: &mpsc::Sender<Arc<Settlement>>,
        draining: bool,
        now: Instant,
    ) {
        if self.busy {
            return;
        }
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        if is_due(self.renewal_due(window)) {
            self.open.renewals = window.keys();
            self.last_renewal = now;
        }
        let checkpoint_due = is_due(self.checkpoint_due(window, draining, now));
        let due = checkpoint_due
            || !self.open.renewals.is_empty()
            || self.open.marks.len() >= MARK_BATCH
            || is_due(self.settlement_due())
            || (draining && !self.open.is_empty());
        if !due {
            return;
        }
        if checkpoint_due {
            self.open.checkpoint = Some(window.take_progress());
            self.last_checkpoint = Some(now);
        }
        self.since = None;
        let settlement = Arc::new(std::mem::take(&mut self.open));
        // The channel holds one, and the ledger is not busy: there is room, or the ledger has ended, which
        // the closed channel of receipts tells.
        if ledger.try_send(settlement).is_ok() {
            self.busy = true;
            self.handed += 1;
        }
    }

    /// The ledger has written what it had.
    pub(super) fn settled(&mut self) {
        self.busy = false;
    }

    /// When there is reason to hand over next, if the ledger is free.
    pub(super) fn next_due(
        &self,
        window: &Window,
        draining: bool,
        now: Instant,
    ) -> Option<Instant> {
        if self.busy {
            return None;
        }
        [
            self.settlement_due(),
            self.checkpoint_due(window, draining, now),
            self.renewal_due(window),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn settlement_due(&self) -> Option<Instant> {
        self.since.map(|since| since + self.mark_interval)
    }

    fn checkpoint_due(&self, window: &Window, draining: bool, now: Instant) -> Option<Instant> {
        if !window.has_progress() {
            return None;
        }
        match self.last_checkpoint {
            Some(last) if !draining => Some(last + self.checkpoint_interval),
            Some(_) | None => Some(now),
        }
    }

    fn renewal_due(&self, window: &Window) -> Option<Instant> {
        let interval = self.renewal_interval?;
        (!window.is_empty()).then(|| self.last_renewal + interval)
    }
}
