//! Metrics of calls to other services.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use reliability::resilience::{CircuitBreaker, CircuitState};

use super::register;

/// From an answer in the same rack to the longest timeout, in seconds.
const CALL: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0,
];

/// How calls to other services go. Clones count together.
#[derive(Clone)]
pub(crate) struct External {
    seconds: HistogramVec,
    errors: IntCounterVec,
    timeouts: IntCounterVec,
    in_flight: IntGaugeVec,
    circuits: Circuits,
}

/// A request under way; dropped, it is over.
pub(crate) struct Running {
    seconds: prometheus::Histogram,
    in_flight: IntGauge,
    began: Instant,
}

impl External {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let seconds = HistogramOpts::new(
            "external_request_duration_seconds",
            "From the request to a provider to its answer, or to the end of the waiting for it",
        );
        let errors = Opts::new(
            "external_request_errors_total",
            "Calls to providers that failed: refused, technical (nothing was done) or unknown",
        );
        let timeouts = Opts::new(
            "external_request_timeouts_total",
            "Requests to providers that were not answered in time",
        );
        let in_flight = Opts::new(
            "external_requests_in_flight",
            "Requests to providers that wait for their answer",
        );
        let call = ["provider", "operation"];
        let circuits = Circuits::new()?;
        registry.register(Box::new(circuits.clone()))?;
        Ok(Self {
            seconds: register(
                registry,
                HistogramVec::new(seconds.buckets(CALL.to_vec()), &call)?,
            )?,
            errors: register(
                registry,
                IntCounterVec::new(errors, &["provider", "operation", "kind"])?,
            )?,
            timeouts: register(registry, IntCounterVec::new(timeouts, &call)?)?,
            in_flight: register(registry, IntGaugeVec::new(in_flight, &["provider"])?)?,
            circuits,
        })
    }

    /// Shows that circuit from now on, in place of an earlier one of that provider.
    pub(crate) fn watch(&self, provider: &'static str, circuit: CircuitBreaker) {
        self.circuits.lock().insert(provider, circuit);
        self.in_flight.with_label_values(&[provider]).set(0);
    }

    /// A request is sent.
    pub(crate) fn begin(&self, provider: &str, operation: &str) -> Running {
        let in_flight = self.in_flight.with_label_values(&[provider]);
        in_flight.inc();
        Running {
            seconds: self.seconds.with_label_values(&[provider, operation]),
            in_flight,
            began: Instant::now(),
        }
    }

    /// A call failed; `kind` is what that says about the work.
    pub(crate) fn failed(&self, provider: &str, operation: &str, kind: &str, timed_out: bool) {
        self.errors
            .with_label_values(&[provider, operation, kind])
            .inc();
        if timed_out {
            self.timeouts
                .with_label_values(&[provider, operation])
                .inc();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.in_flight.dec();
        self.seconds.observe(self.began.elapsed().as_secs_f64());
    }
}

/// The circuits' states, read when they are asked for: an open one becomes half open by time alone.
#[derive(Clone)]
struct Circuits {
    description: Desc,
    breakers: Arc<Mutex<BTreeMap<&'static str, CircuitBreaker>>>,
}

impl Circuits {
    const NAME: &str = "external_circuit_state";
    const HELP: &str =
        "Circuit breaker of a provider: 0 closed, 1 half open (one call tries), 2 open";

    fn new() -> Result<Self, prometheus::Error> {
        let labels = vec!["provider".to_owned()];
        let description = Desc::new(
            Self::NAME.to_owned(),
            Self::HELP.to_owned(),
            labels,
            Default::default(),
        )?;
        Ok(Self {
            description,
            breakers: Arc::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, CircuitBreaker>> {
        // Nothing in here panics half way.
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Circuits {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.description]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Ok(states) = IntGaugeVec::new(Opts::new(Self::NAME, Self::HELP), &["provider"]) else {
            return Vec::new();
        };
        for (provider, circuit) in self.lock().iter() {
            let state = match circuit.state() {
                CircuitState::Closed => 0,
                CircuitState::HalfOpen => 1,
                CircuitState::Open { .. } => 2,
            };
            states.with_label_values(&[provider]).set(state);
        }
        states.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::TextEncoder;
    use reliability::resilience::CircuitSettings;

    use super::*;

    fn lines(registry: &Registry) -> Vec<String> {
        let text = TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn the_state_of_a_circuit_is_read_when_it_is_asked_for() {
        let registry = Registry::new();
        let external = External::new(&registry).unwrap();
        let broken = |open_for| {
            let settings = CircuitSettings {
                failures: 1,
                open_for,
                ..Default::default()
            };
            let circuit = CircuitBreaker::new(settings);
            external.watch("payment", circuit.clone());
            circuit.try_pass().unwrap().failed();
            circuit
        };
        let shows = |state: u8| {
            let line = format!("external_circuit_state{{provider=\"payment\"}} {state}");
            assert!(lines(&registry).contains(&line), "{line}");
        };
        broken(Duration::from_secs(3600));
        shows(2);
        // Open for no time, it is half open at once.
        let circuit = broken(Duration::ZERO);
        shows(1);
        circuit.try_pass().unwrap().succeeded();
        shows(0);
    }

    #[test]
    fn requests_are_counted_while_they_run_and_when_they_end() {
        let registry = Registry::new();
        let external = External::new(&registry).unwrap();
        let has = |line: &str| {
            let lines = lines(&registry);
            assert!(lines.iter().any(|found| found == line), "{lines:?}");
        };
        let running = external.begin("shipping", "create");
        has("external_requests_in_flight{provider=\"shipping\"} 1");
        drop(running);
        external.failed("shipping", "create", "unknown", true);
        external.failed("shipping", "create", "refused", false);
        has("external_requests_in_flight{provider=\"shipping\"} 0");
        has(
            "external_request_duration_seconds_count{operation=\"create\",provider=\"shipping\"} 1",
        );
        has(
            "external_request_errors_total{kind=\"unknown\",operation=\"create\",provider=\"shipping\"} 1",
        );
        has(
            "external_request_errors_total{kind=\"refused\",operation=\"create\",provider=\"shipping\"} 1",
        );
        has("external_request_timeouts_total{operation=\"create\",provider=\"shipping\"} 1");
    }
}
