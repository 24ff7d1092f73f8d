//! Big rows and big transactions in little memory.

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use tests::both::{arrives, insert, session};
use tests::broker::QueueKind;
use tests::inbox::Inbox;
use tests::on_servers;
use tests::scene::Scene;

on_servers! {
    mysql Mysql:
        row_of_10_mb_is_delivered,
        transaction_of_200_000_rows_is_delivered_in_bounded_memory;
    mariadb Mariadb:
        row_of_10_mb_is_delivered,
        transaction_of_200_000_rows_is_delivered_in_bounded_memory;
}

/// Peak resident memory of the relay.
const BOUND_KIB: u64 = 200 * 1024;

async fn row_of_10_mb_is_delivered(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue_of(QueueKind::Classic, "#").await?;
    let mut inbox = Inbox::new();
    let mut relay = scene.relay().start().await?;
    let huge = "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, idempotency_key) \
                VALUES ('order', 1, 'OrderTouched', CONCAT('{\"x\": \"', REPEAT('0123456789', 1000000), '\"}'), 'huge')";
    session(scene, &[&insert(&["before"]), huge, &insert(&["after"])]).await?;
    arrives(scene, &queue, &mut inbox, "after").await?;
    relay.publishes_all(&scene.database).await?;
    let peak = relay.usage()?.peak_kib;
    relay.stop().await?;
    let rows = scene.database.outbox().await?;
    let row = rows
        .iter()
        .find(|row| row.key == "huge")
        .context("no such row")?;
    let message = inbox.get("huge").context("not delivered")?;
    ensure!(
        message.body == row.body(),
        "the body has {} bytes, and should have {}",
        message.body.len(),
        row.body().len()
    );
    scene.tell(&format!("10 MB row: peak {} MiB", peak / 1024));
    ensure!(peak < BOUND_KIB, "the relay took {peak} KiB");
    Ok(())
}

/// One `INSERT` of that many events, payloads of about that many bytes; all delivered, once, in bounded memory.
async fn in_one_transaction(scene: &mut Scene, set: &str, events: u64, bytes: u64) -> Result<()> {
    let queue = scene.broker.queue_of(QueueKind::Classic, "#").await?;
    let mut inbox = Inbox::new();
    let mut relay = scene
        .relay()
        .with("RELAY_WINDOW", 5000)
        .with("RELAY_MARK", "none")
        .start()
        .await?;
    let mut conn = scene.database.connect().await?;
    conn.query_drop("CREATE TABLE digits (d INT PRIMARY KEY)")
        .await?;
    conn.query_drop("INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)")
        .await?;
    conn.query_drop(set).await?;
    let insert_all = format!(
        "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, idempotency_key) \
         SELECT 'order', n, 'OrderTouched', CONCAT('{{\"x\": \"', REPEAT('x', {bytes}), '\"}}'), CONCAT('k', n) FROM ( \
           SELECT a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d + 100000 * f.d AS n \
           FROM digits a, digits b, digits c, digits d, digits e, digits f) numbers WHERE n < {events}"
    );
    conn.query_drop(insert_all).await?;
    conn.disconnect().await?;
    relay.reaches("relay_confirmed_total", events).await?;
    let peak = relay.usage()?.peak_kib;
    relay.stop().await?;
    scene.tell(&format!(
        "{events} rows of {bytes} bytes: peak {} MiB",
        peak / 1024
    ));
    scene.broker.take_all(&queue, &mut inbox).await?;
    let (distinct, duplicates) = (inbox.distinct(), inbox.duplicates());
    ensure!(
        u64::try_from(distinct)? == events && duplicates == 0,
        "{distinct} events and {duplicates} duplicates"
    );
    ensure!(peak < BOUND_KIB, "the relay took {peak} KiB");
    Ok(())
}

async fn transaction_of_200_000_rows_is_delivered_in_bounded_memory(
    scene: &mut Scene,
) -> Result<()> {
    in_one_transaction(scene, "DO 0", 200_000, 10).await
}
