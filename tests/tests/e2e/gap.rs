//! Checkpoints from which the server can't go on: the table closes the gap.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tests::both::{arrives, delivered, insert, session, set_checkpoint};
use tests::inbox::Inbox;
use tests::on_servers;
use tests::scene::Scene;
use tokio::time::timeout;

/// Deadline of one gap: a relay that can't go on says the same for ever.
const BOUND: Duration = Duration::from_secs(30);

on_servers! {
    mysql Mysql:
        file_that_is_gone_is_closed_from_the_table,
        offset_behind_the_end_is_closed_from_the_table,
        offset_within_an_event_is_closed_from_the_table,
        transactions_of_another_server_are_closed_from_the_table,
        position_of_the_other_kind_of_server_is_closed_from_the_table;
    mariadb Mariadb:
        file_that_is_gone_is_closed_from_the_table,
        offset_behind_the_end_is_closed_from_the_table,
        offset_within_an_event_is_closed_from_the_table,
        gtid_of_the_future_is_closed_from_the_table,
        gtid_of_another_server_is_closed_from_the_table,
        position_of_the_other_kind_of_server_is_closed_from_the_table;
}

/// A relay whose checkpoint is that one says why it can't go on, publishes the unpublished rows from the table, each
/// once, and goes on with the binlog; the next one resumes.
async fn is_closed(scene: &mut Scene, position: &str, why: &str) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let command = scene.relay();
    let mut relay = command.start().await?;
    session(scene, &[&insert(&["before1", "before2"])]).await?;
    arrives(scene, &queue, &mut inbox, "before2").await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;

    session(scene, &[&insert(&["down1", "down2"])]).await?;
    set_checkpoint(scene, position).await?;
    session(scene, &[&insert(&["down3"])]).await?;
    let closing = async {
        let mut relay = command.start().await?;
        session(scene, &[&insert(&["running"])]).await?;
        arrives(scene, &queue, &mut inbox, "running").await?;
        arrives(scene, &queue, &mut inbox, "down1").await?;
        relay.publishes_all(&scene.database).await?;
        let log = relay.log();
        ensure!(log.contains(why), "the log does not say {why:?}");
        relay.stop().await
    };
    timeout(BOUND, closing)
        .await
        .with_context(|| format!("{position} is not closed from the table"))??;

    let relay = command.start().await?;
    session(scene, &[&insert(&["last"])]).await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(
        &inbox,
        &[
            "before1", "before2", "down1", "down2", "down3", "running", "last",
        ],
    )
}

const WHY: &str = "the binlog no longer holds what comes after the checkpoint";

async fn file_that_is_gone_is_closed_from_the_table(scene: &mut Scene) -> Result<()> {
    is_closed(scene, r#"{"file":"binlog.999999","offset":4}"#, WHY).await
}

/// What a server that lost the end of its binlog in a crash leaves behind.
async fn offset_behind_the_end_is_closed_from_the_table(scene: &mut Scene) -> Result<()> {
    is_closed(
        scene,
        r#"{"file":"binlog.000001","offset":3000000000}"#,
        WHY,
    )
    .await
}

/// The same place of another server's binlog.
async fn offset_within_an_event_is_closed_from_the_table(scene: &mut Scene) -> Result<()> {
    is_closed(scene, r#"{"file":"binlog.000001","offset":140}"#, WHY).await
}

async fn transactions_of_another_server_are_closed_from_the_table(scene: &mut Scene) -> Result<()> {
    is_closed(
        scene,
        r#"{"gtid":"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"}"#,
        WHY,
    )
    .await
}

async fn gtid_of_the_future_is_closed_from_the_table(scene: &mut Scene) -> Result<()> {
    let server = scene.database.number("SELECT @@server_id").await?;
    let position = format!(r#"{{"mariadb_gtid":"0-{server}-99999999999"}}"#);
    is_closed(scene, &position, WHY).await
}

async fn gtid_of_another_server_is_closed_from_the_table(scene: &mut Scene) -> Result<()> {
    is_closed(scene, r#"{"mariadb_gtid":"0-7777-5"}"#, WHY).await
}

/// The database has moved from MySQL to MariaDB, or back.
async fn position_of_the_other_kind_of_server_is_closed_from_the_table(
    scene: &mut Scene,
) -> Result<()> {
    let position = match scene.database.flavor() {
        tests::servers::Flavor::Mysql => r#"{"mariadb_gtid":"0-1-5"}"#,
        tests::servers::Flavor::Mariadb => r#"{"gtid":"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"}"#,
    };
    is_closed(scene, position, WHY).await
}
