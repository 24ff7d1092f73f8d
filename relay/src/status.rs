//! How a relay does: what it knows of itself, and what its tables and its server tell.

mod stored;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::health::Health;
use crate::metrics::Metrics;

pub use stored::{COUNTED, CheckpointSeen, Rows, Stored, look};

/// What a running relay says of itself at `/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// `leading`, `standby`, or `starting` before it is either, or after it lost MySQL.
    pub role: String,
    /// Whether `/readyz` says so.
    pub ready: bool,
    /// What keeps it from being ready.
    pub reasons: Vec<String>,
    /// Which source is in use and why.
    pub source: String,
    /// Whether the source is connected.
    pub source_connected: bool,
    /// Whether a broker connection stands.
    pub broker_connected: bool,
    /// Whether the broker blocks publishing.
    pub broker_blocked: bool,
    /// `closed`, `half open` or `open`.
    pub circuit: String,
    /// Events held.
    pub held: i64,
    /// Publications not yet confirmed.
    pub in_flight: i64,
    /// Publications confirmed since the start.
    pub confirmed: u64,
    /// Publications returned as unroutable since the start.
    pub returned: u64,
    /// Publications nacked since the start.
    pub nacked: u64,
    /// Events given up since the start.
    pub dead_letters: u64,
    /// Rows published that the binlog had not brought, since the start.
    pub swept: u64,
    /// Connections lost since the start.
    pub reconnects: u64,
    /// Seconds since this process wrote a checkpoint; none before the first.
    pub checkpoint_age_seconds: Option<i64>,
}

impl Running {
    /// As things are now.
    pub fn of(config: &Config, metrics: &Metrics, health: &Health) -> Self {
        let standby = health.is_standby();
        let reasons = if standby {
            Vec::new()
        } else {
            health.complaints()
        };
        let role = if standby {
            "standby"
        } else if metrics.leader.get() == 1 {
            "leading"
        } else {
            "starting"
        };
        let circuit = match metrics.circuit.get() {
            0 => "closed",
            1 => "half open",
            _ => "open",
        };
        let written = Some(metrics.checkpoint_time.get()).filter(|seconds| *seconds > 0);
        Self {
            name: config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: role.to_owned(),
            ready: reasons.is_empty(),
            reasons,
            source: health.source(),
            source_connected: metrics.source_up.get() == 1,
            broker_connected: metrics.broker_up.get() == 1,
            broker_blocked: metrics.broker_blocked.get() == 1,
            circuit: circuit.to_owned(),
            held: metrics.window.get(),
            in_flight: metrics.in_flight.get(),
            confirmed: metrics.confirmed.get(),
            returned: metrics.returned.get(),
            nacked: metrics.nacked.get(),
            dead_letters: metrics.dead_letters.get(),
            swept: metrics.swept.get(),
            reconnects: metrics.reconnects.get(),
            checkpoint_age_seconds: written.map(|seconds| (now() - seconds).max(0)),
        }
    }
}

fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
