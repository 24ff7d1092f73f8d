//! Memory of the relay during one big transaction, on a server of its own: others' rows pass through its memory too.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use tests::broker::QueueKind;
use tests::scene::Scene;
use tests::until::{Seen, within};
use tokio::time::sleep;

use crate::{backlog, drain};

/// Bound on the whole transaction: against a hang only.
const DEADLINE: Duration = Duration::from_secs(3_600);

/// Time between two looks at the marks: counting open rows is work for the server.
const LOOK: Duration = Duration::from_secs(1);

/// Values of `RELAY_MARK` that differ in what the relay keeps.
pub(crate) const MARKS: [&str; 2] = ["none", "update"];

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Memory {
    mark: &'static str,
    kind: QueueKind,
    events: u64,
    /// Resident before the transaction.
    idle_kib: u64,
    /// The most that was ever resident.
    peak_kib: u64,
    /// From the sending of the commit to the last confirm.
    time: Duration,
}

impl Memory {
    fn idle_mib(&self) -> f64 {
        self.idle_kib as f64 / 1024.0
    }

    fn peak_mib(&self) -> f64 {
        self.peak_kib as f64 / 1024.0
    }
}

/// Commits that many events at once under a relay that has nothing else to do.
pub(crate) async fn measure(
    scene: &mut Scene,
    kind: QueueKind,
    mark: &'static str,
    events: u64,
) -> Result<Memory> {
    let queue = scene.broker.queue_of(kind, "#").await?;
    let command = scene
        .relay()
        // With the optional privilege that makes marks small.
        .with("RELAY_MYSQL_URL", scene.database.url())
        .with("RELAY_MARK", mark)
        .with("RELAY_LOG_LEVEL", "warn");
    let mut relay = drain::started(scene, &command).await?;
    let idle_kib = relay.usage()?.resident_kib;
    let committing = backlog::insert_at_once(&scene.database, events).await?;
    let start = Instant::now();
    let committed = committing.commit();
    let confirmed = relay.reaches_within(DEADLINE, "relay_confirmed_total", events);
    let ((), time) = tokio::try_join!(committed, async {
        confirmed.await?;
        Ok(start.elapsed())
    })?;
    if mark == "update" {
        within(DEADLINE, "the rows to be PUBLISHED", async || {
            let open = scene.database.count("status <> 'PUBLISHED'").await?;
            if open > 0 {
                sleep(LOOK).await;
            }
            Ok(Seen::when(open == 0, || {
                format!("{open} rows that are not")
            }))
        })
        .await?;
    }
    let peak_kib = relay.usage()?.peak_kib;
    relay.stop().await?;
    drain::arrived(scene, &queue, events).await?;
    Ok(Memory {
        mark,
        kind,
        events,
        idle_kib,
        peak_kib,
        time,
    })
}

/// For a person.
pub(crate) fn table(all: &[Memory]) -> String {
    let mut text = format!(
        "memory of the relay during one transaction\n{:<8} {:<8} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "queue", "mark", "rows", "idle MiB", "peak MiB", "more MiB", "seconds"
    );
    for row in all {
        // Writing to a String can't fail.
        write!(
            text,
            "\n{:<8} {:<8} {:>9} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
            row.kind.name(),
            row.mark,
            row.events,
            row.idle_mib(),
            row.peak_mib(),
            row.peak_mib() - row.idle_mib(),
            row.time.as_secs_f64()
        )
        .unwrap_or_default();
    }
    text
}

/// For a program.
pub(crate) fn json(all: &[Memory]) -> Value {
    let rows = all.iter().map(|row| {
        json!({
            "queue": row.kind.name(), "mark": row.mark, "rows": row.events,
            "idle_mib": row.idle_mib(), "peak_mib": row.peak_mib(),
            "more_mib": row.peak_mib() - row.idle_mib(), "seconds": row.time.as_secs_f64(),
        })
    });
    Value::Array(rows.collect())
}
