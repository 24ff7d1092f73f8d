//! What works and what does not, for readiness and for the log.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
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
pub struct Health {
    failing: Mutex<BTreeMap<Part, String>>,
    standby: AtomicBool,
    source: Mutex<String>,
}

impl Default for Health {
    fn default() -> Self {
        let parts = [Part::Source, Part::Broker, Part::Ledger];
        let failing = parts.map(|part| (part, "starting".to_owned()));
        Self {
            failing: Mutex::new(failing.into()),
            standby: AtomicBool::new(false),
            source: Mutex::default(),
        }
    }
}

impl Health {
    /// The part works.
    pub fn good(&self, part: Part) {
        self.failing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&part);
    }

    /// The part does not, and why.
    pub fn bad(&self, part: Part, why: impl Into<String>) {
        self.failing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(part, why.into());
    }

    /// Another relay of this name leads, and this one is ready to take over; or no longer so.
    pub fn set_standby(&self, standby: bool) {
        self.standby.store(standby, Ordering::Release);
    }

    /// Whether another relay of this name leads.
    pub fn is_standby(&self) -> bool {
        self.standby.load(Ordering::Acquire)
    }

    /// Which source is in use, and why.
    pub fn set_source(&self, source: String) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }

    /// Which source is in use, and why; empty before one is.
    pub fn source(&self) -> String {
        self.source
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Nothing if all work; else one line a part that does not.
    pub fn complaints(&self) -> Vec<String> {
        let parts = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
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
