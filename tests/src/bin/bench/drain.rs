//! The relay on a backlog.

use std::time::{Duration, Instant};

use anyhow::Result;
use tests::broker::QueueKind;
use tests::relay::{RelayCommand, RelayProcess};
use tests::scene::Scene;
use tests::until::{Seen, until, within};
use tokio::time::sleep;

use crate::measurement::{Measurement, Spent};
use crate::{Args, backlog};

/// Time between two looks at the relay's counters: both ends of the measured time are that unsure.
const LOOK: Duration = Duration::from_millis(20);

/// Bound on a whole drain: against a hang only.
const DEADLINE: Duration = Duration::from_secs(1_800);

/// Settings that are worth a measurement of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    settings: &'static [(&'static str, &'static str)],
}

/// The defaults first.
pub(crate) const VARIANTS: [Variant; 4] = [
    Variant {
        name: "relay",
        settings: &[],
    },
    Variant {
        name: "relay, ordering = none",
        settings: &[("RELAY_ORDERING", "none")],
    },
    Variant {
        name: "relay, mark = none",
        settings: &[("RELAY_MARK", "none")],
    },
    Variant {
        name: "relay, source = poll",
        settings: &[("RELAY_SOURCE", "poll")],
    },
];

impl Variant {
    fn sets(&self, setting: (&str, &str)) -> bool {
        self.settings.contains(&setting)
    }
}

/// Drains the backlog through the relay.
pub(crate) async fn relay(
    scene: &mut Scene,
    args: &Args,
    kind: QueueKind,
    variant: Variant,
) -> Result<Measurement> {
    let queue = scene.broker.queue_of(kind, "#").await?;
    let command = scene
        .relay()
        // With the optional privilege that makes marks small.
        .with("RELAY_MYSQL_URL", scene.database.url())
        .with("RELAY_LOG_LEVEL", "warn");
    let with = |command: RelayCommand, (name, value): &(&str, &str)| command.with(name, value);
    let command = variant.settings.iter().fold(command, with);
    if !variant.sets(("RELAY_SOURCE", "poll")) {
        // A checkpoint before the backlog: without one the rows would be read from the table instead.
        let first = started(scene, &command).await?;
        first.stop().await?;
    }
    backlog::insert(&scene.database, args.rows, args.batch).await?;

    let mut relay = command.spawn()?;
    let time = drained(&mut relay, args.rows).await?;
    // Its marks are part of what the events cost.
    if !variant.sets(("RELAY_MARK", "none")) {
        relay.publishes_all(&scene.database).await?;
    }
    let usage = relay.usage()?;
    relay.stop().await?;
    arrived(scene, &queue, args.rows).await?;
    Ok(Measurement {
        what: variant.name.to_owned(),
        kind,
        events: args.rows,
        spent: Spent { time, usage },
    })
}

/// Starts the relay and waits for its first checkpoint.
pub(crate) async fn started(scene: &Scene, command: &RelayCommand) -> Result<RelayProcess> {
    let relay = command.start().await?;
    until("a checkpoint", async || {
        let saved = "SELECT COUNT(*) FROM relay_checkpoints WHERE position IS NOT NULL";
        let saved = scene.database.number(saved).await?;
        Ok(Seen::when(saved == 1, || "none".to_owned()))
    })
    .await?;
    Ok(relay)
}

/// From the last look without a publication to the first with all confirmed.
async fn drained(relay: &mut RelayProcess, events: u64) -> Result<Duration> {
    let mut start = Instant::now();
    let end = start + DEADLINE;
    loop {
        relay.still_runs()?;
        let now = Instant::now();
        // No answer yet: it has only just been started.
        if let Ok(metrics) = relay.metrics().await {
            if metrics.get("relay_published_total") == 0 {
                start = now;
            }
            let confirmed = metrics.get("relay_confirmed_total");
            if confirmed >= events {
                return Ok(start.elapsed());
            }
            anyhow::ensure!(
                now < end,
                "{confirmed} of {events} confirmed in {DEADLINE:?}"
            );
        }
        sleep(LOOK).await;
    }
}

/// Waits until the queue holds exactly that many: a drain that lost some would be no drain.
pub(crate) async fn arrived(scene: &Scene, queue: &str, events: u64) -> Result<()> {
    within(
        Duration::from_secs(30),
        "all messages to be in the queue",
        async || {
            let depth = scene.broker.depth(queue).await?;
            Ok(Seen::when(u64::from(depth) == events, || {
                format!("{depth} of {events}")
            }))
        },
    )
    .await
}
