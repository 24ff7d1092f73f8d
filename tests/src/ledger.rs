//! What was committed, and whether that is what arrived.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, bail};

use crate::inbox::Inbox;

/// An event of a committed transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The aggregate.
    pub aggregate_id: i64,
    /// What happened.
    pub event_type: String,
    /// Its idempotency key.
    pub key: String,
}

/// The committed events, in commit order per aggregate, and the keys of those rolled back.
#[derive(Debug, Default, Clone)]
pub struct Ledger {
    committed: Vec<Committed>,
    rolled_back: Vec<String>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// A transaction's events, committed.
    pub fn commit(&mut self, events: impl IntoIterator<Item = Committed>) {
        self.committed.extend(events);
    }

    /// A transaction's events, rolled back.
    pub fn roll_back(&mut self, events: impl IntoIterator<Item = Committed>) {
        self.rolled_back
            .extend(events.into_iter().map(|event| event.key));
    }

    /// Adds another ledger, of other aggregates or of later events.
    pub fn extend(&mut self, other: Ledger) {
        self.committed.extend(other.committed);
        self.rolled_back.extend(other.rolled_back);
    }

    /// How many events were committed.
    pub fn len(&self) -> usize {
        self.committed.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.committed.is_empty()
    }

    /// How many events were rolled back.
    pub fn rolled_back(&self) -> usize {
        self.rolled_back.len()
    }

    /// The committed events.
    pub fn committed(&self) -> &[Committed] {
        &self.committed
    }

    /// Compares with what arrived.
    pub fn verdict(&self, inbox: &Inbox) -> Verdict {
        let known: HashMap<&str, i64> = self
            .committed
            .iter()
            .map(|event| (event.key.as_str(), event.aggregate_id))
            .collect();
        let rolled_back: HashSet<&str> = self.rolled_back.iter().map(String::as_str).collect();
        let mut verdict = Verdict {
            duplicates: inbox.duplicates(),
            ..Verdict::default()
        };
        verdict.missing.extend(
            self.committed
                .iter()
                .filter(|event| !inbox.has(&event.key))
                .map(|e| e.key.clone()),
        );
        let mut arrived: HashMap<i64, Vec<&str>> = HashMap::new();
        for key in inbox.first_deliveries() {
            match known.get(key) {
                Some(aggregate) => arrived.entry(*aggregate).or_default().push(key),
                None if rolled_back.contains(key) => verdict.ghosts.push(key.to_owned()),
                None => verdict.strangers.push(key.to_owned()),
            }
        }
        let mut committed: HashMap<i64, Vec<&str>> = HashMap::new();
        for event in self.committed.iter().filter(|event| inbox.has(&event.key)) {
            committed
                .entry(event.aggregate_id)
                .or_default()
                .push(&event.key);
        }
        for (aggregate, order) in &arrived {
            if committed.get(aggregate) != Some(order) {
                verdict
                    .misordered
                    .push(format!("{aggregate}: {}", order.join(" ")));
            }
        }
        verdict
    }
}

/// What differs between the committed and the delivered events.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Committed, not delivered.
    pub missing: Vec<String>,
    /// Delivered, though rolled back.
    pub ghosts: Vec<String>,
    /// Delivered, and nobody wrote them.
    pub strangers: Vec<String>,
    /// Aggregates whose first deliveries are not in commit order.
    pub misordered: Vec<String>,
    /// Deliveries beyond the first.
    pub duplicates: usize,
}

impl Verdict {
    /// Nothing lost, nothing invented, order kept; duplicates are allowed.
    ///
    /// # Errors
    /// What is wrong.
    pub fn at_least_once_in_order(&self) -> Result<()> {
        let faults = [
            ("lost", &self.missing),
            ("delivered though rolled back", &self.ghosts),
            ("delivered though never written", &self.strangers),
            ("aggregates out of commit order", &self.misordered),
        ];
        let faults: Vec<String> = faults
            .iter()
            .filter(|(_, found)| !found.is_empty())
            .map(|(what, found)| {
                let few: Vec<&str> = found.iter().take(5).map(String::as_str).collect();
                format!("{} {what}, such as {}", found.len(), few.join(", "))
            })
            .collect();
        if faults.is_empty() {
            Ok(())
        } else {
            bail!("{}", faults.join("; "))
        }
    }

    /// The same, and nothing twice.
    ///
    /// # Errors
    /// What is wrong.
    pub fn exactly_once_in_order(&self) -> Result<()> {
        self.at_least_once_in_order()?;
        if self.duplicates == 0 {
            Ok(())
        } else {
            bail!("{} duplicates", self.duplicates)
        }
    }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;

    use super::*;
    use crate::inbox::Message;

    fn event(aggregate_id: i64, key: &str) -> Committed {
        Committed {
            aggregate_id,
            event_type: "T".to_owned(),
            key: key.to_owned(),
        }
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new();
        ledger.commit([event(1, "a1"), event(1, "a2"), event(2, "b1")]);
        ledger.roll_back([event(2, "b2")]);
        ledger
    }

    fn inbox(keys: &[&str]) -> Inbox {
        let mut inbox = Inbox::new();
        for key in keys {
            inbox.push(Message {
                exchange: String::new(),
                routing_key: String::new(),
                properties: BasicProperties::default().with_message_id((*key).into()),
                body: Vec::new(),
            });
        }
        inbox
    }

    #[test]
    fn what_is_right_passes() {
        ledger()
            .verdict(&inbox(&["b1", "a1", "a2"]))
            .exactly_once_in_order()
            .unwrap();
        // A replay after the first deliveries, in order.
        let replayed = ledger().verdict(&inbox(&["a1", "b1", "a1", "a2"]));
        replayed.at_least_once_in_order().unwrap();
        assert!(replayed.exactly_once_in_order().is_err());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (keys, word) in [
            (&["a1", "a2"][..], "lost"),
            (&["a2", "a1", "b1"], "order"),
            (&["a1", "a2", "b1", "b2"], "rolled back"),
            (&["a1", "a2", "b1", "x"], "never written"),
        ] {
            let error = ledger()
                .verdict(&inbox(keys))
                .at_least_once_in_order()
                .unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
