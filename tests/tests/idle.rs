//! A relay with nothing to do writes nothing.
//!
//! A test binary of its own: cargo runs binaries one after another, so no other test writes to these
//! servers meanwhile, and a relay may then have no reason to move its checkpoint.

use std::time::Duration;

use anyhow::{Result, ensure};
use mysql_async::Row;
use mysql_async::prelude::Queryable as _;
use tests::database::{Database, NewEvent};
use tests::scene::{self, Scene};
use tests::servers::Flavor;
use tests::until::{Seen, until};
use tokio::time::sleep;

/// An idle minute, at default settings.
const IDLE: Duration = Duration::from_secs(60);

/// One for the checkpoint behind the last mark, and one for a mark or checkpoint under way as it begins.
const WRITES: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql() -> Result<()> {
    scene::run(Flavor::Mysql, idle_relay_stays_idle).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() -> Result<()> {
    scene::run(Flavor::Mariadb, idle_relay_stays_idle).await
}

async fn idle_relay_stays_idle(scene: &mut Scene) -> Result<()> {
    scene.broker.queue("#").await?;
    let relay = scene.relay().start().await?;
    let events: Vec<NewEvent> = (0..100)
        .map(|id| NewEvent::order(id, "OrderCreated", format!("order:{id}")))
        .collect();
    scene.database.insert(&events).await?;
    scene.database.all_published().await?;
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
    let writes = writes_since(&scene.database, &start).await?;
    relay.stop().await?;
    scene.tell(&format!("{checkpoints} checkpoints, writes {writes:?}"));
    ensure!(
        usize::try_from(checkpoints)? <= WRITES,
        "{checkpoints} checkpoints in {IDLE:?}"
    );
    ensure!(writes.len() <= WRITES, "writes in {IDLE:?}: {writes:?}");
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

/// The tables of this database that the server has logged row changes of since then, one entry a change.
async fn writes_since(database: &Database, start: &BinlogEnd) -> Result<Vec<String>> {
    let mut conn = database.connect().await?;
    let files: Vec<Row> = conn.query("SHOW BINARY LOGS").await?;
    let files = files.iter().filter_map(|row| row.get::<String, _>(0));
    let mut writes = Vec::new();
    for file in files.filter(|file| *file >= start.file) {
        let from = if file == start.file { start.offset } else { 4 };
        let events: Vec<Row> = conn
            .query(format!("SHOW BINLOG EVENTS IN '{file}' FROM {from}"))
            .await?;
        let own = format!("({}.", database.name());
        writes.extend(
            events
                .iter()
                .filter(|event| event.get::<String, _>(2).as_deref() == Some("Table_map"))
                .filter_map(|event| event.get::<String, _>(5))
                .filter(|info| info.contains(&own)),
        );
    }
    Ok(writes)
}
