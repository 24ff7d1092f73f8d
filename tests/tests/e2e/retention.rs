//! Published rows go once they are old; nothing else does.

use anyhow::{Result, ensure};
use mysql_async::prelude::Queryable as _;
use tests::both::session;
use tests::scene::Scene;
use tests::until::{Seen, until};

use crate::dlq;

tests::on_servers! {
    mysql Mysql: prune_deletes_old_published_rows_alone, prune_stops_where_rows_are_young, keys_that_tell_no_age_are_all_looked_at,
        prune_says_what_a_table_lacks, leader_cleans_up_in_the_background, a_lock_in_the_way_is_waited_for,
        relay_lives_without_the_columns;
    mariadb Mariadb: prune_deletes_old_published_rows_alone, prune_stops_where_rows_are_young, keys_that_tell_no_age_are_all_looked_at,
        prune_says_what_a_table_lacks, leader_cleans_up_in_the_background, a_lock_in_the_way_is_waited_for,
        relay_lives_without_the_columns;
}

/// Rows of those ids with that status, published so many days ago.
async fn rows(
    scene: &Scene,
    ids: std::ops::Range<i64>,
    status: &str,
    days: Option<u32>,
) -> Result<()> {
    let mut conn = scene.database.connect().await?;
    conn.query_drop("START TRANSACTION").await?;
    conn.exec_batch(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, idempotency_key, status, published_at) \
         VALUES (?, 'order', 1, 'T', '{}', ?, ?, UTC_TIMESTAMP(6) - INTERVAL ? DAY)",
        ids.map(|id| (id, format!("key:{id}"), status, days)),
    )
    .await?;
    conn.query_drop("COMMIT").await?;
    Ok(())
}

async fn ids(scene: &Scene) -> Result<Vec<i64>> {
    let mut conn = scene.database.connect().await?;
    Ok(conn
        .query("SELECT id FROM outbox_events ORDER BY id")
        .await?)
}

async fn prune_deletes_old_published_rows_alone(scene: &mut Scene) -> Result<()> {
    // More of them than a batch, and before all others.
    rows(scene, 1..6, "PUBLISHED", None).await?;
    rows(scene, 6..9, "PENDING", Some(90)).await?;
    rows(scene, 9..12, "PUBLISHED", Some(90)).await?;
    rows(scene, 12..14, "PROCESSING", Some(90)).await?;
    rows(scene, 14..16, "FAILED", Some(90)).await?;
    rows(scene, 16..23, "PUBLISHED", Some(31)).await?;
    rows(scene, 23..26, "PUBLISHED", Some(29)).await?;
    dlq::bury(scene, 100..103).await?;
    let relay = scene.relay();
    relay
        .output(&["prune", "--dry-run", "--batch", "2"])
        .await?
        .is(0, &["10 rows of outbox_events would be deleted"])?;
    ensure!(ids(scene).await?.len() == 28, "a dry run deletes");
    relay
        .output(&["prune", "--batch", "2"])
        .await?
        .is(0, &["10 rows of outbox_events deleted"])?;
    let left: Vec<i64> = (1..9).chain(12..16).chain(23..26).chain(100..103).collect();
    let found = ids(scene).await?;
    ensure!(found == left, "left are {found:?}");
    ensure!(
        dlq::letters(scene).await?.len() == 3,
        "dead letters are gone"
    );
    relay
        .output(&["prune", "--older-than", "28d"])
        .await?
        .is(0, &["3 rows"])?;
    relay
        .output(&["prune"])
        .await?
        .is(0, &["0 rows of outbox_events deleted"])
}

/// Ids and publication times grow together: behind a batch of young rows none is looked for.
async fn prune_stops_where_rows_are_young(scene: &mut Scene) -> Result<()> {
    rows(scene, 1..3, "PUBLISHED", Some(40)).await?;
    rows(scene, 3..5, "PUBLISHED", Some(1)).await?;
    rows(scene, 5..7, "PUBLISHED", Some(40)).await?;
    scene
        .relay()
        .output(&["prune", "--batch", "2"])
        .await?
        .is(0, &["2 rows of"])?;
    ensure!(ids(scene).await? == [3, 4, 5, 6]);
    Ok(())
}

async fn keys_that_tell_no_age_are_all_looked_at(scene: &mut Scene) -> Result<()> {
    session(
        scene,
        &[
            "CREATE TABLE uuids (id BINARY(16) PRIMARY KEY, status VARCHAR(20) NOT NULL, published_at DATETIME(6) NULL, \
             KEY (status))",
            "INSERT INTO uuids SELECT UNHEX(LEFT(SHA2(n, 256), 32)), 'PUBLISHED', UTC_TIMESTAMP(6) - INTERVAL d DAY FROM \
             (SELECT 1 AS n, 40 AS d UNION ALL SELECT 2, 1 UNION ALL SELECT 3, 40 UNION ALL SELECT 4, 1 UNION ALL SELECT 5, 40 \
              UNION ALL SELECT 6, 1 UNION ALL SELECT 7, 1) AS r",
        ],
    )
    .await?;
    scene.grant_on("uuids").await?;
    let relay = scene.relay().with("RELAY_TABLE", "uuids");
    relay
        .output(&["prune", "--batch", "1"])
        .await?
        .is(0, &["3 rows of uuids deleted"])?;
    let left = "SELECT COUNT(*) FROM uuids";
    ensure!(scene.database.number(left).await? == 4);
    Ok(())
}

async fn prune_says_what_a_table_lacks(scene: &mut Scene) -> Result<()> {
    let relay = scene.relay();
    for (command, words) in [
        (
            relay.clone().with("RELAY_COLUMN_STATUS", "-"),
            "no status column",
        ),
        (
            relay.clone().with("RELAY_TABLE", "absent"),
            "no status column",
        ),
    ] {
        command.output(&["prune"]).await?.is(1, &[words])?;
    }
    session(
        scene,
        &["ALTER TABLE outbox_events DROP COLUMN published_at"],
    )
    .await?;
    relay
        .output(&["prune"])
        .await?
        .is(1, &["no column published_at", "ADD COLUMN"])?;
    for arguments in [["prune", "--older-than", "0d"], ["prune", "--batch", "0"]] {
        relay.output(&arguments).await?.is(2, &[])?;
    }
    Ok(())
}

async fn leader_cleans_up_in_the_background(scene: &mut Scene) -> Result<()> {
    scene.broker.queue("#").await?;
    rows(scene, 1..1_501, "PUBLISHED", Some(40)).await?;
    rows(scene, 1_501..1_511, "PUBLISHED", Some(1)).await?;
    dlq::bury(scene, 1_600..1_603).await?;
    let command = scene.relay().with("RELAY_RETENTION_INTERVAL", "100ms");
    let mut relay = command.start().await?;
    relay.reaches("relay_pruned_total", 1_500).await?;
    let found = ids(scene).await?;
    ensure!(found.len() == 13, "{} rows are left", found.len());
    // It goes on doing so.
    rows(scene, 1..11, "PUBLISHED", Some(40)).await?;
    relay.reaches("relay_pruned_total", 1_510).await?;
    ensure!(
        dlq::letters(scene).await?.len() == 3,
        "dead letters are gone"
    );
    relay.stop().await
}

async fn a_lock_in_the_way_is_waited_for(scene: &mut Scene) -> Result<()> {
    scene.broker.queue("#").await?;
    rows(scene, 1..6, "PUBLISHED", Some(40)).await?;
    let mut holder = scene.database.connect().await?;
    holder.query_drop("START TRANSACTION").await?;
    holder
        .query_drop("SELECT id FROM outbox_events WHERE id = 3 FOR UPDATE")
        .await?;
    let command = scene.relay().with("RELAY_RETENTION_INTERVAL", "100ms");
    let mut relay = command.start().await?;
    relay.reaches("mysql_lock_timeouts_total", 1).await?;
    ensure!(relay.metrics().await?.get("relay_pruned_total") == 0);
    holder.query_drop("COMMIT").await?;
    relay.reaches("relay_pruned_total", 5).await?;
    relay.stop().await
}

async fn relay_lives_without_the_columns(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    session(
        scene,
        &["ALTER TABLE outbox_events DROP COLUMN published_at"],
    )
    .await?;
    let command = scene.relay().with("RELAY_RETENTION_INTERVAL", "50ms");
    let mut relay = command.start().await?;
    let said = "published rows are not cleaned up";
    until("the relay to say that it can't clean up", async || {
        relay.still_runs()?;
        Ok(Seen::when(relay.log().contains(said), || {
            "nothing".to_owned()
        }))
    })
    .await?;
    session(scene, &[&tests::both::insert(&["later"])]).await?;
    let mut inbox = tests::inbox::Inbox::new();
    tests::both::arrives(scene, &queue, &mut inbox, "later").await?;
    let log = relay.log();
    ensure!(log.matches(said).count() == 1, "said more than once: {log}");
    relay.stop().await
}
