//! What works and what does not, for readiness and for the log.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// A part that can fail by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Reading the binlog.
    Source,
    /// Publishing.
    Broker,
    /// Marks, dead letters and checkpoints.
    Ledger,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Source => "source",
            Part::Broker => "broker",
            Part::Ledger => "ledger",
        }
    }
}

/// The state of every part; starts as not ready.
#[derive(Debug)]
pub struct Health(Mutex<BTreeMap<Part, String>>);

impl Default for Health {
    fn default() -> Self {
        let starting = |part| (part, "starting".to_owned());
        Self(Mutex::new(
            [Part::Source, Part::Broker, Part::Ledger]
                .map(starting)
                .into(),
        ))
    }
}

impl Health {
    /// The part works.
    pub fn good(&self, part: Part) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&part);
    }

    /// The part does not, and why.
    pub fn bad(&self, part: Part, why: impl Into<String>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(part, why.into());
    }

    /// Nothing if all work; else one line a part that does not.
    pub fn complaints(&self) -> Vec<String> {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts
            .iter()
            .map(|(part, why)| format!("{}: {why}", part.name()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_every_part_works() {
        let health = Health::default();
        assert_eq!(health.complaints().len(), 3);
        for part in [Part::Source, Part::Broker, Part::Ledger] {
            health.good(part);
        }
        assert!(health.complaints().is_empty());
        health.bad(Part::Broker, "gone");
        assert_eq!(health.complaints(), ["broker: gone"]);
    }
}
