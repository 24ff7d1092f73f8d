//! From commit to delivery, at a steady rate.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use serde_json::{Value, json};
use tests::broker::QueueKind;
use tests::scene::Scene;
use tests::until::PATIENCE;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::backlog;

/// Events a second, for all writers.
const RATE: u32 = 1_000;
const SECONDS: u32 = 10;
const WRITERS: u32 = 8;

/// One row of the table: sorted times of all events.
#[derive(Debug)]
pub(crate) struct Latency {
    kind: QueueKind,
    /// From the moment before the commit was sent.
    from_sent: Vec<Duration>,
    /// From the moment at which the commit was answered; 0 where the message was there before.
    from_answered: Vec<Duration>,
}

struct Commit {
    key: String,
    sent: Instant,
    answered: Instant,
}

/// Writes single-row transactions at that rate and takes the time at which each is delivered.
pub(crate) async fn measure(scene: &mut Scene, kind: QueueKind) -> Result<Latency> {
    let queue = scene.broker.queue_of(kind, "#").await?;
    let relay = scene
        .relay()
        // With the optional privilege that makes marks small.
        .with("RELAY_MYSQL_URL", scene.database.url())
        .with("RELAY_LOG_LEVEL", "warn")
        .start()
        .await?;
    let mut consumer = scene.broker.consume(&queue).await?;
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        writers.spawn(write(scene.database.connect().await?, number));
    }
    let delivered = async {
        let mut delivered = HashMap::new();
        while delivered.len() < (RATE * SECONDS / WRITERS * WRITERS) as usize {
            let message = consumer.next().await.context("the consumer ended")??;
            let now = Instant::now();
            let key = message
                .properties
                .message_id()
                .as_ref()
                .context("no message_id")?;
            delivered.entry(key.to_string()).or_insert(now);
        }
        anyhow::Ok(delivered)
    };
    let delivered = timeout(PATIENCE, delivered)
        .await
        .context("not all were delivered")??;
    let (mut from_sent, mut from_answered) = (Vec::new(), Vec::new());
    for commits in writers.join_all().await {
        for commit in commits? {
            let at = delivered
                .get(&commit.key)
                .context("a commit that was not delivered")?;
            from_sent.push(at.saturating_duration_since(commit.sent));
            from_answered.push(at.saturating_duration_since(commit.answered));
        }
    }
    scene.broker.cancel(&consumer).await?;
    relay.stop().await?;
    from_sent.sort_unstable();
    from_answered.sort_unstable();
    Ok(Latency {
        kind,
        from_sent,
        from_answered,
    })
}

async fn write(mut conn: Conn, writer: u32) -> Result<Vec<Commit>> {
    let insert = "INSERT INTO outbox_events \
         (aggregate_type, aggregate_id, event_type, payload, idempotency_key) \
         VALUES ('order', ?, ?, ?, ?)";
    // Prepared before the first tick: the first row would bear it alone.
    let insert = conn.prep(insert).await?;
    let mut ticks = interval(Duration::from_secs(1) * WRITERS / RATE);
    let mut commits = Vec::new();
    for number in 0..RATE * SECONDS / WRITERS {
        let id = u64::from(number * WRITERS + writer);
        let (key, payload) = (backlog::key(id), backlog::payload(id));
        ticks.tick().await;
        let sent = Instant::now();
        conn.exec_drop(&insert, (id, backlog::EVENT_TYPE, payload, &key))
            .await?;
        commits.push(Commit {
            key,
            sent,
            answered: Instant::now(),
        });
    }
    Ok(commits)
}

/// In ms.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

/// For a person.
pub(crate) fn table(all: &[Latency]) -> String {
    let mut text = format!(
        "commit to delivery in ms, {RATE} events/s for {SECONDS} s\n{:<8} {:<22} {:>8} {:>8} {:>8}",
        "queue", "from", "p50", "p99", "max"
    );
    for row in all {
        for (from, times) in [
            ("commit sent", &row.from_sent),
            ("commit answered", &row.from_answered),
        ] {
            let [p50, p99, max] = [50, 99, 100].map(|percent| percentile(times, percent));
            // Writing to a String can't fail.
            write!(
                text,
                "\n{:<8} {from:<22} {p50:>8.2} {p99:>8.2} {max:>8.2}",
                row.kind.name()
            )
            .unwrap_or_default();
        }
    }
    text
}

/// For a program.
pub(crate) fn json(all: &[Latency]) -> Value {
    let figures = |times: &[Duration]| {
        json!({
            "p50_ms": percentile(times, 50),
            "p99_ms": percentile(times, 99),
            "max_ms": percentile(times, 100),
        })
    };
    let rows = all.iter().map(|row| {
        json!({
            "queue": row.kind.name(), "events_per_second": RATE, "seconds": SECONDS,
            "from_commit_sent": figures(&row.from_sent),
            "from_commit_answered": figures(&row.from_answered),
        })
    });
    Value::Array(rows.collect())
}
