//! Big rows and big transactions in little memory.

use anyhow::{Context as _, Result, ensure};
use tests::both::{arrives, insert, session};
use tests::broker::QueueKind;
use tests::inbox::Inbox;
use tests::on_servers;
use tests::scene::Scene;

on_servers! {
    mysql Mysql:
        row_of_10_mb_is_delivered,
        transaction_of_1_000_000_rows_is_delivered_in_bounded_memory;
    mariadb Mariadb:
        row_of_10_mb_is_delivered,
        transaction_of_1_000_000_rows_is_delivered_in_bounded_memory;
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

/// Rows of that transaction.
const MANY: u32 = 1_000_000;
/// What it may take above the memory of an idle relay.
const ABOVE_IDLE_KIB: u64 = 64 * 1024;

/// All confirmed and in the queue, each once, in little more memory than an idle relay has. The table has no index but its
/// key: the server's part is not what is looked at.
async fn transaction_of_1_000_000_rows_is_delivered_in_bounded_memory(
    scene: &mut Scene,
) -> Result<()> {
    let queue = scene.broker.queue_of(QueueKind::Classic, "#").await?;
    let table = "CREATE TABLE many (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, aggregate_type VARCHAR(64) NOT NULL, \
         aggregate_id BIGINT NOT NULL, event_type VARCHAR(128) NOT NULL, payload JSON NOT NULL, idempotency_key VARCHAR(255) NOT NULL)";
    let digits = "CREATE TABLE digits (d INT PRIMARY KEY)";
    let ten = "INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)";
    session(scene, &[table, digits, ten]).await?;
    scene.grant_on("many").await?;
    let mut relay = scene
        .relay()
        .with("RELAY_TABLE", "many")
        .with("RELAY_MARK", "none")
        .start()
        .await?;
    let one = "INSERT INTO many (aggregate_type, aggregate_id, event_type, payload, idempotency_key) \
         VALUES ('order', -1, 'OrderTouched', '{}', 'before')";
    session(scene, &[one]).await?;
    relay.reaches("relay_confirmed_total", 1).await?;
    let idle = relay.usage()?.peak_kib;
    let all = "INSERT INTO many (aggregate_type, aggregate_id, event_type, payload, idempotency_key) \
         SELECT 'order', n, 'OrderTouched', '{\"x\": 1}', n FROM ( \
           SELECT a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d + 100000 * f.d AS n \
           FROM digits a, digits b, digits c, digits d, digits e, digits f) numbers";
    session(scene, &[all]).await?;
    relay
        .reaches("relay_confirmed_total", u64::from(MANY) + 1)
        .await?;
    let peak = relay.usage()?.peak_kib;
    relay.stop().await?;
    scene.tell(&format!(
        "{MANY} rows: {} MiB idle, {} MiB at the peak",
        idle / 1024,
        peak / 1024
    ));
    let depth = scene.broker.depth(&queue).await?;
    ensure!(depth == MANY + 1, "{depth} messages");
    ensure!(
        peak <= idle + ABOVE_IDLE_KIB,
        "the relay took {peak} KiB, and {idle} KiB when idle"
    );
    Ok(())
}
