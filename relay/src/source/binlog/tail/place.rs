//! Where in the binlog an event stands (pure).

use std::fmt;
use std::sync::Arc;

use crate::position::{Position, Step};

/// A place behind the last event that was read.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) file: Arc<str>,
    pub(super) offset: u64,
}

impl Place {
    pub(super) fn new() -> Self {
        Self {
            file: "".into(),
            offset: 0,
        }
    }

    /// `log_pos` has 32 bits and wraps in a binlog beyond 4 GiB; events are smaller than that. 0 means an event that
    /// is not in the file.
    pub(super) fn advance(&mut self, log_pos: u32) {
        if log_pos != 0 {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the low half is what is compared"
            )]
            let low = self.offset as u32;
            self.offset += u64::from(log_pos.wrapping_sub(low));
        }
    }

    /// As a position.
    pub(super) fn position(&self) -> Position {
        let Self { file, offset } = self.clone();
        Position::File { file, offset }
    }

    /// As what a transaction adds to a position.
    pub(super) fn step(&self) -> Step {
        let Self { file, offset } = self.clone();
        Step::File { file, offset }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.position().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_go_on_beyond_4_gib() {
        let mut place = Place::new();
        for (log_pos, offset) in [
            (u32::MAX - 1, u64::from(u32::MAX) - 1),
            (0, u64::from(u32::MAX) - 1),
            (100, (1 << 32) + 100),
            (90, (2 << 32) + 90),
        ] {
            place.advance(log_pos);
            assert_eq!(place.offset, offset);
        }
    }
}
