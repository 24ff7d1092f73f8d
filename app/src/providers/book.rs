//! What the providers have done: a ledger in which an idempotency key can be done once, and never after its undo.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

/// One of the two providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Service {
    Payment,
    Shipment,
}

/// What is asked for under a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) order_id: u64,
    /// Of payments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) amount_cents: Option<u64>,
}

/// A change of the book: all that has to be kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Fact {
    /// The work was done.
    Done {
        service: Service,
        key: String,
        request: Request,
    },
    /// What was done was taken back.
    Undone { service: Service, key: String },
    /// What had not been done never will be.
    Voided { service: Service, key: String },
}

/// Why the book does not do what is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Refusal {
    #[error("this idempotency key was used for another request")]
    OtherRequest,
    #[error("this idempotency key was undone, and can't be used any more")]
    UndoneBefore,
}

/// A fact that can't follow on what is in the book.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key} can't become {status} where it is {before}")]
pub(crate) struct Impossible {
    key: String,
    status: &'static str,
    before: &'static str,
}

/// Both providers' ledgers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Book {
    payments: Desk,
    shipments: Desk,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Desk {
    /// In the order in which the keys came up.
    entries: Vec<Entry>,
    by_key: HashMap<String, usize>,
    /// Pieces of work done so far, undone ones too.
    done: u64,
}

/// What the book says about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    service: Service,
    key: String,
    state: State,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Done(Deed),
    Undone(Deed),
    /// The undo came first: a tombstone.
    Voided,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Deed {
    number: u64,
    request: Request,
}

impl Book {
    /// What has to be noted to do `request` under `key`; nothing if it is done already.
    pub(crate) fn forward(
        &self,
        service: Service,
        key: &str,
        request: &Request,
    ) -> Result<Option<Fact>, Refusal> {
        match self.entry(service, key).map(|entry| &entry.state) {
            None => Ok(Some(Fact::Done {
                service,
                key: key.to_owned(),
                request: request.clone(),
            })),
            Some(State::Done(deed)) if deed.request == *request => Ok(None),
            Some(State::Done(_)) => Err(Refusal::OtherRequest),
            Some(State::Undone(_) | State::Voided) => Err(Refusal::UndoneBefore),
        }
    }

    /// What has to be noted to undo `key`; nothing if that is done already.
    pub(crate) fn undo(&self, service: Service, key: &str) -> Option<Fact> {
        let key = key.to_owned();
        match self.entry(service, &key).map(|entry| &entry.state) {
            None => Some(Fact::Voided { service, key }),
            Some(State::Done(_)) => Some(Fact::Undone { service, key }),
            Some(State::Undone(_) | State::Voided) => None,
        }
    }

    /// Takes a fact in.
    pub(crate) fn apply(&mut self, fact: Fact) -> Result<(), Impossible> {
        match fact {
            Fact::Done {
                service,
                key,
                request,
            } => self.desk_mut(service).open(service, key, Some(request)),
            Fact::Voided { service, key } => self.desk_mut(service).open(service, key, None),
            Fact::Undone { service, key } => self.desk_mut(service).take_back(key),
        }
    }

    /// What became of a key.
    pub(crate) fn entry(&self, service: Service, key: &str) -> Option<&Entry> {
        let desk = self.desk(service);
        desk.by_key
            .get(key)
            .and_then(|&index| desk.entries.get(index))
    }

    /// Everything, or what is about one order.
    pub(crate) fn ledger(&self, order_id: Option<u64>) -> Value {
        let rows = |desk: &Desk| -> Vec<Value> {
            desk.entries
                .iter()
                .filter(|entry| order_id.is_none() || entry.order_id() == order_id)
                .map(Entry::row)
                .collect()
        };
        json!({ "payments": rows(&self.payments), "shipments": rows(&self.shipments) })
    }

    fn desk(&self, service: Service) -> &Desk {
        match service {
            Service::Payment => &self.payments,
            Service::Shipment => &self.shipments,
        }
    }

    fn desk_mut(&mut self, service: Service) -> &mut Desk {
        match service {
            Service::Payment => &mut self.payments,
            Service::Shipment => &mut self.shipments,
        }
    }
}

impl Desk {
    /// The first that is heard of a key: work, or that it shall never be done.
    fn open(
        &mut self,
        service: Service,
        key: String,
        request: Option<Request>,
    ) -> Result<(), Impossible> {
        let number = self.done + 1;
        let (state, done) = match request {
            Some(request) => (State::Done(Deed { number, request }), number),
            None => (State::Voided, self.done),
        };
        let entry = Entry {
            service,
            key: key.clone(),
            state,
        };
        if let Some(there) = self.by_key.get(&key).and_then(|&at| self.entries.get(at)) {
            return Err(Impossible {
                key,
                status: entry.status(),
                before: there.status(),
            });
        }
        self.by_key.insert(key, self.entries.len());
        self.entries.push(entry);
        self.done = done;
        Ok(())
    }

    fn take_back(&mut self, key: String) -> Result<(), Impossible> {
        let index = self.by_key.get(&key).copied();
        let entry = index.and_then(|index| self.entries.get_mut(index));
        let before = match entry {
            Some(entry) => {
                if let State::Done(deed) = &entry.state {
                    entry.state = State::Undone(deed.clone());
                    return Ok(());
                }
                entry.status()
            }
            None => "unknown",
        };
        Err(Impossible {
            key,
            status: "undone",
            before,
        })
    }
}

impl Entry {
    /// The answer to whoever asked for the work, or for its undo.
    pub(crate) fn answer(&self) -> Value {
        let mut answer = self.row();
        if let Some(fields) = answer.as_object_mut() {
            fields.remove("key");
        }
        answer
    }

    fn row(&self) -> Value {
        let deed = self.deed();
        let mut row = json!({
            "key": self.key,
            "id": deed.map(|deed| match self.service {
                Service::Payment => format!("pay-{}", deed.number),
                Service::Shipment => format!("ship-{}", deed.number),
            }),
            "order_id": self.order_id(),
            "status": self.status(),
        });
        match self.service {
            Service::Payment => {
                row["amount_cents"] = json!(deed.and_then(|deed| deed.request.amount_cents));
            }
            Service::Shipment => {}
        }
        row
    }

    fn deed(&self) -> Option<&Deed> {
        match &self.state {
            State::Done(deed) | State::Undone(deed) => Some(deed),
            State::Voided => None,
        }
    }

    fn order_id(&self) -> Option<u64> {
        self.deed().map(|deed| deed.request.order_id)
    }

    fn status(&self) -> &'static str {
        match (&self.state, self.service) {
            (State::Done(_), Service::Payment) => "CHARGED",
            (State::Done(_), Service::Shipment) => "CREATED",
            (State::Undone(_), Service::Payment) => "REFUNDED",
            (State::Undone(_), Service::Shipment) => "CANCELLED",
            (State::Voided, _) => "VOIDED",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const PAYMENT: Service = Service::Payment;

    fn request(order_id: u64, cents: u64) -> Request {
        Request {
            order_id,
            amount_cents: Some(cents),
        }
    }

    fn note(book: &mut Book, fact: Option<Fact>) {
        if let Some(fact) = fact {
            book.apply(fact).unwrap();
        }
    }

    #[test]
    fn a_key_is_done_once_and_only_for_its_request() {
        let mut book = Book::default();
        let fact = book.forward(PAYMENT, "k", &request(1, 15)).unwrap();
        note(&mut book, fact);
        assert_eq!(book.forward(PAYMENT, "k", &request(1, 15)), Ok(None));
        assert_eq!(
            book.forward(PAYMENT, "k", &request(1, 16)),
            Err(Refusal::OtherRequest)
        );
        let answer = book.entry(PAYMENT, "k").unwrap().answer();
        let expected =
            json!({"id": "pay-1", "order_id": 1, "amount_cents": 15, "status": "CHARGED"});
        assert_eq!(answer, expected);
    }

    #[test]
    fn an_undo_that_comes_first_leaves_a_tombstone() {
        let mut book = Book::default();
        let fact = book.undo(PAYMENT, "k");
        note(&mut book, fact);
        assert_eq!(book.undo(PAYMENT, "k"), None);
        assert_eq!(
            book.forward(PAYMENT, "k", &request(1, 15)),
            Err(Refusal::UndoneBefore)
        );
        assert_eq!(
            book.ledger(None)["payments"],
            json!([{"key": "k", "id": null, "order_id": null, "amount_cents": null, "status": "VOIDED"}])
        );
        // The other provider has keys of its own.
        assert!(book.undo(Service::Shipment, "k").is_some());
    }

    #[test]
    fn the_ledger_of_an_order_has_nothing_of_others() {
        let mut book = Book::default();
        for order in [1, 2, 1] {
            let key = format!("k{}", book.payments.entries.len());
            let fact = book.forward(PAYMENT, &key, &request(order, 5)).unwrap();
            note(&mut book, fact);
        }
        let count = |order| book.ledger(order)["payments"].as_array().unwrap().len();
        assert_eq!(
            [count(None), count(Some(1)), count(Some(2)), count(Some(3))],
            [3, 2, 1, 0]
        );
    }

    #[test]
    fn facts_that_contradict_the_book_are_refused() {
        let mut book = Book::default();
        let (service, key) = (PAYMENT, "k".to_owned());
        let undone = Fact::Undone { service, key };
        assert!(book.apply(undone.clone()).is_err());
        let fact = book.forward(PAYMENT, "k", &request(1, 15)).unwrap();
        note(&mut book, fact.clone());
        assert!(book.apply(fact.unwrap()).is_err());
        book.apply(undone.clone()).unwrap();
        assert!(book.apply(undone).is_err());
    }

    proptest! {
        /// Whatever order calls, repetitions and undos come in: at most one charge for a key, and none after its undo.
        #[test]
        fn no_key_is_charged_twice_or_after_its_undo(
            calls in proptest::collection::vec((0_u8..4, 0_u64..2, any::<bool>(), any::<bool>()), 0..60),
        ) {
            let mut book = Book::default();
            let (mut charged, mut undone) = (HashSet::new(), HashSet::new());
            for (key, cents, undo, payment) in calls {
                let service = if payment { PAYMENT } else { Service::Shipment };
                let key = format!("k{key}");
                let name = (payment, key.clone());
                let fact = if undo {
                    undone.insert(name.clone());
                    book.undo(service, &key)
                } else {
                    let asked = book.forward(service, &key, &request(1, cents));
                    prop_assert_eq!(asked == Err(Refusal::UndoneBefore), undone.contains(&name));
                    asked.unwrap_or(None)
                };
                if matches!(fact, Some(Fact::Done { .. })) {
                    prop_assert!(!undone.contains(&name), "charged after its undo");
                    prop_assert!(charged.insert(name.clone()), "charged twice");
                }
                note(&mut book, fact);
                let status = book.entry(service, &key).unwrap().status();
                let expected: &[&str] = match (undone.contains(&name), charged.contains(&name)) {
                    (true, true) => &["REFUNDED", "CANCELLED"],
                    (true, false) => &["VOIDED"],
                    (false, _) => &["CHARGED", "CREATED"],
                };
                prop_assert!(expected.contains(&status), "{}", status);
            }
        }
    }
}
