//! A binlog that names the columns (`binlog_row_metadata = FULL`) and has no checksums.

use anyhow::{Result, ensure};
use tests::both::{arrives, insert, session};
use tests::inbox::Inbox;
use tests::private::PrivateServer;
use tests::scene::Scene;

use crate::schema::{CHANGES, bodies_are_rows, types};

tests::on_private_servers! {
    mysql Mysql ["--binlog-row-metadata=FULL", "--binlog-checksum=NONE"] => named_columns_may_change_while_events_are_unread;
    mariadb Mariadb ["--binlog-row-metadata=FULL", "--binlog-checksum=NONE"] => named_columns_may_change_while_events_are_unread;
}

/// Tables of every type in the same transactions, and an outbox that is altered between events while the relay is down: it
/// reads each row by the names of its own time, and has no need of the table.
async fn named_columns_may_change_while_events_are_unread(
    scene: &mut Scene,
    _: &mut PrivateServer,
) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let command = scene.relay();
    let relay = command.start().await?;
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
            &insert(&["a"]),
            "UPDATE strange SET n = n + 10",
            &insert(&["b"]),
            "DELETE FROM strange",
            "COMMIT",
            &insert(&["running"]),
        ],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "running").await?;
    relay.stop().await?;
    for (nth, change) in CHANGES.iter().enumerate() {
        let (before, after) = (format!("before{nth}"), format!("after{nth}"));
        let change = format!("ALTER TABLE outbox_events {change}");
        session(scene, &[&insert(&[&before]), &change, &insert(&[&after])]).await?;
    }
    let relay = command.start().await?;
    session(scene, &[&insert(&["last"])]).await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    let snapshots = relay.metrics().await?.get("relay_snapshots_total");
    ensure!(snapshots == 0, "{snapshots} readings of the table");
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    ensure!(inbox.duplicates() == 0, "{} duplicates", inbox.duplicates());
    bodies_are_rows(scene, &inbox).await
}
