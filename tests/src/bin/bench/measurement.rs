//! What a run cost, and how it is shown.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tests::broker::QueueKind;
use tests::process::Usage;

/// What the publishing process spent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spent {
    /// From the first publication to the last confirm.
    pub(crate) time: Duration,
    /// CPU and memory of the whole process.
    pub(crate) usage: Usage,
}

impl Spent {
    /// One line, for the parent process.
    pub(crate) fn json(&self) -> Value {
        json!({
            "nanos": self.time.as_nanos() as u64,
            "cpu_micros": self.usage.cpu.as_micros() as u64,
            "peak_kib": self.usage.peak_kib,
        })
    }

    /// Reads what a child printed.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).context("a child printed no JSON")?;
        let number = |key: &str| {
            value
                .get(key)
                .and_then(Value::as_u64)
                .context("a number is missing")
        };
        Ok(Self {
            time: Duration::from_nanos(number("nanos")?),
            usage: Usage {
                cpu: Duration::from_micros(number("cpu_micros")?),
                peak_kib: number("peak_kib")?,
                resident_kib: 0,
            },
        })
    }
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Measurement {
    /// Who published.
    pub(crate) what: String,
    /// To which kind of queue.
    pub(crate) kind: QueueKind,
    /// How many events.
    pub(crate) events: u64,
    /// What it spent.
    pub(crate) spent: Spent,
}

impl Measurement {
    fn rate(&self) -> f64 {
        self.events as f64 / self.spent.time.as_secs_f64()
    }

    fn cpu_micros(&self) -> f64 {
        self.spent.usage.cpu.as_secs_f64() * 1e6 / self.events as f64
    }

    fn peak_mib(&self) -> f64 {
        self.spent.usage.peak_kib as f64 / 1024.0
    }
}

/// For a person.
pub(crate) fn table(all: &[Measurement]) -> String {
    let mut text = format!(
        "backlog\n{:<8} {:<22} {:>8} {:>10} {:>13} {:>9}",
        "queue", "publisher", "events", "events/s", "CPU us/event", "peak MiB"
    );
    for row in all {
        // Writing to a String can't fail.
        write!(
            text,
            "\n{:<8} {:<22} {:>8} {:>10.0} {:>13.1} {:>9.1}",
            row.kind.name(),
            row.what,
            row.events,
            row.rate(),
            row.cpu_micros(),
            row.peak_mib()
        )
        .unwrap_or_default();
    }
    text
}

/// For a program.
pub(crate) fn json(all: &[Measurement]) -> Value {
    let rows = all.iter().map(|row| {
        json!({
            "queue": row.kind.name(), "publisher": row.what, "events": row.events,
            "events_per_second": row.rate(), "cpu_micros_per_event": row.cpu_micros(),
            "peak_mib": row.peak_mib(),
        })
    });
    Value::Array(rows.collect())
}
