//! Rows that come from files and from other tables, beside tables that look like the outbox and are not.

use anyhow::Result;
use futures_util::{StreamExt as _, stream};
use mysql_async::prelude::Queryable as _;
use tests::both::{arrives, delivered, insert, run, session};
use tests::inbox::Inbox;
use tests::on_servers;
use tests::scene::Scene;

on_servers! {
    mysql Mysql: loaded_and_copied_rows_are_published_in_their_order, tables_that_look_alike_are_left_alone;
    mariadb Mariadb: loaded_and_copied_rows_are_published_in_their_order, tables_that_look_alike_are_left_alone;
}

const COLUMNS: &str = "(aggregate_type, aggregate_id, event_type, payload, idempotency_key)";

/// `LOAD DATA LOCAL` of rows with those keys, with that word before `INTO`.
async fn load(conn: &mut mysql_async::Conn, word: &str, keys: &[&str]) -> Result<()> {
    let lines: String = keys
        .iter()
        .map(|key| format!("order|1|OrderTouched|{{\"k\": \"{key}\"}}|{key}\n"))
        .collect();
    conn.set_infile_handler(async move { Ok(stream::iter([Ok(lines.into())]).boxed()) });
    let statement = format!(
        "LOAD DATA LOCAL INFILE 'rows' {word} INTO TABLE outbox_events FIELDS TERMINATED BY '|' ESCAPED BY '' {COLUMNS}"
    );
    Ok(conn.query_drop(statement).await?)
}

async fn loaded_and_copied_rows_are_published_in_their_order(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let relay = scene.relay().start().await?;
    // MySQL's default is OFF; nobody else minds.
    scene
        .database
        .execute("SET GLOBAL local_infile = ON")
        .await?;
    let mut conn = scene.database.connect().await?;
    load(&mut conn, "", &["loaded1", "loaded2", "loaded3"]).await?;
    // A row that is there already is left as it is, and is no event.
    load(&mut conn, "IGNORE", &["loaded2", "loaded4"]).await?;
    run(
        &mut conn,
        &[
            "CREATE TABLE source_rows (n INT PRIMARY KEY, k VARCHAR(20))",
            "INSERT INTO source_rows VALUES (3, 'copied1'), (2, 'copied2'), (1, 'copied3')",
            &format!("INSERT INTO outbox_events {COLUMNS} SELECT 'order', 1, 'OrderTouched', '{{}}', k FROM source_rows ORDER BY n DESC"),
            "START TRANSACTION",
            &insert(&["mixed1"]),
        ],
    )
    .await?;
    load(&mut conn, "", &["mixed2", "mixed3"]).await?;
    let rest = format!(
        "INSERT INTO outbox_events {COLUMNS} SELECT 'order', 1, 'OrderTouched', '{{}}', CONCAT('again-', k) FROM source_rows ORDER BY n"
    );
    run(
        &mut conn,
        &[
            &rest,
            "COMMIT",
            "START TRANSACTION",
            &insert(&["taken-back"]),
            "ROLLBACK",
            &insert(&["last"]),
        ],
    )
    .await?;
    conn.disconnect().await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(
        &inbox,
        &[
            "loaded1",
            "loaded2",
            "loaded3",
            "loaded4",
            "copied1",
            "copied2",
            "copied3",
            "mixed1",
            "mixed2",
            "mixed3",
            "again-copied3",
            "again-copied2",
            "again-copied1",
            "last",
        ],
    )
}

/// Tables of the same name in another schema and as a temporary one, and one that is altered again and again, all within
/// the sessions and transactions of the outbox.
async fn tables_that_look_alike_are_left_alone(scene: &mut Scene) -> Result<()> {
    let other = format!("{}_other", scene.name());
    let outcome = look_alikes(scene, &other).await;
    scene
        .database
        .execute(&format!("DROP DATABASE IF EXISTS `{other}`"))
        .await?;
    outcome
}

async fn look_alikes(scene: &mut Scene, other: &str) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let relay = scene.relay().start().await?;
    let elsewhere =
        insert(&["elsewhere"]).replace("outbox_events", &format!("`{other}`.outbox_events"));
    let elsewhere2 = elsewhere.replace("'elsewhere'", "'elsewhere2'");
    let long_name = insert(&["long-name"]).replace("outbox_events", "outbox_events_2");
    session(
        scene,
        &[
            &format!("CREATE DATABASE `{other}`"),
            &format!("CREATE TABLE `{other}`.outbox_events LIKE outbox_events"),
            "CREATE TABLE outbox_events_2 LIKE outbox_events",
            "CREATE TABLE neighbour (n INT PRIMARY KEY, a INT)",
            &elsewhere,
            &insert(&["first"]),
            // One transaction, all tables, the neighbour's columns changed before and behind it.
            "ALTER TABLE neighbour ADD COLUMN early VARCHAR(300) FIRST",
            "START TRANSACTION",
            "INSERT INTO neighbour VALUES ('x', 1, 1)",
            &insert(&["second"]),
            &elsewhere2,
            &long_name,
            &insert(&["third"]),
            "UPDATE neighbour SET a = 2",
            "COMMIT",
            "ALTER TABLE neighbour DROP COLUMN a, MODIFY COLUMN n BIGINT NOT NULL, RENAME TO neighbour_2",
            "INSERT INTO neighbour_2 VALUES ('y', 7)",
            &insert(&["fourth"]),
            // From here on the name means the temporary table, of which the binlog knows nothing.
            &format!("CREATE TEMPORARY TABLE outbox_events LIKE `{other}`.outbox_events"),
            &insert(&["temporary"]),
            "DROP TEMPORARY TABLE outbox_events",
            &insert(&["fifth"]),
            // And from another schema into the outbox.
            &format!(
                "INSERT INTO outbox_events {COLUMNS} SELECT aggregate_type, aggregate_id, event_type, payload, CONCAT(idempotency_key, '-copy') \
                 FROM `{other}`.outbox_events ORDER BY id"
            ),
            &insert(&["last"]),
        ],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(
        &inbox,
        &[
            "first",
            "second",
            "third",
            "fourth",
            "fifth",
            "elsewhere-copy",
            "elsewhere2-copy",
            "last",
        ],
    )
}
