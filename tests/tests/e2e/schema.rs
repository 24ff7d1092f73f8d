//! Changes of the outbox table's columns, with a binlog that does not name them (`binlog_row_metadata = MINIMAL`).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tests::both::{arrives, insert, session};
use tests::inbox::Inbox;
use tests::on_servers;
use tests::scene::Scene;
use tests::servers::Flavor;
use tokio::time::timeout;

/// Deadline of a relay that may have stopped.
const BOUND: Duration = Duration::from_secs(30);

on_servers! {
    mysql Mysql:
        columns_may_change_while_the_relay_runs,
        columns_may_change_while_the_relay_is_down_with_nothing_unread,
        column_added_while_events_are_unread_loses_nothing,
        columns_moved_while_events_are_unread_publish_no_garbage,
        columns_of_any_type_are_passed_over,
        columns_that_the_catalogue_hides_are_passed_over,
        tables_of_any_type_may_share_a_transaction;
    mariadb Mariadb:
        columns_may_change_while_the_relay_runs,
        columns_may_change_while_the_relay_is_down_with_nothing_unread,
        column_added_while_events_are_unread_loses_nothing,
        columns_moved_while_events_are_unread_publish_no_garbage,
        columns_of_any_type_are_passed_over,
        columns_that_the_catalogue_hides_are_passed_over,
        history_of_a_versioned_table_is_not_published,
        tables_of_any_type_may_share_a_transaction;
}

/// Every delivery is a row of the table, byte for byte, and every row was delivered.
pub(crate) async fn bodies_are_rows(scene: &Scene, inbox: &Inbox) -> Result<()> {
    let rows = scene.database.outbox().await?;
    for message in inbox.messages() {
        let row = rows.iter().find(|row| row.key == message.key());
        let row = row.with_context(|| {
            format!(
                "delivered with the key {:?}, which no row has: {}",
                message.key(),
                String::from_utf8_lossy(&message.body)
            )
        })?;
        ensure!(
            message.body == row.body(),
            "row {} was delivered as {}",
            row.key,
            String::from_utf8_lossy(&message.body)
        );
    }
    for row in rows {
        ensure!(inbox.has(&row.key), "{} was not delivered", row.key);
    }
    Ok(())
}

pub(crate) const CHANGES: [&str; 6] = [
    "ADD COLUMN extra1 INT NULL DEFAULT 5 FIRST",
    "ADD COLUMN extra2 VARCHAR(2000) NULL DEFAULT 'y'",
    "MODIFY COLUMN idempotency_key VARCHAR(255) NOT NULL FIRST",
    "DROP COLUMN extra1",
    "MODIFY COLUMN event_type VARCHAR(200) NOT NULL FIRST, MODIFY COLUMN aggregate_type VARCHAR(128) NOT NULL AFTER payload",
    "DROP COLUMN extra2, ADD COLUMN extra3 BIGINT NULL FIRST",
];

async fn columns_may_change_while_the_relay_runs(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let relay = scene.relay().start().await?;
    session(scene, &[&insert(&["start"])]).await?;
    arrives(scene, &queue, &mut inbox, "start").await?;
    for (nth, change) in CHANGES.iter().enumerate() {
        let (first, second) = (format!("a{nth}"), format!("b{nth}"));
        let change = format!("ALTER TABLE outbox_events {change}");
        session(scene, &[&insert(&[&first]), &change, &insert(&[&second])]).await?;
        arrives(scene, &queue, &mut inbox, &second).await?;
    }
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    bodies_are_rows(scene, &inbox).await
}

async fn columns_may_change_while_the_relay_is_down_with_nothing_unread(
    scene: &mut Scene,
) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let command = scene.relay();
    command.start().await?.stop().await?;
    for (nth, change) in CHANGES.iter().enumerate() {
        let (down, running) = (format!("down{nth}"), format!("running{nth}"));
        let change = format!("ALTER TABLE outbox_events {change}");
        session(scene, &[&change, &insert(&[&down])]).await?;
        let relay = command.start().await?;
        session(scene, &[&insert(&[&running])]).await?;
        arrives(scene, &queue, &mut inbox, &running).await?;
        relay.stop().await?;
    }
    scene.broker.take_all(&queue, &mut inbox).await?;
    bodies_are_rows(scene, &inbox).await
}

/// Events before and behind an `ALTER`, all read behind it.
async fn changed_unread(scene: &mut Scene, change: &str) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let command = scene.relay();
    let mut relay = command.start().await?;
    session(scene, &[&insert(&["start"])]).await?;
    arrives(scene, &queue, &mut inbox, "start").await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;
    let change = format!("ALTER TABLE outbox_events {change}");
    session(
        scene,
        &[&insert(&["old1", "old2"]), &change, &insert(&["new"])],
    )
    .await?;
    let reading = async {
        let mut relay = command.start().await?;
        session(scene, &[&insert(&["last"])]).await?;
        relay.publishes_all(&scene.database).await?;
        relay.stop().await
    };
    let read = timeout(BOUND, reading)
        .await
        .context("the rows are not published");
    // What was published matters more than that it took too long.
    scene.broker.take_all(&queue, &mut inbox).await?;
    bodies_are_rows(scene, &inbox).await?;
    read?
}

/// A release that stops the relay, adds a column and starts the relay: the application has written meanwhile.
async fn column_added_while_events_are_unread_loses_nothing(scene: &mut Scene) -> Result<()> {
    changed_unread(scene, "ADD COLUMN extra INT NULL DEFAULT 5").await
}

/// As many columns as before, in another order.
async fn columns_moved_while_events_are_unread_publish_no_garbage(scene: &mut Scene) -> Result<()> {
    changed_unread(
        scene,
        "MODIFY COLUMN aggregate_type VARCHAR(64) NOT NULL AFTER event_type",
    )
    .await
}

/// Column types, each with a value.
pub(crate) fn types(flavor: Flavor) -> Vec<(&'static str, &'static str)> {
    let mut types = vec![
        ("TINYINT", "-1"),
        ("SMALLINT UNSIGNED", "65535"),
        ("MEDIUMINT", "-8388608"),
        ("INT", "-5"),
        ("BIGINT UNSIGNED", "18446744073709551615"),
        ("FLOAT", "1.5"),
        ("DOUBLE", "-2.25"),
        ("DECIMAL(38,10)", "-12345678901234567890.0123456789"),
        ("DECIMAL(5,0)", "99999"),
        ("BIT(1)", "b'1'"),
        ("BIT(17)", "b'10000000000000001'"),
        ("BIT(64)", "b'1'"),
        ("CHAR(10)", "'abc'"),
        ("CHAR(255) CHARACTER SET utf8mb4", "'Зоя 🛒'"),
        ("BINARY(255)", "'abc'"),
        ("VARCHAR(10)", "''"),
        ("VARCHAR(300)", "REPEAT('y', 300)"),
        ("VARBINARY(200)", "'b'"),
        ("TINYTEXT", "'t'"),
        ("TEXT", "REPEAT('z', 60000)"),
        ("MEDIUMTEXT", "REPEAT('m', 70000)"),
        ("LONGBLOB", "REPEAT('l', 70000)"),
        ("ENUM('a','b')", "'b'"),
        ("SET('a','b','c','d','e','f','g','h','i')", "'a,i'"),
        ("YEAR", "2026"),
        ("DATE", "'2026-01-02'"),
        ("TIME", "'-12:34:56'"),
        ("TIME(3)", "'12:34:56.789'"),
        ("DATETIME", "'2026-01-02 03:04:05'"),
        ("DATETIME(5)", "'2026-01-02 03:04:05.12345'"),
        ("TIMESTAMP(2) NULL", "'2026-01-02 03:04:05.12'"),
        ("TIMESTAMP NULL", "'2026-01-02 03:04:05'"),
        ("JSON", "'{\"a\": [1, 2.5]}'"),
        ("GEOMETRY", "ST_GeomFromText('LINESTRING(0 0, 1 1)')"),
        ("POINT", "ST_GeomFromText('POINT(1 2)')"),
    ];
    types.extend(match flavor {
        Flavor::Mysql => vec![("VECTOR(3)", "STRING_TO_VECTOR('[1, 2, 3]')")],
        Flavor::Mariadb => vec![
            ("UUID", "'3e11fa47-71ca-11e1-9e33-c80aa9429562'"),
            ("INET6", "'::1'"),
            ("INET4", "'127.0.0.1'"),
            ("VARCHAR(500) COMPRESSED", "REPEAT('c', 400)"),
            ("BLOB COMPRESSED", "REPEAT('d', 4000)"),
        ],
    });
    types
}

async fn columns_of_any_type_are_passed_over(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let relay = scene.relay().start().await?;
    session(scene, &[&insert(&["start"])]).await?;
    arrives(scene, &queue, &mut inbox, "start").await?;
    let types = types(scene.database.flavor());
    let columns: Vec<String> = types
        .iter()
        .enumerate()
        .map(|(nth, (kind, value))| {
            let null = if kind.ends_with("NULL") || kind.ends_with("COMPRESSED") {
                ""
            } else {
                " NULL"
            };
            format!("ADD COLUMN x{nth} {kind}{null} DEFAULT ({value}) FIRST")
        })
        .collect();
    let names: Vec<String> = (0..types.len()).map(|nth| format!(", x{nth}")).collect();
    let nulls = insert(&["nulls"])
        .replace(
            "idempotency_key)",
            &format!("idempotency_key{})", names.concat()),
        )
        .replace(
            "'nulls')",
            &format!("'nulls'{})", ", NULL".repeat(types.len())),
        );
    session(
        scene,
        &[
            &format!("ALTER TABLE outbox_events {}", columns.join(", ")),
            &insert(&["full1", "full2"]),
            &nulls,
            &insert(&["last"]),
        ],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    bodies_are_rows(scene, &inbox).await
}

/// Columns that are in the binlog and not in the catalogue, or the other way round, one after the other while the relay
/// runs.
async fn columns_that_the_catalogue_hides_are_passed_over(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let mut relay = scene.relay().start().await?;
    let changes = match scene.database.flavor() {
        Flavor::Mysql => &[
            "ADD COLUMN twice BIGINT GENERATED ALWAYS AS (aggregate_id * 2) VIRTUAL FIRST",
            "ADD COLUMN thrice BIGINT GENERATED ALWAYS AS (aggregate_id * 3) STORED FIRST",
            "ADD COLUMN unseen INT DEFAULT 3 INVISIBLE FIRST",
            "ADD INDEX functional ((LOWER(event_type)))",
        ][..],
        Flavor::Mariadb => &[
            "ADD COLUMN twice BIGINT GENERATED ALWAYS AS (aggregate_id * 2) VIRTUAL FIRST",
            "ADD COLUMN thrice BIGINT GENERATED ALWAYS AS (aggregate_id * 3) PERSISTENT FIRST",
            "ADD COLUMN unseen INT INVISIBLE DEFAULT 3 FIRST",
            "ADD COLUMN long_text TEXT NULL, ADD UNIQUE KEY by_hash (long_text)",
        ][..],
    };
    for (nth, change) in changes.iter().enumerate() {
        let (first, second) = (format!("a{nth}"), format!("b{nth}"));
        let change = format!("ALTER TABLE outbox_events {change}");
        session(scene, &[&change, &insert(&[&first, &second])]).await?;
        // The marks are read as well, as updates.
        let work = relay.publishes_all(&scene.database);
        timeout(BOUND, work)
            .await
            .with_context(|| format!("nothing is published after {change}"))?
            .with_context(|| format!("after {change}"))?;
    }
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    ensure!(inbox.duplicates() == 0, "{} duplicates", inbox.duplicates());
    bodies_are_rows(scene, &inbox).await
}

/// MariaDB keeps what a mark changes as a row of the past, in the same table; and two columns that nobody sees.
async fn history_of_a_versioned_table_is_not_published(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let mut relay = scene.relay().start().await?;
    let change = "ALTER TABLE outbox_events ADD SYSTEM VERSIONING";
    session(scene, &[change, &insert(&["a", "b"])]).await?;
    let work = relay.publishes_all(&scene.database);
    timeout(BOUND, work)
        .await
        .context("nothing is published")??;
    session(scene, &[&insert(&["last"])]).await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    ensure!(inbox.duplicates() == 0, "{} duplicates", inbox.duplicates());
    bodies_are_rows(scene, &inbox).await
}

/// A table that the relay does not know, with every type, before and behind the outbox row.
async fn tables_of_any_type_may_share_a_transaction(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let relay = scene.relay().start().await?;
    let columns: Vec<String> = types(scene.database.flavor())
        .iter()
        .enumerate()
        .map(|(nth, (kind, value))| format!("x{nth} {kind} DEFAULT ({value})"))
        .collect();
    session(
        scene,
        &[
            &format!(
                "CREATE TABLE strange (n INT PRIMARY KEY, {})",
                columns.join(", ")
            ),
            "START TRANSACTION",
            "INSERT INTO strange (n) VALUES (1), (2)",
            &insert(&["a", "b"]),
            "UPDATE strange SET n = n + 10",
            &insert(&["c"]),
            "DELETE FROM strange",
            "COMMIT",
            &insert(&["last"]),
        ],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    bodies_are_rows(scene, &inbox).await
}
