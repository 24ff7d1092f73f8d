//! Stop, go on from the checkpoint.

use anyhow::{Result, ensure};
use tests::database::NewEvent;
use tests::inbox::Inbox;
use tests::scene::Scene;

fn batch(name: &str) -> Vec<NewEvent> {
    (0..100)
        .map(|id| NewEvent::order(id, "OrderTouched", format!("{name}:{id}")))
        .collect()
}

/// What is written while the relay is down is delivered once by the next one, across binlog files, and
/// what it delivered before is not sent again.
pub(crate) async fn relay_resumes_from_its_checkpoint(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    // Nothing is marked: the position alone must tell what was sent.
    let command = scene.relay().with("RELAY_MARK", "none");
    let mut inbox = Inbox::new();
    let relay = command.start().await?;
    scene.database.insert(&batch("first")).await?;
    arrive(scene, &queue, &mut inbox, 100).await?;
    relay.stop().await?;

    scene.database.insert(&batch("down")).await?;
    scene.database.execute("FLUSH BINARY LOGS").await?;
    scene.database.insert(&batch("rotated")).await?;
    let relay = command.start().await?;
    arrive(scene, &queue, &mut inbox, 300).await?;
    scene.database.execute("FLUSH BINARY LOGS").await?;
    scene.database.insert(&batch("running")).await?;
    arrive(scene, &queue, &mut inbox, 400).await?;
    relay.stop().await?;

    // A start with nothing new sends nothing: a stop right after the start would not show it, so one
    // more event is waited for.
    let relay = command.start().await?;
    scene
        .database
        .insert(&[NewEvent::order(1, "OrderTouched", "last")])
        .await?;
    arrive(scene, &queue, &mut inbox, 401).await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    ensure!(inbox.duplicates() == 0, "{} duplicates", inbox.duplicates());
    ensure!(inbox.distinct() == 401, "{} events", inbox.distinct());
    let touched = scene.database.count("status <> 'PENDING'").await?;
    ensure!(touched == 0, "mark = none changed {touched} rows");
    Ok(())
}

async fn arrive(scene: &Scene, queue: &str, inbox: &mut Inbox, events: usize) -> Result<()> {
    let what = format!("{events} events");
    scene
        .broker
        .take_until(queue, inbox, &what, |inbox| inbox.distinct() >= events)
        .await
}
