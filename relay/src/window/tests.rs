//! Random interleavings of everything that can happen to a window, against a model of the broker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::event::Key;
use crate::event::tests::event;

fn limits(ordering: Ordering) -> Limits {
    Limits {
        events: 16,
        bytes: 1 << 20,
        transactions: 32,
        ordering,
        max_attempts: 3,
        backoff: Backoff::default(),
    }
}

fn step(transaction: usize) -> Step {
    Step::File {
        file: "b.1".into(),
        offset: transaction as u64 + 1,
    }
}

fn start() -> Position {
    Position::File {
        file: "b.1".into(),
        offset: 0,
    }
}

fn id_of(event: &OutboxEvent) -> i64 {
    let Key::Int(id) = event.id else {
        unreachable!()
    };
    id
}

#[derive(Debug, Clone)]
enum Action {
    TakeIn,
    Publish,
    /// Settle the n-th tag in flight.
    Confirm(usize),
    ConfirmUpTo(usize),
    Return(usize),
    Nack(usize),
    Bury,
    Disconnect,
    Crash,
    Wait,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => Just(Action::TakeIn),
        8 => Just(Action::Publish),
        5 => (0usize..8).prop_map(Action::Confirm),
        3 => (0usize..8).prop_map(Action::ConfirmUpTo),
        2 => (0usize..8).prop_map(Action::Return),
        1 => (0usize..8).prop_map(Action::Nack),
        2 => Just(Action::Bury),
        1 => Just(Action::Disconnect),
        1 => Just(Action::Crash),
        2 => Just(Action::Wait),
    ]
}

/// The binlog, the broker and the dead letters, which outlive a crash of the relay.
struct World {
    window: Window,
    ordering: Ordering,
    /// Events of each transaction, by id; the aggregate of each event.
    binlog: Vec<Vec<(i64, i64)>>,
    next: (usize, usize),
    now: Instant,
    next_tag: u64,
    flying: VecDeque<(u64, i64)>,
    burying: Vec<(Slot, i64)>,
    /// Ids in the order in which the broker took them in, confirmed or not.
    accepted: Vec<i64>,
    confirmed: BTreeSet<i64>,
    buried: BTreeSet<i64>,
    checkpoint: Position,
}

impl World {
    fn new(ordering: Ordering, sizes: &[Vec<i64>]) -> Self {
        let mut id = 0;
        let binlog = sizes.iter().map(|aggregates| {
            let events = aggregates.iter().map(|aggregate| {
                id += 1;
                (id, *aggregate)
            });
            events.collect()
        });
        Self {
            window: Window::new(limits(ordering), start()),
            ordering,
            binlog: binlog.collect(),
            next: (0, 0),
            now: Instant::now(),
            next_tag: 1,
            flying: VecDeque::new(),
            burying: Vec::new(),
            accepted: Vec::new(),
            confirmed: BTreeSet::new(),
            buried: BTreeSet::new(),
            checkpoint: start(),
        }
    }

    fn take_in(&mut self) {
        let (transaction, at) = self.next;
        if !self.window.has_room() || transaction >= self.binlog.len() {
            return;
        }
        match self.binlog[transaction].get(at) {
            Some((id, aggregate)) => {
                self.window.push_event(event(*id, *aggregate));
                self.next = (transaction, at + 1);
            }
            None => {
                self.window.push_commit(step(transaction), true);
                self.next = (transaction + 1, 0);
            }
        }
    }

    fn publish(&mut self) {
        if let Some(slot) = self.window.next_ready(self.now) {
            let id = id_of(self.window.event(slot).unwrap());
            self.window.sent(slot, self.next_tag, self.now);
            self.flying.push_back((self.next_tag, id));
            self.next_tag += 1;
        }
    }

    fn settle(&mut self, at: usize, confirm: bool) {
        if at >= self.flying.len() {
            return;
        }
        let (tag, id) = self.flying.remove(at).unwrap();
        if confirm {
            self.accepted.push(id);
            let Verdict::Confirmed(event) = self.window.confirmed(tag).unwrap() else {
                panic!("a confirm is a confirm")
            };
            assert_eq!(id_of(&event), id);
            self.confirmed.insert(id);
            assert_eq!(self.window.confirmed(tag).unwrap_err(), UnknownTag(tag));
        } else if let Verdict::DeadLetter { slot, attempts } =
            self.window.failed(tag, self.now).unwrap()
        {
            assert_eq!(attempts, 3);
            self.burying.push((slot, id));
        }
    }

    fn disconnect(&mut self) {
        // The broker may have taken in any of what was in flight; here it took in the even ids.
        self.accepted.extend(
            self.flying
                .iter()
                .map(|(_, id)| *id)
                .filter(|id| id % 2 == 0),
        );
        self.flying.clear();
        self.window.disconnected();
        self.next_tag = 1;
    }

    fn crash(&mut self) {
        self.disconnect();
        self.burying.clear();
        self.window = Window::new(limits(self.ordering), self.checkpoint.clone());
        let Position::File { offset, .. } = self.checkpoint else {
            unreachable!()
        };
        self.next = (usize::try_from(offset).unwrap(), 0);
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::TakeIn => self.take_in(),
            Action::Publish => self.publish(),
            Action::Confirm(at) => self.settle(at, true),
            Action::ConfirmUpTo(at) => {
                for _ in 0..=at {
                    self.settle(0, true);
                }
            }
            Action::Return(at) | Action::Nack(at) => self.settle(at, false),
            Action::Bury => {
                if let Some((slot, id)) = self.burying.pop() {
                    self.buried.insert(id);
                    self.window.buried(slot);
                }
            }
            Action::Disconnect => self.disconnect(),
            Action::Crash => self.crash(),
            Action::Wait => self.now += Duration::from_secs(20),
        }
        self.check();
        if self.window.has_progress() {
            self.checkpoint = self.window.take_progress();
        }
    }

    /// The watermark covers nothing that is undecided; at most one event of an aggregate is in flight.
    fn check(&self) {
        let Position::File { offset, .. } = self.window.watermark() else {
            unreachable!()
        };
        for (id, _) in self
            .binlog
            .iter()
            .take(usize::try_from(*offset).unwrap())
            .flatten()
        {
            assert!(
                self.confirmed.contains(id) || self.buried.contains(id),
                "the watermark passed event {id}"
            );
        }
        if self.ordering == Ordering::Aggregate {
            let aggregates: BTreeMap<i64, i64> = self.binlog.iter().flatten().copied().collect();
            let mut seen = BTreeSet::new();
            for (_, id) in &self.flying {
                assert!(
                    seen.insert(aggregates[id]),
                    "two of one aggregate in flight"
                );
            }
        }
        assert!(self.window.len() <= 16 && self.window.progress.held() <= 32);
    }

    fn finish(&mut self) {
        let bound = 100 * (1 + self.binlog.iter().map(Vec::len).sum::<usize>() + self.binlog.len());
        for _ in 0..bound {
            for action in [
                Action::TakeIn,
                Action::Publish,
                Action::Confirm(0),
                Action::Bury,
                Action::Wait,
            ] {
                self.act(&action);
            }
            if self.next.0 == self.binlog.len() && self.window.is_empty() {
                break;
            }
        }
        let Position::File { offset, .. } = self.window.watermark() else {
            unreachable!()
        };
        assert_eq!(
            *offset,
            self.binlog.len() as u64,
            "the watermark reached the end"
        );
        for (id, _) in self.binlog.iter().flatten() {
            assert!(
                self.confirmed.contains(id) || self.buried.contains(id),
                "event {id} is lost"
            );
        }
        assert_eq!(self.window.bytes, 0);
        assert!(self.window.lanes.is_empty());
    }

    /// What the broker took in first of each event is in commit order, per aggregate.
    fn check_order(&self) {
        let aggregates: BTreeMap<i64, i64> = self.binlog.iter().flatten().copied().collect();
        let mut seen = BTreeSet::new();
        let mut last: BTreeMap<i64, i64> = BTreeMap::new();
        for id in self.accepted.iter().filter(|id| seen.insert(**id)) {
            if let Some(before) = last.insert(aggregates[id], *id) {
                // A dead letter sent late by a replay after a crash stands outside the order.
                assert!(
                    before < *id || self.buried.contains(id),
                    "{before} before {id}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nothing_is_lost_and_order_holds(
        transactions in prop::collection::vec(prop::collection::vec(0i64..5, 0..5), 1..20),
        actions in prop::collection::vec(action(), 0..300),
        ordered in any::<bool>(),
    ) {
        let ordering = if ordered { Ordering::Aggregate } else { Ordering::None };
        let mut world = World::new(ordering, &transactions);
        for action in &actions {
            world.act(action);
        }
        world.finish();
        if ordered {
            world.check_order();
        }
    }
}

#[test]
fn a_failed_event_holds_its_aggregate_and_no_other() {
    let mut window = Window::new(limits(Ordering::Aggregate), start());
    for (id, aggregate) in [(1, 1), (2, 1), (3, 2)] {
        window.push_event(event(id, aggregate));
    }
    window.push_commit(step(0), true);
    let now = Instant::now();
    for tag in [1, 2] {
        let slot = window.next_ready(now).unwrap();
        window.sent(slot, tag, now);
    }
    assert!(
        window.next_ready(now).is_none(),
        "event 2 waits for event 1"
    );
    assert!(matches!(
        window.failed(1, now).unwrap(),
        Verdict::Retry { attempts: 1, .. }
    ));
    assert!(matches!(
        window.confirmed(2).unwrap(),
        Verdict::Confirmed(_)
    ));
    assert!(window.next_ready(now).is_none(), "the backoff stands");
    assert!(!window.has_progress());
    let later = window.next_retry().unwrap();
    let slot = window.next_ready(later).unwrap();
    assert_eq!(id_of(window.event(slot).unwrap()), 1);
    window.sent(slot, 3, later);
    window.confirmed(3).unwrap();
    let slot = window.next_ready(later).unwrap();
    assert_eq!(id_of(window.event(slot).unwrap()), 2);
}

#[test]
fn an_outage_counts_no_attempt_and_keeps_the_order() {
    let mut window = Window::new(limits(Ordering::None), start());
    let now = Instant::now();
    for id in 1..=4 {
        window.push_event(event(id, id));
    }
    for round in 0..50 {
        for tag in 1..=4 {
            let slot = window.next_ready(now).unwrap();
            assert_eq!(
                id_of(window.event(slot).unwrap()),
                i64::try_from(tag).unwrap(),
                "{round}"
            );
            window.sent(slot, tag, now);
        }
        window.disconnected();
    }
    let slot = window.next_ready(now).unwrap();
    window.sent(slot, 1, now);
    assert!(matches!(
        window.failed(1, now).unwrap(),
        Verdict::Retry { attempts: 1, .. }
    ));
}

#[test]
fn quiet_transactions_move_the_watermark_but_ask_for_no_checkpoint() {
    let mut window = Window::new(limits(Ordering::Aggregate), start());
    window.push_commit(step(0), false);
    assert!(!window.has_progress());
    assert!(window.watermark().covers(&step(0)));
    window.push_event(event(1, 1));
    window.push_commit(step(1), true);
    window.push_commit(step(2), false);
    assert!(!window.watermark().covers(&step(1)));
    let now = Instant::now();
    let slot = window.next_ready(now).unwrap();
    window.sent(slot, 1, now);
    window.confirmed(1).unwrap();
    assert!(window.has_progress());
    assert!(window.take_progress().covers(&step(2)));
    assert!(!window.has_progress());
}
