//! What a source yields: events, and the commits that seal them.

pub mod binlog;
pub mod claim;
pub mod poll;
mod select;
mod snapshot;
pub mod supervisor;
pub mod sweep;

use crate::event::OutboxEvent;
use crate::position::Step;

/// One thing read.
#[derive(Debug)]
pub enum Item {
    /// The next event of the open transaction.
    Event(OutboxEvent),
    /// The end of a transaction.
    Commit {
        /// What it adds to the position.
        step: Step,
        /// Whether it is worth a checkpoint: the relay's own writes are not.
        noteworthy: bool,
    },
}

/// Things read at once: a channel hop for each would cost more than the reading.
pub type Batch = Vec<Item>;
