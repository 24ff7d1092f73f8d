//! Every metric, in one place.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// Commit to confirm, in seconds: from half a millisecond to a minute.
const LATENCY: [f64; 16] = [
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0,
    60.0,
];

/// The relay's metrics, and the registry that shows them.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Publications handed to the broker, retries too.
    pub published: IntCounter,
    /// Publications confirmed.
    pub confirmed: IntCounter,
    /// Publications returned as unroutable.
    pub returned: IntCounter,
    /// Publications nacked.
    pub nacked: IntCounter,
    /// Publications, by the name that the outbox pattern's dashboards use.
    pub publish_attempts: IntCounter,
    /// Events given up.
    pub dead_letters: IntCounter,
    /// Rows marked.
    pub marks: IntCounter,
    /// Rows that were leased by another worker when they were to be marked.
    pub marks_fenced: IntCounter,
    /// Transactions that the server rolled back as deadlocks.
    pub deadlocks: IntCounter,
    /// Statements that waited too long for a lock.
    pub lock_timeouts: IntCounter,
    /// Rows claimed by polling.
    pub claimed: IntCounter,
    /// Rows deleted because they were old.
    pub pruned: IntCounter,
    /// Rows that a sweep found and published.
    pub swept: IntCounter,
    /// Sweeps that found unpublished rows to look into.
    pub sweeps: IntCounter,
    /// 0 while the broker's circuit is closed, 1 half open, 2 open.
    pub circuit: IntGauge,
    /// 1 for the source in use.
    pub source_mode: IntGaugeVec,
    /// Changes between binlog and polling.
    pub source_switches: IntCounter,
    /// Checkpoints written.
    pub checkpoint_writes: IntCounter,
    /// When the last checkpoint was written, in seconds since 1970.
    pub checkpoint_time: IntGauge,
    /// Connections lost, to either server.
    pub reconnects: IntCounter,
    /// Bytes of binlog read.
    pub binlog_bytes: IntCounter,
    /// Transactions read.
    pub transactions: IntCounter,
    /// Publications without a word from the broker.
    pub in_flight: IntGauge,
    /// Events held.
    pub window: IntGauge,
    /// Whether a broker connection stands.
    pub broker_up: IntGauge,
    /// Whether the broker has blocked publishing.
    pub broker_blocked: IntGauge,
    /// Whether the binlog is being read.
    pub source_up: IntGauge,
    /// Whether this relay leads.
    pub leader: IntGauge,
    /// Snapshots taken.
    pub snapshots: IntCounter,
    /// Events left out because a snapshot had published them.
    pub overlap: IntCounter,
    /// From commit to confirm.
    pub commit_to_confirm: Histogram,
}

impl Metrics {
    /// All at zero.
    ///
    /// # Errors
    /// Two metrics of one name: a fault in this file.
    #[expect(clippy::too_many_lines, reason = "one statement a metric")]
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let r = &registry;
        Ok(Self {
            published: counter(
                r,
                "relay_published_total",
                "Publications handed to the broker, retries included",
            )?,
            confirmed: counter(
                r,
                "relay_confirmed_total",
                "Publications confirmed by the broker",
            )?,
            returned: counter(
                r,
                "relay_returned_total",
                "Publications returned as unroutable",
            )?,
            nacked: counter(r, "relay_nacked_total", "Publications nacked by the broker")?,
            publish_attempts: counter(
                r,
                "outbox_publish_attempts_total",
                "Attempts to publish an outbox event",
            )?,
            dead_letters: counter(
                r,
                "relay_dead_letters_total",
                "Events given up and kept as dead letters",
            )?,
            marks: counter(r, "relay_marks_total", "Outbox rows marked as published")?,
            marks_fenced: counter(
                r,
                "relay_marks_fenced_total",
                "Rows that another worker had taken over before they were marked",
            )?,
            deadlocks: counter(
                r,
                "mysql_deadlocks_total",
                "Transactions that MySQL rolled back as deadlocks (error 1213); they are tried again",
            )?,
            lock_timeouts: counter(
                r,
                "mysql_lock_timeouts_total",
                "Statements that waited too long for a lock (error 1205); they are tried again",
            )?,
            claimed: counter(r, "relay_claimed_total", "Rows claimed by polling")?,
            pruned: counter(
                r,
                "relay_pruned_total",
                "Published rows deleted because they were older than the retention",
            )?,
            swept: counter(
                r,
                "relay_swept_total",
                "Unpublished rows that the binlog had not brought, found in the table and published",
            )?,
            sweeps: counter(
                r,
                "relay_sweeps_total",
                "Looks at unpublished rows that the binlog might not have brought",
            )?,
            circuit: gauge(
                r,
                "relay_circuit_state",
                "The broker's circuit: 0 closed, 1 half open (one probe), 2 open",
            )?,
            source_mode: labelled(
                r,
                "relay_source_mode",
                "1 for the source in use: binlog or poll",
                "mode",
            )?,
            source_switches: counter(
                r,
                "relay_source_switches_total",
                "Changes from binlog to polling and back",
            )?,
            checkpoint_writes: counter(r, "relay_checkpoint_writes_total", "Checkpoints written")?,
            checkpoint_time: gauge(
                r,
                "relay_checkpoint_timestamp_seconds",
                "When the last checkpoint was written, seconds since 1970; 0 before the first",
            )?,
            reconnects: counter(
                r,
                "relay_reconnects_total",
                "Connections lost, to MySQL or to the broker",
            )?,
            binlog_bytes: counter(r, "relay_binlog_bytes_total", "Bytes of binlog events read")?,
            transactions: counter(
                r,
                "relay_transactions_total",
                "Transactions read from the binlog, foreign ones included",
            )?,
            in_flight: gauge(r, "relay_in_flight", "Publications not yet confirmed")?,
            window: gauge(
                r,
                "relay_window_events",
                "Events held: in flight, waiting or in backoff",
            )?,
            broker_up: gauge(
                r,
                "relay_broker_connected",
                "1 while a broker connection stands",
            )?,
            broker_blocked: gauge(
                r,
                "relay_broker_blocked",
                "1 while the broker blocks publishing (memory or disk alarm)",
            )?,
            source_up: gauge(
                r,
                "relay_source_connected",
                "1 while the binlog is being read",
            )?,
            leader: gauge(
                r,
                "relay_leader",
                "1 while this relay leads, 0 while it stands by",
            )?,
            snapshots: counter(
                r,
                "relay_snapshots_total",
                "Times that all unpublished rows were read from the table",
            )?,
            overlap: counter(
                r,
                "relay_snapshot_overlap_total",
                "Binlog events left out because a snapshot had published them",
            )?,
            commit_to_confirm: histogram(
                r,
                "relay_commit_to_confirm_seconds",
                "From the commit of a transaction to the confirm of its event",
                &LATENCY,
            )?,
            registry,
        })
    }

    /// Shows which source is in use.
    pub fn show_mode(&self, mode: &str) {
        for known in ["binlog", "poll"] {
            self.source_mode
                .with_label_values(&[known])
                .set(i64::from(known == mode));
        }
    }

    /// The text that Prometheus scrapes.
    pub fn render(&self) -> String {
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

fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    register(registry, IntGauge::new(name, help)?)
}

fn labelled(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
) -> Result<IntGaugeVec, prometheus::Error> {
    register(registry, IntGaugeVec::new(Opts::new(name, help), &[label])?)
}

fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    buckets: &[f64],
) -> Result<Histogram, prometheus::Error> {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    register(registry, Histogram::with_opts(options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_own_name_and_shows() {
        let metrics = Metrics::new().unwrap();
        metrics.confirmed.inc();
        assert!(metrics.render().contains("relay_confirmed_total 1"));
    }
}
