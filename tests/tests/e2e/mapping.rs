//! Outbox tables that are not ours: other names, UUIDs, texts, fewer columns; and what is round the payload.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::both::{arrives, session};
use tests::inbox::{Header, Inbox, Message};
use tests::relay::RelayCommand;
use tests::scene::Scene;

tests::on_servers! {
    mysql Mysql: debezium_table_with_uuids, mapped_columns, cloud_events, table_without_status;
    mariadb Mariadb: debezium_table_with_uuids, mapped_columns, cloud_events, table_without_status;
}

const UUID: &str = "0190f5a2-7d3c-7c3a-9a51-0242ac120002";
const UUID_PREFIX: &str = "0190f5a2-7d3c-7c3a-9a51-0242ac12000";

fn on_table(scene: &Scene, table: &str) -> RelayCommand {
    scene.relay().with("RELAY_TABLE", table)
}

fn message<'a>(inbox: &'a Inbox, key: &str) -> Result<&'a Message> {
    inbox
        .get(key)
        .with_context(|| format!("{key} did not arrive"))
}

fn header(message: &Message, name: &str) -> Option<Header> {
    let headers = message.headers();
    headers
        .into_iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value)
}

/// As Debezium's outbox event router expects it: rows from before, from the binlog, and by polling are the same.
async fn debezium_table_with_uuids(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    scene
        .database
        .execute(
            "CREATE TABLE outbox (id BINARY(16) PRIMARY KEY, aggregatetype VARCHAR(255) NOT NULL, \
             aggregateid BINARY(16) NOT NULL, type VARCHAR(255) NOT NULL, payload JSON NOT NULL, \
             status VARCHAR(16) NOT NULL DEFAULT 'PENDING', locked_by VARCHAR(128) NULL, \
             locked_until DATETIME(6) NULL, KEY claims (status, id))",
        )
        .await?;
    scene.grant_on("outbox").await?;
    let insert = |last: &str| {
        let id = format!("{UUID_PREFIX}{last}");
        let statement = format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES \
             (UNHEX(REPLACE('{id}', '-', '')), 'customer', UNHEX(REPLACE('{UUID}', '-', '')), 'CustomerMoved', '{{\"b\": 1}}')"
        );
        (id, statement)
    };
    let command = || {
        on_table(scene, "outbox")
            .with("RELAY_PRESET", "debezium")
            .with("RELAY_COLUMN_STATUS", "status")
    };
    let (before, statement) = insert("1");
    session(scene, &[&statement]).await?;
    let mut inbox = Inbox::new();
    let relay = command().start().await?;
    arrives(scene, &queue, &mut inbox, &before).await?;
    let (tailed, statement) = insert("2");
    session(scene, &[&statement]).await?;
    arrives(scene, &queue, &mut inbox, &tailed).await?;
    relay.stop().await?;
    let relay = command().with("RELAY_SOURCE", "poll").start().await?;
    let (polled, statement) = insert("3");
    session(scene, &[&statement]).await?;
    arrives(scene, &queue, &mut inbox, &polled).await?;
    relay.stop().await?;
    for id in [&before, &tailed, &polled] {
        let message = message(&inbox, id)?;
        ensure!(
            message.routing_key == "customer.CustomerMoved",
            "{}",
            message.routing_key
        );
        ensure!(header(message, "event_id") == Some(Header::text(id)));
        ensure!(header(message, "aggregate_id") == Some(Header::text(UUID)));
        let body: Value = serde_json::from_slice(&message.body)?;
        let expected = json!({
            "event_id": id, "event_type": "CustomerMoved", "aggregate_type": "customer", "aggregate_id": UUID,
            "idempotency_key": id, "created_at": null, "payload": {"b": 1},
        });
        ensure!(body == expected, "{body} instead of {expected}");
    }
    ensure!(inbox.duplicates() == 0);
    let unmarked = scene
        .database
        .number("SELECT COUNT(*) FROM outbox WHERE status <> 'PUBLISHED'");
    ensure!(unmarked.await? == 0);
    Ok(())
}

/// Every column under another name, text ids, a payload of its own.
async fn mapped_columns(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    scene
        .database
        .execute(
            "CREATE TABLE messages (no VARCHAR(40) PRIMARY KEY, kind VARCHAR(40) NOT NULL, subject VARCHAR(40) NOT NULL, \
             name VARCHAR(40) NOT NULL, body LONGTEXT NOT NULL, dedup VARCHAR(80) NOT NULL, at DATETIME(6) NOT NULL, \
             extra TEXT NULL, state VARCHAR(20) NOT NULL DEFAULT 'PENDING', KEY claims (state))",
        )
        .await?;
    scene.grant_on("messages").await?;
    let mut command = on_table(scene, "messages").with("RELAY_ENVELOPE", "payload");
    for (field, column) in [
        ("ID", "no"),
        ("AGGREGATE_TYPE", "kind"),
        ("AGGREGATE_ID", "subject"),
        ("EVENT_TYPE", "name"),
        ("PAYLOAD", "body"),
        ("IDEMPOTENCY_KEY", "dedup"),
        ("CREATED_AT", "at"),
        ("HEADERS", "extra"),
        ("STATUS", "state"),
    ] {
        command = command.with(&format!("RELAY_COLUMN_{field}"), column);
    }
    let relay = command.start().await?;
    session(
        scene,
        &["INSERT INTO messages VALUES ('m-1', 'invoice', 'INV/7', 'Sent', '{\"sum\":  1.50}', 'd-1', \
           '2026-12-03 10:00:00.5', '{\"traceparent\": \"00-ab\"}', 'PENDING')"],
    )
    .await?;
    let mut inbox = Inbox::new();
    arrives(scene, &queue, &mut inbox, "d-1").await?;
    relay.stop().await?;
    let message = message(&inbox, "d-1")?;
    ensure!(
        message.body == b"{\"sum\":  1.50}",
        "the payload's bytes were changed"
    );
    ensure!(message.routing_key == "invoice.Sent");
    ensure!(header(message, "aggregate_id") == Some(Header::text("INV/7")));
    ensure!(header(message, "traceparent") == Some(Header::text("00-ab")));
    let marked = scene
        .database
        .number("SELECT COUNT(*) FROM messages WHERE state = 'PUBLISHED'");
    ensure!(marked.await? == 1);
    Ok(())
}

async fn cloud_events(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let relay = scene
        .relay()
        .with("RELAY_ENVELOPE", "cloudevents")
        .start()
        .await?;
    session(
        scene,
        &["INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, idempotency_key) \
           VALUES ('order', 7, 'OrderCreated', '{\"total\": 5}', 'k-7')"],
    )
    .await?;
    let mut inbox = Inbox::new();
    arrives(scene, &queue, &mut inbox, "k-7").await?;
    relay.stop().await?;
    let message = message(&inbox, "k-7")?;
    ensure!(
        message
            .content_type()
            .starts_with("application/cloudevents+json"),
        "{}",
        message.content_type()
    );
    let event: Value = serde_json::from_slice(&message.body)?;
    ensure!(
        event["specversion"] == "1.0" && event["id"] == "k-7" && event["type"] == "OrderCreated",
        "{event}"
    );
    ensure!(event["data"] == json!({"total": 5}), "{event}");
    ensure!(
        event["source"].is_string() && event["time"].is_string(),
        "{event}"
    );
    Ok(())
}

/// Rows are published and nothing is marked; the relay says what that costs.
async fn table_without_status(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    scene
        .database
        .execute(
            "CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY, aggregatetype VARCHAR(255) NOT NULL, \
             aggregateid VARCHAR(255) NOT NULL, type VARCHAR(255) NOT NULL, payload TEXT NOT NULL)",
        )
        .await?;
    scene.grant_on("outbox").await?;
    let relay = on_table(scene, "outbox")
        .with("RELAY_PRESET", "debezium")
        .start()
        .await?;
    session(
        scene,
        &["INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'x', 'Made', '{}'), ('order', 'x', 'Paid', '{}')"],
    )
    .await?;
    let mut inbox = Inbox::new();
    arrives(scene, &queue, &mut inbox, "2").await?;
    ensure!(inbox.first_deliveries().eq(["1", "2"]), "out of order");
    ensure!(
        relay.log().contains("no status column"),
        "the limits are not told"
    );
    relay.stop().await?;
    // The checkpoint alone tells what is done.
    let relay = on_table(scene, "outbox")
        .with("RELAY_PRESET", "debezium")
        .start()
        .await?;
    session(scene, &["INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'x', 'Sent', '{}')"]).await?;
    arrives(scene, &queue, &mut inbox, "3").await?;
    relay.stop().await?;
    ensure!(inbox.duplicates() == 0);
    Ok(())
}
