//! A relay with nothing to do writes nothing.
//!
//! A test binary of its own: cargo runs binaries one after another, so no other test writes to these
//! servers meanwhile, and the relay has no reason to move its checkpoint. Should someone else write,
//! each of their transactions allows one more checkpoint.

use std::time::Duration;

use anyhow::{Result, ensure};
use mysql_async::Row;
use mysql_async::prelude::Queryable as _;
use tests::database::{Database, NewEvent};
use tests::scene::{self, Failure, Scene};
use tests::servers::Flavor;
use tests::until::{Seen, until};
use tokio::time::sleep;

/// An idle minute, at default settings.
const IDLE: Duration = Duration::from_secs(60);

/// One for the checkpoint behind the last mark, and one for a mark or checkpoint under way as it begins.
const WRITES: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql() -> Result<(), Failure> {
    scene::run(Flavor::Mysql, idle_relay_stays_idle).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() -> Result<(), Failure> {
    scene::run(Flavor::Mariadb, idle_relay_stays_idle).await
}

async fn idle_relay_stays_idle(scene: &mut Scene) -> Result<()> {
    scene.broker.queue("#").await?;
    let mut relay = scene.relay().start().await?;
    let events: Vec<NewEvent> = (0..100)
        .map(|id| NewEvent::order(id, "OrderCreated", format!("order:{id}")))
        .collect();
    scene.database.insert(&events).await?;
    relay.publishes_all(&scene.database).await?;
    until("a first checkpoint", async || {
        let saved = "SELECT COUNT(*) FROM relay_checkpoints WHERE position IS NOT NULL";
        let saved = scene.database.number(saved).await?;
        Ok(Seen::when(saved == 1, || format!("{saved} rows")))
    })
    .await?;

    let counter = "relay_checkpoint_writes_total";
    let before = relay.metrics().await?.get(counter);
    let start = end_of_binlog(&scene.database).await?;
    // The only sleep of the tests: that nothing happens can't be waited for.
    sleep(IDLE).await;
    let checkpoints = relay.metrics().await?.get(counter) - before;
    let since = since(&scene.database, &start).await?;
    relay.stop().await?;
    let allowed = WRITES + since.foreign;
    scene.tell(&format!(
        "{checkpoints} checkpoints in {IDLE:?}, {allowed} allowed; {since:?}"
    ));
    ensure!(
        usize::try_from(checkpoints)? <= allowed,
        "{checkpoints} checkpoints"
    );
    ensure!(since.own.len() <= allowed, "{} writes", since.own.len());
    Ok(())
}

/// A file and an offset in it.
struct BinlogEnd {
    file: String,
    offset: u64,
}

async fn end_of_binlog(database: &Database) -> Result<BinlogEnd> {
    let files: Vec<Row> = database.connect().await?.query("SHOW BINARY LOGS").await?;
    let last = files
        .last()
        .and_then(|row| Some((row.get(0)?, row.get(1)?)));
    let (file, offset) = last.ok_or_else(|| anyhow::anyhow!("the server has no binlog"))?;
    Ok(BinlogEnd { file, offset })
}

/// What the server has logged.
#[derive(Debug, Default)]
struct Logged {
    /// Tables of this database whose rows changed, one entry a change.
    own: Vec<String>,
    /// Transactions of everyone else.
    foreign: usize,
}

async fn since(database: &Database, start: &BinlogEnd) -> Result<Logged> {
    let mut conn = database.connect().await?;
    let files: Vec<Row> = conn.query("SHOW BINARY LOGS").await?;
    let files = files.iter().filter_map(|row| row.get::<String, _>(0));
    let own = format!("({}.", database.name());
    let (mut logged, mut transactions) = (Logged::default(), 0);
    for file in files.filter(|file| *file >= start.file) {
        let from = if file == start.file { start.offset } else { 4 };
        let events: Vec<Row> = conn
            .query(format!("SHOW BINLOG EVENTS IN '{file}' FROM {from}"))
            .await?;
        for event in events {
            let text = |column: usize| event.get::<String, _>(column).unwrap_or_default();
            let (kind, info) = (text(2), text(5));
            match kind.as_str() {
                "Gtid" | "Gtid_tagged" | "Anonymous_Gtid" => transactions += 1,
                "Table_map" if info.contains(&own) => logged.own.push(info),
                _ => {}
            }
        }
    }
    // The relay writes one table a transaction, so each own change is one of them.
    logged.foreign = transactions - logged.own.len().min(transactions);
    Ok(logged)
}
