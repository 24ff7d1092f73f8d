//! A circuit breaker: a service that fails is left alone for a while, and then tried by one call.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;

/// When a circuit opens and closes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitSettings {
    /// So many failures within `window` open it. At least 1.
    pub failures: u32,
    /// How long a failure counts.
    pub window: Duration,
    /// How long it stays open before one call may try.
    pub open_for: Duration,
}

impl Default for CircuitSettings {
    /// 5 failures within 30 s open it for 30 s.
    fn default() -> Self {
        Self {
            failures: 5,
            window: Duration::from_secs(30),
            open_for: Duration::from_secs(30),
        }
    }
}

/// What a circuit breaker does with the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CircuitState {
    /// Calls pass.
    Closed,
    /// No call passes.
    Open {
        /// When one may try.
        until: Instant,
    },
    /// One call may try, or is just trying.
    HalfOpen,
}

/// The call was not made: the service failed too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CircuitOpen {
    /// For some time.
    #[error("the circuit is open for another {:?}", .until.saturating_duration_since(Instant::now()))]
    Until {
        /// When one call may try again.
        until: Instant,
    },
    /// Another call is trying at this moment.
    #[error("the circuit is open; another call is trying whether the service is back")]
    Probing,
}

impl CircuitOpen {
    /// How long to wait before another attempt makes sense; zero while another call is trying.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self {
            CircuitOpen::Until { until } => until.saturating_duration_since(Instant::now()),
            CircuitOpen::Probing => Duration::ZERO,
        }
    }
}

/// Why [`CircuitBreaker::call`] has no value.
#[derive(Debug, Error)]
pub enum CallError<E> {
    /// The call was not made.
    #[error(transparent)]
    Open(#[from] CircuitOpen),
    /// The call failed.
    #[error(transparent)]
    Failed(E),
}

/// Keeps calls from a service that fails. Clones share one circuit.
///
/// Closed, it lets every call pass and counts failures in a sliding window; enough of them open it. Open, it answers at once.
/// After a while it is half open: **one** call passes as a probe, the others are answered at once. A good probe closes the
/// circuit, a failed one opens it again. Calls that began before it opened have no say once it did.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use reliability::resilience::{CallError, CircuitBreaker, CircuitSettings};
///
/// let circuit = CircuitBreaker::new(CircuitSettings { failures: 1, ..Default::default() });
/// // A refusal is an answer: the service works.
/// let refused = circuit.call(async { Err::<(), _>(402) }, |code| *code >= 500).await;
/// assert!(matches!(refused, Err(CallError::Failed(402))));
/// let broken = circuit.call(async { Err::<(), _>(503) }, |code| *code >= 500).await;
/// assert!(matches!(broken, Err(CallError::Failed(503))));
/// let spared = circuit.call(async { Ok::<_, u16>(()) }, |code| *code >= 500).await;
/// assert!(matches!(spared, Err(CallError::Open(_))));
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    settings: Arc<CircuitSettings>,
    circuit: Arc<Mutex<Circuit>>,
}

#[derive(Debug)]
struct Circuit {
    phase: Phase,
    /// Rises with each change of phase: what began in another has no say.
    generation: u64,
    opened: u64,
}

#[derive(Debug)]
enum Phase {
    /// The failures that count, the oldest first; fewer than the threshold.
    Closed(VecDeque<Instant>),
    Open {
        until: Instant,
    },
    HalfOpen {
        probing: bool,
    },
}

/// Leave for one call. Say how it ended; dropped without a word, it counts neither way, and the place of a probe is free for
/// the next call.
///
/// A caller that is cancelled says nothing about the service: clients that hang up must not be able to open a circuit.
#[derive(Debug)]
#[must_use = "dropped, it says nothing about the call"]
pub struct CircuitPass {
    breaker: CircuitBreaker,
    generation: u64,
    probe: bool,
    told: bool,
}

impl CircuitBreaker {
    /// A closed circuit.
    #[must_use]
    pub fn new(settings: CircuitSettings) -> Self {
        let circuit = Circuit {
            phase: Phase::Closed(VecDeque::new()),
            generation: 0,
            opened: 0,
        };
        Self {
            settings: Arc::new(settings),
            circuit: Arc::new(Mutex::new(circuit)),
        }
    }

    /// Leave for one call.
    ///
    /// # Errors
    /// The circuit is open, or another call is trying whether the service is back.
    pub fn try_pass(&self) -> Result<CircuitPass, CircuitOpen> {
        let mut circuit = self.lock();
        circuit.wake();
        let probe = match &mut circuit.phase {
            Phase::Closed(_) => false,
            Phase::Open { until } => return Err(CircuitOpen::Until { until: *until }),
            Phase::HalfOpen { probing: true } => return Err(CircuitOpen::Probing),
            Phase::HalfOpen { probing } => {
                *probing = true;
                true
            }
        };
        Ok(CircuitPass {
            breaker: self.clone(),
            generation: circuit.generation,
            probe,
            told: false,
        })
    }

    /// Makes a call, unless the circuit is open; `counts` says which errors are failures of the service.
    ///
    /// # Cancel safety
    /// A dropped call counts neither way; see [`CircuitPass`].
    ///
    /// # Errors
    /// The circuit is open, or the call failed.
    pub async fn call<T, E>(
        &self,
        call: impl Future<Output = Result<T, E>>,
        counts: impl FnOnce(&E) -> bool,
    ) -> Result<T, CallError<E>> {
        let pass = self.try_pass()?;
        match call.await {
            Ok(value) => {
                pass.succeeded();
                Ok(value)
            }
            Err(error) => {
                if counts(&error) {
                    pass.failed();
                } else {
                    pass.succeeded();
                }
                Err(CallError::Failed(error))
            }
        }
    }

    /// What the next call will meet.
    #[must_use]
    pub fn state(&self) -> CircuitState {
        let mut circuit = self.lock();
        circuit.wake();
        match circuit.phase {
            Phase::Closed(_) => CircuitState::Closed,
            Phase::Open { until } => CircuitState::Open { until },
            Phase::HalfOpen { .. } => CircuitState::HalfOpen,
        }
    }

    /// How often it opened since the start.
    #[must_use]
    pub fn times_opened(&self) -> u64 {
        self.lock().opened
    }

    fn lock(&self) -> MutexGuard<'_, Circuit> {
        // Nothing in here panics half way.
        self.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Circuit {
    /// Open long enough: half open.
    fn wake(&mut self) {
        if let Phase::Open { until } = self.phase
            && until <= Instant::now()
        {
            self.enter(Phase::HalfOpen { probing: false });
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.generation += 1;
    }

    fn open(&mut self, settings: &CircuitSettings) {
        self.opened += 1;
        self.enter(Phase::Open {
            until: Instant::now() + settings.open_for,
        });
    }

    fn failed(&mut self, settings: &CircuitSettings) {
        match &mut self.phase {
            Phase::Closed(failures) => {
                let now = Instant::now();
                while failures
                    .front()
                    .is_some_and(|at| now.saturating_duration_since(*at) >= settings.window)
                {
                    failures.pop_front();
                }
                failures.push_back(now);
                if failures.len() >= usize::try_from(settings.failures).unwrap_or(usize::MAX) {
                    self.open(settings);
                }
            }
            Phase::HalfOpen { .. } => self.open(settings),
            // Its own generation has no passes.
            Phase::Open { .. } => {}
        }
    }
}

impl CircuitPass {
    /// The service worked.
    pub fn succeeded(mut self) {
        self.told = true;
        let mut circuit = self.breaker.lock();
        if circuit.generation == self.generation && self.probe {
            circuit.enter(Phase::Closed(VecDeque::new()));
        }
    }

    /// The service failed.
    pub fn failed(mut self) {
        self.told = true;
        let mut circuit = self.breaker.lock();
        if circuit.generation == self.generation {
            circuit.failed(&self.breaker.settings);
        }
    }
}

impl Drop for CircuitPass {
    fn drop(&mut self) {
        if self.told || !self.probe {
            return;
        }
        let mut circuit = self.breaker.lock();
        if circuit.generation == self.generation {
            circuit.phase = Phase::HalfOpen { probing: false };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::time::advance;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);
    const OPEN: Duration = Duration::from_secs(30);

    fn breaker() -> CircuitBreaker {
        CircuitBreaker::new(CircuitSettings {
            failures: 3,
            window: WINDOW,
            open_for: OPEN,
        })
    }

    fn fail(breaker: &CircuitBreaker, times: u32) {
        for _ in 0..times {
            breaker.try_pass().unwrap().failed();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_within_the_window_open_it_and_a_good_probe_closes_it() {
        let breaker = breaker();
        fail(&breaker, 2);
        advance(WINDOW).await;
        // The first two are forgotten.
        fail(&breaker, 2);
        assert_eq!(breaker.state(), CircuitState::Closed);
        fail(&breaker, 1);
        let until = Instant::now() + OPEN;
        assert_eq!(breaker.state(), CircuitState::Open { until });
        let refused = breaker.try_pass().unwrap_err();
        assert_eq!(refused, CircuitOpen::Until { until });
        assert_eq!(refused.retry_after(), OPEN);
        advance(OPEN).await;
        assert_eq!(breaker.state(), CircuitState::HalfOpen);
        breaker.try_pass().unwrap().succeeded();
        assert_eq!(breaker.state(), CircuitState::Closed);
        // With a clean slate.
        fail(&breaker, 2);
        assert_eq!(
            (breaker.state(), breaker.times_opened()),
            (CircuitState::Closed, 1)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_at_a_time() {
        let breaker = breaker();
        fail(&breaker, 3);
        advance(OPEN).await;
        let probe = breaker.try_pass().unwrap();
        for _ in 0..10 {
            assert_eq!(breaker.try_pass().unwrap_err(), CircuitOpen::Probing);
        }
        // Without a word: the next one probes.
        drop(probe);
        let probe = breaker.try_pass().unwrap();
        assert_eq!(breaker.try_pass().unwrap_err(), CircuitOpen::Probing);
        probe.failed();
        let until = Instant::now() + OPEN;
        assert_eq!(breaker.state(), CircuitState::Open { until });
        assert_eq!(breaker.times_opened(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_an_earlier_phase_have_no_say() {
        let breaker = breaker();
        let (good, bad, dropped) = (
            breaker.try_pass().unwrap(),
            breaker.try_pass().unwrap(),
            breaker.try_pass().unwrap(),
        );
        fail(&breaker, 3);
        good.succeeded();
        assert!(matches!(breaker.state(), CircuitState::Open { .. }));
        advance(OPEN).await;
        let probe = breaker.try_pass().unwrap();
        bad.failed();
        drop(dropped);
        assert_eq!(breaker.try_pass().unwrap_err(), CircuitOpen::Probing);
        probe.succeeded();
        assert_eq!(breaker.state(), CircuitState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_counts_neither_way() {
        let breaker = breaker();
        for _ in 0..10 {
            let hangs = breaker.call(std::future::pending::<Result<(), ()>>(), |()| true);
            assert!(
                tokio::time::timeout(Duration::from_millis(1), hangs)
                    .await
                    .is_err()
            );
        }
        assert_eq!(breaker.state(), CircuitState::Closed);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Call,
        Succeed(usize),
        Fail(usize),
        Drop(usize),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::Call),
            1 => any::<usize>().prop_map(Step::Succeed),
            3 => any::<usize>().prop_map(Step::Fail),
            1 => any::<usize>().prop_map(Step::Drop),
            1 => (0_u64..40).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// Whatever happens: no pass while open, at most one while half open, and never open without its failures.
        #[test]
        fn no_call_passes_an_open_circuit(steps in steps()) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let breaker = breaker();
                let mut passes: Vec<CircuitPass> = Vec::new();
                let mut failures = 0;
                for step in steps {
                    let before = breaker.state();
                    let probes = |passes: &[CircuitPass]| {
                        let generation = breaker.lock().generation;
                        passes.iter().filter(|p| p.probe && p.generation == generation).count()
                    };
                    let take = |passes: &mut Vec<CircuitPass>, n: usize| {
                        let length = passes.len();
                        (length > 0).then(|| passes.swap_remove(n % length))
                    };
                    match step {
                        Step::Call => match (before, breaker.try_pass()) {
                            (CircuitState::Closed, pass) => passes.push(pass.unwrap()),
                            (CircuitState::Open { until }, pass) =>
                                assert_eq!(pass.unwrap_err(), CircuitOpen::Until { until }),
                            (CircuitState::HalfOpen, Ok(pass)) => {
                                assert_eq!(probes(&passes), 0);
                                passes.push(pass);
                            }
                            (CircuitState::HalfOpen, Err(refused)) => {
                                assert_eq!(refused, CircuitOpen::Probing);
                                assert_eq!(probes(&passes), 1);
                            }
                        },
                        Step::Succeed(n) => if let Some(pass) = take(&mut passes, n) { pass.succeeded() },
                        Step::Fail(n) => if let Some(pass) = take(&mut passes, n) {
                            failures += 1;
                            pass.failed();
                        },
                        Step::Drop(n) => drop(take(&mut passes, n)),
                        Step::Wait(seconds) => advance(Duration::from_secs(seconds)).await,
                    }
                    let opened = breaker.times_opened();
                    assert!(opened == 0 || failures >= 3 + (opened - 1));
                }
            });
        }
    }
}
