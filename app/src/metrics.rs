//! Every metric, in one place.

mod external;
mod sagas;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry, TextEncoder,
};
use reliability::idempotency::{Counts, Idempotency};
use reliability::mysql::Database;

use crate::fulfilment::Fulfilment;
pub(crate) use external::External;
use sagas::Sagas;

/// From a fast insert to the longest request, in seconds.
const REQUEST: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];
/// From a commit to its effect at the consumer, in seconds; the long ones follow an outage.
const EVENT: [f64; 16] = [
    0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0,
];

/// The process's metrics.
pub(crate) struct Metrics {
    registry: Registry,
    /// HTTP requests answered, by route and status.
    pub(crate) requests: IntCounterVec,
    /// How long they took, by route.
    pub(crate) request_seconds: HistogramVec,
    /// Messages delivered to the worker.
    pub(crate) received: IntCounter,
    /// Events that took effect.
    pub(crate) processed: IntCounter,
    /// Events that had taken effect before.
    pub(crate) duplicate: IntCounter,
    /// Messages that went to `dead_letter_events`.
    pub(crate) poison: IntCounter,
    /// From an event's `created_at` to the commit of its effect.
    pub(crate) event_seconds: Histogram,
    /// What is known of calls to other services.
    pub(crate) external: External,
    /// Sagas on their way.
    pub(crate) sagas: Sagas,
}

impl Metrics {
    /// All at zero; what the library counts is read from it.
    pub(crate) fn new(
        database: &Database,
        idempotency: &Idempotency,
    ) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let r = &registry;
        register_contention(r, database)?;
        register_idempotency(r, idempotency)?;
        let requests = IntCounterVec::new(
            Opts::new("http_requests_total", "HTTP requests answered"),
            &["route", "status"],
        )?;
        let seconds = HistogramOpts::new("http_request_duration_seconds", "Time to the answer");
        let request_seconds = HistogramVec::new(seconds.buckets(REQUEST.to_vec()), &["route"])?;
        let event = HistogramOpts::new(
            "app_event_delay_seconds",
            "From an event's created_at to the commit of its effect",
        );
        Ok(Self {
            requests: register(r, requests)?,
            request_seconds: register(r, request_seconds)?,
            received: counter(
                r,
                "app_events_received_total",
                "Messages delivered to the worker",
            )?,
            processed: counter(r, "app_events_processed_total", "Events that took effect")?,
            duplicate: counter(
                r,
                "app_events_duplicate_total",
                "Events that had taken effect before, and were acknowledged only",
            )?,
            poison: counter(
                r,
                "app_events_poison_total",
                "Messages that could not be read, and went to dead_letter_events",
            )?,
            event_seconds: register(r, Histogram::with_opts(event.buckets(EVENT.to_vec()))?)?,
            external: External::new(r)?,
            sagas: Sagas::new(r)?,
            registry,
        })
    }

    /// Shows what the sagas of this process do.
    pub(crate) fn watch_sagas(&self, fulfilment: &Fulfilment) -> Result<(), prometheus::Error> {
        sagas::watch(&self.registry, fulfilment)
    }

    /// The text that Prometheus scrapes.
    pub(crate) fn render(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap_or_default()
    }
}

fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    metric: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    register(registry, IntCounter::new(name, help)?)
}

/// A counter that the library keeps.
struct Kept {
    description: Desc,
    name: &'static str,
    help: &'static str,
    read: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl Kept {
    fn register(
        registry: &Registry,
        name: &'static str,
        help: &'static str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<(), prometheus::Error> {
        let description = Desc::new(
            name.to_owned(),
            help.to_owned(),
            Vec::new(),
            Default::default(),
        )?;
        registry.register(Box::new(Self {
            description,
            name,
            help,
            read: Box::new(read),
        }))
    }
}

impl Collector for Kept {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.description]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Ok(counter) = IntCounter::new(self.name, self.help) else {
            return Vec::new();
        };
        counter.inc_by((self.read)());
        counter.collect()
    }
}

fn register_contention(registry: &Registry, database: &Database) -> Result<(), prometheus::Error> {
    let (one, other) = (database.clone(), database.clone());
    Kept::register(
        registry,
        "mysql_deadlocks_total",
        "Transactions that ended in a deadlock (error 1213) and were rolled back",
        move || one.deadlocks(),
    )?;
    Kept::register(
        registry,
        "mysql_lock_timeouts_total",
        "Transactions that waited too long for a lock (error 1205) and were rolled back",
        move || other.lock_timeouts(),
    )
}

fn register_idempotency(registry: &Registry, keys: &Idempotency) -> Result<(), prometheus::Error> {
    type Read = fn(&Counts) -> u64;
    let counters: [(&str, &str, Read); 7] = [
        (
            "idempotency_claimed_total",
            "Idempotency keys claimed by a request",
            |counts| counts.claimed,
        ),
        (
            "idempotency_taken_over_total",
            "Idempotency keys claimed from a request whose lease was over",
            |counts| counts.taken_over,
        ),
        (
            "idempotency_replays_total",
            "Requests answered with the stored answer of their idempotency key",
            |counts| counts.replayed,
        ),
        (
            "idempotency_conflicts_total",
            "Requests refused because one with their idempotency key was in progress",
            |counts| counts.in_progress,
        ),
        (
            "idempotency_mismatches_total",
            "Requests refused because their idempotency key belongs to another request",
            |counts| counts.mismatched,
        ),
        (
            "idempotency_fenced_total",
            "Transactions rolled back because their idempotency key was taken over",
            |counts| counts.fenced,
        ),
        (
            "idempotency_released_total",
            "Idempotency keys given back without an answer",
            |counts| counts.released,
        ),
    ];
    for (name, help, read) in counters {
        let keys = keys.clone();
        Kept::register(registry, name, help, move || read(&keys.counts()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_shows() {
        let url = "mysql://u:p@127.0.0.1:1/d".parse().unwrap();
        let database = Database::new(&url, Default::default());
        let keys = Idempotency::new(database.clone(), Default::default());
        let metrics = Metrics::new(&database, &keys).unwrap();
        metrics
            .requests
            .with_label_values(&["/orders", "201"])
            .inc();
        metrics
            .request_seconds
            .with_label_values(&["/orders"])
            .observe(0.1);
        let text = metrics.render();
        for line in [
            "mysql_deadlocks_total 0",
            "mysql_lock_timeouts_total 0",
            "idempotency_claimed_total 0",
            "idempotency_taken_over_total 0",
            "idempotency_replays_total 0",
            "idempotency_conflicts_total 0",
            "idempotency_mismatches_total 0",
            "idempotency_fenced_total 0",
            "idempotency_released_total 0",
            "http_requests_total{route=\"/orders\",status=\"201\"} 1",
            "http_request_duration_seconds_count{route=\"/orders\"} 1",
            "app_events_received_total 0",
            "app_events_processed_total 0",
            "app_events_duplicate_total 0",
            "app_events_poison_total 0",
            "app_event_delay_seconds_count 0",
            "saga_running_total 0",
            "saga_compensating_total 0",
            "saga_compensation_failed_total 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
