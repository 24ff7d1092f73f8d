//! The contiguous watermark over transactions.

use std::collections::VecDeque;

use crate::position::{Position, Step};

#[derive(Debug, Default)]
struct Batch {
    outstanding: u32,
    sealed: bool,
    noteworthy: bool,
    /// Its commit, then those of later transactions without events that can't be one run with it.
    steps: Vec<Step>,
}

/// Transactions from the first that is not settled on.
#[derive(Debug)]
pub(super) struct Progress {
    watermark: Position,
    noteworthy: bool,
    batches: VecDeque<Batch>,
    first: u64,
}

impl Progress {
    pub(super) fn new(watermark: Position) -> Self {
        Self {
            watermark,
            noteworthy: false,
            batches: VecDeque::new(),
            first: 0,
        }
    }

    /// Counts an event into the open batch and names that batch.
    pub(super) fn event(&mut self) -> u64 {
        if self.batches.back().is_none_or(|batch| batch.sealed) {
            self.batches.push_back(Batch::default());
        }
        if let Some(open) = self.batches.back_mut() {
            open.outstanding += 1;
        }
        self.first + self.batches.len() as u64 - 1
    }

    /// Seals the open batch, or adds a transaction without events to what goes before it.
    pub(super) fn commit(&mut self, step: Step, noteworthy: bool) {
        let Some(last) = self.batches.back_mut() else {
            self.watermark.advance(step);
            self.noteworthy |= noteworthy;
            return;
        };
        last.sealed = true;
        last.noteworthy |= noteworthy;
        let rest = last.steps.iter_mut().try_fold(step, |step, earlier| {
            // `Err` is the way out of the fold: the step was taken in.
            earlier.absorb(step).ok_or(())
        });
        if let Ok(step) = rest {
            last.steps.push(step);
        }
        self.advance();
    }

    /// One event of a batch is confirmed or buried.
    pub(super) fn settled(&mut self, batch: u64) {
        let at = usize::try_from(batch - self.first).unwrap_or(usize::MAX);
        if let Some(batch) = self.batches.get_mut(at) {
            batch.outstanding -= 1;
        }
        self.advance();
    }

    fn advance(&mut self) {
        while self
            .batches
            .front()
            .is_some_and(|batch| batch.sealed && batch.outstanding == 0)
        {
            let Some(batch) = self.batches.pop_front() else {
                return;
            };
            self.first += 1;
            self.noteworthy |= batch.noteworthy;
            for step in batch.steps {
                self.watermark.advance(step);
            }
        }
    }

    pub(super) fn watermark(&self) -> &Position {
        &self.watermark
    }

    pub(super) fn noteworthy(&self) -> bool {
        self.noteworthy
    }

    pub(super) fn take(&mut self) -> Position {
        self.noteworthy = false;
        self.watermark.clone()
    }

    pub(super) fn held(&self) -> usize {
        self.batches.len()
    }
}
