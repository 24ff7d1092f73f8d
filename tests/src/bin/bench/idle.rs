//! What a relay costs that has nothing to do.
//!
//! On a server of its own: so all that the server counts is the relay's.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Row};
use serde_json::{Value, json};
use tests::database::NewEvent;
use tests::scene::Scene;
use tests::until::{Seen, until};
use tokio::time::sleep;

/// Without a write for that long, the relay has settled.
const QUIET: Duration = Duration::from_secs(3);

/// Values of `RELAY_SOURCE` that differ in what they ask the server.
pub(crate) const SOURCES: [&str; 2] = ["binlog", "poll"];

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Idle {
    source: &'static str,
    time: Duration,
    cpu: Duration,
    binlog_bytes: u64,
    statements: u64,
    resident_kib: u64,
}

impl Idle {
    fn a_minute(&self, amount: f64) -> f64 {
        amount * 60.0 / self.time.as_secs_f64()
    }

    fn cpu_millis(&self) -> f64 {
        self.a_minute(self.cpu.as_secs_f64() * 1e3)
    }

    fn statements(&self) -> f64 {
        self.a_minute(self.statements as f64)
    }

    fn resident_mib(&self) -> f64 {
        self.resident_kib as f64 / 1024.0
    }
}

/// Lets a relay publish a little and then be idle for that long.
pub(crate) async fn measure(
    scene: &mut Scene,
    source: &'static str,
    idle: Duration,
) -> Result<Idle> {
    scene.broker.queue("#").await?;
    let command = scene
        .relay()
        .with("RELAY_SOURCE", source)
        .with("RELAY_LOG_LEVEL", "warn");
    let mut relay = command.start().await?;
    let events: Vec<NewEvent> = (0..100)
        .map(|id| NewEvent::order(id, "OrderCreated", format!("order:{id}")))
        .collect();
    scene.database.insert(&events).await?;
    relay.publishes_all(&scene.database).await?;
    let mut conn = scene.database.connect().await?;
    settled(&mut conn).await?;

    let (before, start) = (relay.usage()?, Instant::now());
    let bytes = binlog_bytes(&mut conn).await?;
    let asked = statements(&mut conn).await?;
    sleep(idle).await;
    // The counter counts the statement that reads it, too.
    let asked = statements(&mut conn).await?.saturating_sub(asked + 1);
    let bytes = binlog_bytes(&mut conn).await?.saturating_sub(bytes);
    let (after, time) = (relay.usage()?, start.elapsed());
    relay.stop().await?;
    conn.disconnect().await?;
    Ok(Idle {
        source,
        time,
        cpu: after.cpu.saturating_sub(before.cpu),
        binlog_bytes: bytes,
        statements: asked,
        resident_kib: after.resident_kib,
    })
}

/// Waits until the binlog stands still.
async fn settled(conn: &mut Conn) -> Result<()> {
    until("the binlog to stand still", async || {
        let before = binlog_bytes(conn).await?;
        sleep(QUIET).await;
        let grown = binlog_bytes(conn).await? - before;
        Ok(Seen::when(grown == 0, || {
            format!("{grown} bytes more in {QUIET:?}")
        }))
    })
    .await
}

/// Bytes of all binlog files: none is purged meanwhile.
async fn binlog_bytes(conn: &mut Conn) -> Result<u64> {
    let files: Vec<Row> = conn.query("SHOW BINARY LOGS").await?;
    let sizes = files.iter().filter_map(|row| row.get::<u64, _>(1));
    Ok(sizes.sum())
}

/// Statements that the server has run for clients so far.
async fn statements(conn: &mut Conn) -> Result<u64> {
    let found: Option<(String, u64)> = conn
        .query_first("SHOW GLOBAL STATUS LIKE 'Questions'")
        .await?;
    Ok(found.context("the server counts no Questions")?.1)
}

/// For a person.
pub(crate) fn table(all: &[Idle]) -> String {
    let mut text = format!(
        "an idle relay\n{:<8} {:>8} {:>14} {:>18} {:>14} {:>9}",
        "source", "seconds", "CPU ms/minute", "statements/minute", "binlog bytes", "RSS MiB"
    );
    for row in all {
        // Writing to a String can't fail.
        write!(
            text,
            "\n{:<8} {:>8.0} {:>14.0} {:>18.0} {:>14} {:>9.1}",
            row.source,
            row.time.as_secs_f64(),
            row.cpu_millis(),
            row.statements(),
            row.binlog_bytes,
            row.resident_mib()
        )
        .unwrap_or_default();
    }
    text
}

/// For a program.
pub(crate) fn json(all: &[Idle]) -> Value {
    let rows = all.iter().map(|row| {
        json!({
            "source": row.source, "seconds": row.time.as_secs_f64(),
            "cpu_ms_per_minute": row.cpu_millis(), "statements_per_minute": row.statements(),
            "binlog_bytes": row.binlog_bytes, "resident_mib": row.resident_mib(),
        })
    });
    Value::Array(rows.collect())
}
