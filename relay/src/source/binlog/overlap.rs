//! The stretch of binlog that a snapshot may have seen: rows that it published are left out of the tail.

use super::tail::Tail;
use super::{Batch, Item, SourceError};
use crate::source::snapshot::Snapshot;

/// A snapshot whose read view is still open.
pub(super) struct Overlap(Snapshot);

impl Overlap {
    /// The overlap behind a snapshot; none where the snapshot knows its exact position.
    pub(super) fn after(snapshot: Snapshot) -> Option<Self> {
        (snapshot.start != snapshot.end).then_some(Self(snapshot))
    }

    /// Whether the tail has passed everything that the read view can hold.
    pub(super) fn is_past(&self, tail: &Tail) -> bool {
        tail.position_reaches(&self.0.end)
    }

    /// Takes out of `batch`, from `from` on, the events that were published from the snapshot; how many.
    ///
    /// A transaction's events are looked up one by one: the overlap is as long as the opening of a snapshot.
    pub(super) async fn filter(
        &mut self,
        tail: &Tail,
        batch: &mut Batch,
        from: usize,
    ) -> Result<u64, SourceError> {
        let mut left_out = 0;
        if !tail.group_lies_in(&self.0.end) {
            return Ok(left_out);
        }
        let items: Vec<Item> = batch.drain(from..).collect();
        for item in items {
            let seen = match &item {
                Item::Event(event) => self
                    .0
                    .holds(&event.id)
                    .await
                    .map_err(SourceError::SnapshotLost)?,
                Item::Commit { .. } => false,
            };
            if seen {
                left_out += 1;
            } else {
                batch.push(item);
            }
        }
        Ok(left_out)
    }
}
