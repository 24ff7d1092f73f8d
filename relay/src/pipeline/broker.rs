//! The broker as the pipeline sees it: a connection that stands, is being made, or is waited for.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reliability::resilience::Backoff;
use tracing::{info, warn};

use super::circuit::{Breaker, Circuit};
use crate::health::{Health, Part};
use crate::metrics::Metrics;
use crate::publish::{PublishError, Publisher, Refused, Signal};
use crate::route::Publication;

/// A connection attempt.
pub type Dialing = Pin<Box<dyn Future<Output = Result<Box<dyn Publisher>, PublishError>> + Send>>;
/// Makes connection attempts.
pub type Dial = Box<dyn Fn() -> Dialing + Send + Sync>;

/// Longest wait for an orderly goodbye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

enum State {
    Waiting(Instant),
    Dialing(Dialing),
    Up(Box<dyn Publisher>),
}

/// What has come of waiting.
pub(super) enum Change {
    /// Time to dial.
    Waited,
    /// A connection stands.
    Connected,
    /// Signals are there to be read.
    Signals,
    /// The connection, or the attempt at one, has failed.
    Lost(PublishError),
    /// The very first attempt failed in a way that a person has to mend.
    Refused(PublishError),
}

/// The broker.
pub(super) struct Broker {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    state: State,
    backoff: Backoff,
    breaker: Breaker,
    ever_connected: bool,
    blocked: bool,
    /// Waits for confirms count from here at the earliest: the broker confirms nothing new while it blocks.
    unblocked_at: Option<Instant>,
}

impl Broker {
    pub(super) fn new(metrics: Arc<Metrics>, health: Arc<Health>) -> Self {
        Self {
            metrics,
            health,
            state: State::Waiting(Instant::now()),
            backoff: Backoff::default(),
            breaker: Breaker::new(),
            ever_connected: false,
            blocked: false,
            unblocked_at: None,
        }
    }

    /// Whether a publication may be handed in, with at most that many bytes unwritten.
    pub(super) fn takes(&self, bound: usize) -> bool {
        match &self.state {
            State::Up(publisher) => {
                !self.blocked
                    && publisher.buffered() < bound
                    && self.breaker.lets_through(publisher.in_flight())
            }
            State::Waiting(_) | State::Dialing(_) => false,
        }
    }

    /// Hands a publication in; [`takes`](Self::takes) has said yes.
    pub(super) fn publish(&mut self, publication: &Publication) -> Result<u64, Refused> {
        match &mut self.state {
            State::Up(publisher) => publisher.publish(publication),
            State::Waiting(_) | State::Dialing(_) => Ok(0),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        match &self.state {
            State::Up(publisher) => publisher.in_flight(),
            State::Waiting(_) | State::Dialing(_) => 0,
        }
    }

    /// When the wait for a confirm of something sent then began.
    pub(super) fn clock_start(&self, sent: Instant) -> Instant {
        if self.blocked {
            // Nothing is overdue while the broker says that it does not listen.
            return Instant::now();
        }
        self.unblocked_at.map_or(sent, |at| at.max(sent))
    }

    /// Waits for the next change.
    ///
    /// # Cancel safety
    /// Safe: attempts and connections are kept in `self`.
    pub(super) async fn change(&mut self, dial: &Dial, signals: &mut Vec<Signal>) -> Change {
        match &mut self.state {
            State::Waiting(until) => {
                tokio::time::sleep_until((*until).into()).await;
                self.state = State::Dialing(dial());
                Change::Waited
            }
            State::Dialing(dialing) => match dialing.await {
                Ok(publisher) => {
                    self.connected(publisher);
                    Change::Connected
                }
                Err(error) if !self.ever_connected && error.is_definite() => Change::Refused(error),
                Err(error) => Change::Lost(error),
            },
            State::Up(publisher) => {
                let polled = std::future::poll_fn(|cx| publisher.poll_signals(cx, signals)).await;
                match polled {
                    Ok(()) => Change::Signals,
                    Err(error) => Change::Lost(error),
                }
            }
        }
    }

    fn connected(&mut self, publisher: Box<dyn Publisher>) {
        self.breaker.connected();
        match self.breaker.state() {
            Circuit::HalfOpen => info!(
                "connected to the broker; one event goes first, the rest once the broker has decided on it"
            ),
            Circuit::Closed | Circuit::Open => info!("connected to the broker"),
        }
        self.state = State::Up(publisher);
        self.ever_connected = true;
        self.blocked = false;
        self.unblocked_at = None;
        self.metrics.broker_up.set(1);
        self.metrics.broker_blocked.set(0);
        self.show_circuit();
        self.health.good(Part::Broker);
    }

    /// The broker has decided on a publication.
    pub(super) fn outcome(&mut self) {
        if self.breaker.outcome() {
            info!("the broker decides on publications again");
            self.show_circuit();
        }
    }

    /// The channel is gone over a single publication; the broker itself is well, so the next attempt comes at once.
    pub(super) fn channel_lost(&mut self, now: Instant) {
        self.state = State::Waiting(now);
        self.blocked = false;
        self.metrics.broker_up.set(0);
        self.metrics.broker_blocked.set(0);
    }

    fn show_circuit(&self) {
        self.metrics.circuit.set(match self.breaker.state() {
            Circuit::Closed => 0,
            Circuit::HalfOpen => 1,
            Circuit::Open => 2,
        });
    }

    /// The connection can't be used any more; the next attempt comes after a backoff.
    pub(super) fn lost(&mut self, why: &str) {
        self.breaker.lost();
        let attempt = self.breaker.losses().saturating_add(1);
        self.state = State::Waiting(Instant::now() + self.backoff.delay(attempt));
        self.show_circuit();
        self.blocked = false;
        self.metrics.broker_up.set(0);
        self.metrics.broker_blocked.set(0);
        self.health.bad(Part::Broker, why);
    }

    pub(super) fn blocked(&mut self, reason: &str) {
        warn!(
            reason,
            "the broker blocks publishing (memory or disk alarm); waiting for it"
        );
        self.blocked = true;
        self.metrics.broker_blocked.set(1);
        self.health.bad(
            Part::Broker,
            format!("the broker blocks publishing: {reason}; free memory or disk on the broker"),
        );
    }

    pub(super) fn unblocked(&mut self, now: Instant) {
        info!("the broker takes publications again");
        self.blocked = false;
        self.unblocked_at = Some(now);
        self.metrics.broker_blocked.set(0);
        self.health.good(Part::Broker);
    }

    /// Says goodbye.
    pub(super) async fn close(self) {
        if let State::Up(publisher) = self.state
            && tokio::time::timeout(CLOSE_TIMEOUT, publisher.close())
                .await
                .is_err()
        {
            info!("the broker did not answer the goodbye");
        }
    }
}
