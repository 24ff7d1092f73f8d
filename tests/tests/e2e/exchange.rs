//! Rows that name their own exchange and routing key.

use anyhow::{Context as _, Result, ensure};
use tests::both::session;
use tests::inbox::Inbox;
use tests::scene::Scene;
use tests::until::{Seen, until};
use tests::writers::{Load, Writers};

tests::on_servers! {
    mysql Mysql: rows_name_their_exchange, an_exchange_that_is_not_there_fails_only_its_own_events;
    mariadb Mariadb: rows_name_their_exchange, an_exchange_that_is_not_there_fails_only_its_own_events;
}

const COLUMNS: &str = "ALTER TABLE outbox_events ADD COLUMN to_exchange VARCHAR(127) NULL, ADD COLUMN to_key VARCHAR(255) NULL";

fn insert(key: &str, exchange: &str, routing_key: &str) -> String {
    format!(
        "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, idempotency_key, to_exchange, to_key) \
         VALUES ('refund', 1, 'RefundIssued', '{{}}', '{key}', {exchange}, {routing_key})"
    )
}

async fn rows_name_their_exchange(scene: &mut Scene) -> Result<()> {
    scene.database.execute(COLUMNS).await?;
    let default = scene.broker.queue("refund.RefundIssued").await?;
    let own = scene.broker.queue("own.key").await?;
    let relay = scene
        .relay()
        .with("RELAY_COLUMN_EXCHANGE", "to_exchange")
        .with("RELAY_COLUMN_ROUTING_KEY", "to_key");
    let mut relay = relay.start().await?;
    let exchange = format!("'{}'", scene.broker.exchange());
    session(
        scene,
        &[
            &insert("none", "NULL", "NULL"),
            &insert("key", "NULL", "'own.key'"),
            &insert("both", &exchange, "'own.key'"),
        ],
    )
    .await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&default, &mut inbox).await?;
    ensure!(inbox.distinct() == 1 && inbox.has("none"));
    let mut inbox = Inbox::new();
    scene.broker.take_all(&own, &mut inbox).await?;
    ensure!(inbox.distinct() == 2 && inbox.has("key") && inbox.has("both"));
    Ok(())
}

/// The broker closes the channel over them; they alone count attempts and become dead letters, and the rest flows on.
async fn an_exchange_that_is_not_there_fails_only_its_own_events(scene: &mut Scene) -> Result<()> {
    scene.database.execute(COLUMNS).await?;
    let queue = scene.broker.queue("order.#").await?;
    let relay = scene
        .relay()
        .with("RELAY_COLUMN_EXCHANGE", "to_exchange")
        .with("RELAY_MAX_ATTEMPTS", 3);
    let mut relay = relay.start().await?;
    let writers = Writers::start(&scene.database, Load::endless()).await?;
    let nowhere = format!("'{}.nowhere'", scene.name());
    for key in ["a", "b"] {
        session(scene, &[&insert(key, &nowhere, "NULL")]).await?;
        writers.commit_more(50).await?;
    }
    until("both to be FAILED", async || {
        relay.still_runs()?;
        let failed = "status = 'FAILED' AND attempts = 3";
        let failed = scene.database.count(failed).await?;
        Ok(Seen::when(failed == 2, || failed.to_string()))
    })
    .await?;
    let ledger = writers.stop().await?;
    relay
        .publishes_all_but(&scene.database, "aggregate_type = 'refund'")
        .await?;
    let others = "attempts > 0 AND aggregate_type <> 'refund'";
    ensure!(
        scene.database.count(others).await? == 0,
        "others were counted an attempt"
    );
    let rows = scene.database.outbox().await?;
    let failed = rows
        .iter()
        .find(|row| row.key == "a")
        .context("row a is gone")?;
    let error = failed.last_error.as_deref().unwrap_or_default();
    ensure!(
        error.contains("404") && error.contains(".nowhere"),
        "{error}"
    );
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).at_least_once_in_order()
}
