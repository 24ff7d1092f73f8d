//! Publications in flight on one channel, and the broker's words on them (pure).
//!
//! RabbitMQ manual, "Consumer Acknowledgements and Publisher Confirms": an unroutable mandatory message is returned
//! *before* it is acked, on the same channel. So when an ack comes, all that it covers has either come back already or
//! was routed. A return carries no tag; messages are routed in the order in which they were published, so it is of
//! the oldest message in flight that looks like it and has not come back yet.

use std::collections::VecDeque;

use super::frame::Malformed;
use super::inbound::Confirm;
use crate::publish::{Outcome, Signal};

#[derive(Debug)]
enum State {
    Undecided,
    Returned { code: u16, text: String },
    Settled,
}

#[derive(Debug)]
struct Sent {
    identity: u64,
    state: State,
}

/// Publications in the order of their tags.
#[derive(Debug)]
pub(super) struct InFlight {
    sent: VecDeque<Sent>,
    first_tag: u64,
    unsettled: usize,
    /// The tag behind the last one that came back: the next return is looked for from there on.
    returns_from: u64,
}

impl InFlight {
    pub(super) fn new() -> Self {
        Self {
            sent: VecDeque::new(),
            first_tag: 1,
            unsettled: 0,
            returns_from: 1,
        }
    }

    /// Publications without an outcome.
    pub(super) fn len(&self) -> usize {
        self.unsettled
    }

    /// Notes a publication; its tag.
    pub(super) fn push(&mut self, identity: u64) -> u64 {
        self.sent.push_back(Sent {
            identity,
            state: State::Undecided,
        });
        self.unsettled += 1;
        self.first_tag + self.sent.len() as u64 - 1
    }

    /// A message has come back.
    pub(super) fn returned(
        &mut self,
        identity: u64,
        code: u16,
        text: String,
    ) -> Result<(), Malformed> {
        let length = self.sent.len();
        let from = self.returns_from.saturating_sub(self.first_tag);
        let from = usize::try_from(from).map_or(length, |from| from.min(length));
        let fits =
            |sent: &Sent| sent.identity == identity && matches!(sent.state, State::Undecided);
        // Returns come in the order of the tags, so all of them together look at each publication once. A broker that
        // did otherwise would still be understood.
        let behind = self.sent.range(from..).position(fits);
        let at = behind
            .map(|nth| from + nth)
            .or_else(|| self.sent.range(..from).position(fits));
        let found = at.and_then(|at| Some((at, self.sent.get_mut(at)?)));
        let (at, sent) = found.ok_or(Malformed("it returned a message that is not in flight"))?;
        sent.state = State::Returned { code, text };
        self.returns_from = self.first_tag + at as u64 + 1;
        Ok(())
    }

    /// An ack or nack has come.
    pub(super) fn confirmed(
        &mut self,
        confirm: Confirm,
        out: &mut Vec<Signal>,
    ) -> Result<(), Malformed> {
        const UNKNOWN: Malformed = Malformed("it confirmed a delivery tag that is not in flight");
        let last = self.first_tag + self.sent.len() as u64 - 1;
        if !confirm.multiple {
            let at = confirm.tag.checked_sub(self.first_tag).ok_or(UNKNOWN)?;
            let at = usize::try_from(at).map_err(|_| UNKNOWN)?;
            self.settle(at, confirm.nack, out).ok_or(UNKNOWN)?;
            self.trim();
            return Ok(());
        }
        // Tag 0 with `multiple` means all so far (AMQP 0-9-1 reference, basic.ack).
        let tag = if confirm.tag == 0 { last } else { confirm.tag };
        if tag > last || tag.saturating_add(1) < self.first_tag {
            return Err(UNKNOWN);
        }
        let count = usize::try_from(tag + 1 - self.first_tag).map_err(|_| UNKNOWN)?;
        for at in 0..count {
            self.settle(at, confirm.nack, out);
        }
        self.trim();
        Ok(())
    }

    /// Settles the publication at a place, unless it is settled.
    fn settle(&mut self, at: usize, nack: bool, out: &mut Vec<Signal>) -> Option<()> {
        let sent = self.sent.get_mut(at)?;
        let outcome = match std::mem::replace(&mut sent.state, State::Settled) {
            State::Settled => return None,
            State::Returned { code, text } => Outcome::Returned { code, text },
            State::Undecided if nack => Outcome::Nacked,
            State::Undecided => Outcome::Confirmed,
        };
        self.unsettled -= 1;
        out.push(Signal::Settled {
            tag: self.first_tag + at as u64,
            outcome,
        });
        Some(())
    }

    fn trim(&mut self) {
        while self
            .sent
            .front()
            .is_some_and(|sent| matches!(sent.state, State::Settled))
        {
            self.sent.pop_front();
            self.first_tag += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn ack(tag: u64, multiple: bool) -> Confirm {
        Confirm {
            tag,
            multiple,
            nack: false,
        }
    }

    proptest! {
        /// A broker that routes in order, returns before it acks, and acks in any order, alone or many at once.
        #[test]
        fn every_publication_gets_its_own_outcome(
            routable in prop::collection::vec(any::<bool>(), 1..60),
            identities in 1u64..4,
            picks in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..60),
        ) {
            let mut in_flight = InFlight::new();
            let mut out = Vec::new();
            let mut truth = BTreeMap::new();
            for (nth, routable) in routable.iter().enumerate() {
                // Messages of one identity share exchange and key, so they share their fate.
                let identity = nth as u64 % identities + if *routable { 100 } else { 200 };
                truth.insert(in_flight.push(identity), *routable);
                if !routable {
                    in_flight.returned(identity, 312, "NO_ROUTE".into()).unwrap();
                }
            }
            let mut open: Vec<u64> = truth.keys().copied().collect();
            for (pick, multiple) in picks {
                if open.is_empty() { break }
                let tag = open[pick.index(open.len())];
                in_flight.confirmed(ack(tag, multiple), &mut out).unwrap();
                open.retain(|other| *other != tag && !(multiple && *other < tag));
                prop_assert_eq!(in_flight.len(), open.len());
            }
            in_flight.confirmed(ack(0, true), &mut out).unwrap();
            prop_assert_eq!(in_flight.len(), 0);
            let mut seen = BTreeMap::new();
            for signal in out {
                let Signal::Settled { tag, outcome } = signal else { unreachable!() };
                prop_assert!(seen.insert(tag, outcome == Outcome::Confirmed).is_none());
            }
            prop_assert_eq!(seen, truth);
        }
    }

    #[test]
    fn what_was_never_sent_is_a_breach() {
        let mut in_flight = InFlight::new();
        let mut out = Vec::new();
        assert!(in_flight.confirmed(ack(1, false), &mut out).is_err());
        assert!(in_flight.confirmed(ack(1, true), &mut out).is_err());
        assert!(in_flight.returned(5, 312, String::new()).is_err());
        assert_eq!(in_flight.push(5), 1);
        in_flight.confirmed(ack(1, false), &mut out).unwrap();
        assert!(in_flight.confirmed(ack(1, false), &mut out).is_err());
        assert!(in_flight.confirmed(ack(u64::MAX, true), &mut out).is_err());
        assert_eq!(in_flight.push(6), 2);
        in_flight
            .confirmed(
                Confirm {
                    tag: 2,
                    multiple: false,
                    nack: true,
                },
                &mut out,
            )
            .unwrap();
        assert_eq!(
            out[1],
            Signal::Settled {
                tag: 2,
                outcome: Outcome::Nacked
            }
        );
    }

    #[test]
    fn equal_messages_come_back_oldest_first() {
        let mut in_flight = InFlight::new();
        let mut out = Vec::new();
        for identity in [5, 6, 5, 5] {
            in_flight.push(identity);
        }
        for identity in [5, 5] {
            in_flight.returned(identity, 312, String::new()).unwrap();
        }
        in_flight.confirmed(ack(3, true), &mut out).unwrap();
        // Out of order, which RabbitMQ never does.
        in_flight.push(7);
        in_flight.returned(7, 312, String::new()).unwrap();
        in_flight.returned(5, 312, String::new()).unwrap();
        in_flight.confirmed(ack(0, true), &mut out).unwrap();
        let confirmed: Vec<bool> = out
            .into_iter()
            .map(|signal| {
                matches!(
                    signal,
                    Signal::Settled {
                        outcome: Outcome::Confirmed,
                        ..
                    }
                )
            })
            .collect();
        assert_eq!(confirmed, [false, true, false, false, false]);
    }

    #[test]
    fn a_full_window_of_returns_costs_one_look_at_each() {
        let mut in_flight = InFlight::new();
        let count = 300_000;
        for identity in 0..count {
            in_flight.push(identity);
        }
        // Searching each from the front would take 45 billion looks.
        for identity in 0..count {
            in_flight.returned(identity, 312, String::new()).unwrap();
        }
        let mut out = Vec::new();
        in_flight.confirmed(ack(0, true), &mut out).unwrap();
        assert_eq!(out.len() as u64, count);
    }
}
