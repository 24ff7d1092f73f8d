//! Checkpoints by binlog file and offset.

use anyhow::{Context as _, Result, ensure};
use mysql_async::Row;
use mysql_async::prelude::Queryable as _;
use tests::both::{arrives, checkpoint, delivered, insert, session, set_checkpoint};
use tests::inbox::Inbox;
use tests::on_servers;
use tests::scene::Scene;
use tests::servers::Flavor;

on_servers! {
    mysql Mysql: relay_resumes_from_file_and_offset;
    mariadb Mariadb: relay_resumes_from_file_and_offset;
}

/// The end of the binlog, as the checkpoint row has it.
pub(crate) async fn head(scene: &Scene) -> Result<String> {
    let show = match scene.database.flavor() {
        Flavor::Mysql => "SHOW BINARY LOG STATUS",
        Flavor::Mariadb => "SHOW BINLOG STATUS",
    };
    let mut conn = scene.database.connect().await?;
    let row: Option<Row> = conn.query_first(show).await?;
    let row = row.context("the server has no binlog")?;
    let text = |at: usize| row.get::<String, _>(at).context("no such column");
    Ok(format!(
        "{{\"file\":\"{}\",\"offset\":{}}}",
        text(0)?,
        text(1)?
    ))
}

/// From there on, across binlog files and a kill, everything is delivered; after a stop nothing is repeated.
async fn relay_resumes_from_file_and_offset(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    // Nothing is marked: the position alone must tell what was sent.
    let command = scene.relay().with("RELAY_MARK", "none");
    let relay = command.start().await?;
    session(scene, &[&insert(&["before"])]).await?;
    arrives(scene, &queue, &mut inbox, "before").await?;
    relay.stop().await?;

    set_checkpoint(scene, &head(scene).await?).await?;
    session(
        scene,
        &[
            &insert(&["down1", "down2"]),
            "FLUSH BINARY LOGS",
            &insert(&["down3"]),
        ],
    )
    .await?;
    let relay = command.start().await?;
    session(scene, &["FLUSH BINARY LOGS", &insert(&["running"])]).await?;
    arrives(scene, &queue, &mut inbox, "running").await?;
    relay.stop().await?;
    let position = checkpoint(scene).await?;
    ensure!(
        position.contains("\"file\""),
        "the checkpoint is {position}"
    );
    let relay = command.start().await?;
    session(scene, &[&insert(&["last"])]).await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(
        &inbox,
        &["before", "down1", "down2", "down3", "running", "last"],
    )?;

    relay.kill9().await?;
    session(scene, &[&insert(&["after-kill"])]).await?;
    let relay = command.start().await?;
    arrives(scene, &queue, &mut inbox, "after-kill").await?;
    relay.stop().await
}
