//! Metrics of sagas and commands.

use std::convert::Infallible;
use std::time::Duration;

use prometheus::{IntGauge, Registry};
use reliability::mysql::Database;
use reliability::{commands, saga};
use tokio::time::{interval, timeout};
use tracing::warn;

use super::{Kept, register};
use crate::fulfilment::Fulfilment;
use crate::telemetry::chain;

/// Longest count.
const LOOK: Duration = Duration::from_secs(5);

/// Sagas on their way, in the whole database: every worker shows the same.
pub(crate) struct Sagas {
    running: IntGauge,
    compensating: IntGauge,
    compensation_failed: IntGauge,
}

impl Sagas {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| register(registry, IntGauge::new(name, help)?);
        Ok(Self {
            running: gauge("saga_running_total", "Sagas that are RUNNING")?,
            compensating: gauge("saga_compensating_total", "Sagas that are COMPENSATING")?,
            compensation_failed: gauge(
                "saga_compensation_failed_total",
                "Sagas whose compensation has failed, and is tried again now and then: a person is needed",
            )?,
        })
    }

    /// Counts at each interval. What was counted last stays while MySQL is away.
    pub(crate) async fn keep_counting(&self, database: &Database, each: Duration) -> Infallible {
        let mut ticks = interval(each);
        loop {
            ticks.tick().await;
            match timeout(LOOK, saga::overview(database)).await {
                Ok(Ok(overview)) => self.set(&overview),
                Ok(Err(error)) => warn!(error = %chain(&error), "sagas not counted"),
                Err(_) => warn!(after = ?LOOK, "sagas not counted in time"),
            }
        }
    }

    fn set(&self, overview: &saga::Overview) {
        let gauges = [
            (&self.running, overview.running),
            (&self.compensating, overview.compensating),
            (&self.compensation_failed, overview.compensation_failed),
        ];
        for (gauge, count) in gauges {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

type Saga = fn(&saga::Counters) -> u64;
type Commands = fn(&commands::Counters) -> u64;

/// Shows what the workers of this process count.
pub(super) fn watch(registry: &Registry, fulfilment: &Fulfilment) -> Result<(), prometheus::Error> {
    let sagas: [(&str, &str, Saga); 9] = [
        (
            "saga_started_total",
            "Sagas whose first step was begun here",
            |c| c.started,
        ),
        ("saga_completed_total", "Sagas completed here", |c| {
            c.completed
        }),
        ("saga_compensated_total", "Sagas compensated here", |c| {
            c.compensated
        }),
        (
            "saga_compensation_failures_total",
            "Rounds that left a saga stuck in its compensation or at its end",
            |c| c.compensation_failures,
        ),
        (
            "saga_takeovers_total",
            "Sagas taken over from a worker whose lease was over",
            |c| c.takeovers,
        ),
        (
            "saga_unknown_definitions_total",
            "Sagas left alone because this worker knows no such type or version",
            |c| c.refused_definitions,
        ),
        (
            "saga_steps_refused_total",
            "Steps and undos that the other side refused",
            |c| c.refused,
        ),
        (
            "saga_steps_failed_total",
            "Steps and undos that failed with nothing done",
            |c| c.technical,
        ),
        (
            "saga_steps_unknown_total",
            "Steps and undos whose outcome was unknown",
            |c| c.unknown,
        ),
    ];
    for (name, help, read) in sagas {
        let fulfilment = fulfilment.clone();
        Kept::register(registry, name, help, move || read(&fulfilment.sagas()))?;
    }
    let commands: [(&str, &str, Commands); 4] = [
        ("commands_done_total", "Commands set DONE here", |c| c.done),
        (
            "commands_failed_attempts_total",
            "Attempts of commands that failed",
            |c| c.failed_attempts,
        ),
        (
            "commands_given_up_total",
            "Commands set FAILED after their last attempt",
            |c| c.given_up,
        ),
        (
            "commands_lost_total",
            "Results of commands thrown away because the lease was over",
            |c| c.lost,
        ),
    ];
    for (name, help, read) in commands {
        let fulfilment = fulfilment.clone();
        Kept::register(registry, name, help, move || read(&fulfilment.commands()))?;
    }
    Ok(())
}
