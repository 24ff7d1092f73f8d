//! Two relays of one name: one leads, the other stands by.

use anyhow::{Result, ensure};
use tests::inbox::Inbox;
use tests::relay::RelayProcess;
use tests::scene::Scene;
use tests::until::{Seen, until};
use tests::writers::{Load, Writers};
use tokio::process::Command;

const STANDING_BY: &str = "ok: standing by";

async fn send(signal: &str, relay: &RelayProcess) -> Result<()> {
    let script = format!("kill -{signal} {}", relay.pid()?);
    let sent = Command::new("sh").args(["-c", &script]).status().await?;
    ensure!(sent.success(), "`{script}` failed");
    Ok(())
}

async fn stands_by(relay: &mut RelayProcess) -> Result<()> {
    until("the relay to stand by", async || {
        relay.still_runs()?;
        Ok(match relay.get("/readyz").await {
            Ok((200, text)) if text.starts_with(STANDING_BY) => Seen::Yes(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await
}

/// The standby is ready all the time, leads once the leader is killed, and nothing is lost or out of order.
pub(crate) async fn standby_takes_over_from_a_killed_leader(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut leader = scene.relay().start().await?;
    leader.reaches("relay_leader", 1).await?;
    let mut standby = scene.relay().start().await?;
    stands_by(&mut standby).await?;
    let writers = Writers::start(&scene.database, Load::endless()).await?;
    leader.reaches("relay_confirmed_total", 500).await?;
    ensure!(standby.metrics().await?.get("relay_published_total") == 0);
    leader.kill9().await?;
    standby.reaches("relay_leader", 1).await?;
    writers.commit_more(500).await?;
    let ledger = writers.stop().await?;
    standby.publishes_all(&scene.database).await?;
    standby.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).at_least_once_in_order()
}

/// A leader that stops in good order hands over at once, and nothing is sent twice.
pub(crate) async fn leader_that_stops_hands_over(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut leader = scene.relay().start().await?;
    leader.reaches("relay_leader", 1).await?;
    let mut standby = scene.relay().start().await?;
    stands_by(&mut standby).await?;
    let writers = Writers::start(&scene.database, Load::endless()).await?;
    leader.reaches("relay_confirmed_total", 500).await?;
    leader.stop().await?;
    standby.reaches("relay_leader", 1).await?;
    writers.commit_more(500).await?;
    let ledger = writers.stop().await?;
    standby.publishes_all(&scene.database).await?;
    standby.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).exactly_once_in_order()
}

/// A leader that is paused under load loses the lock; when it wakes it stands by and sends nothing of what it held.
pub(crate) async fn paused_leader_publishes_nothing_more(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let relay = || scene.relay().with("RELAY_LEASE", "2s");
    let mut paused = relay().start().await?;
    paused.reaches("relay_leader", 1).await?;
    let mut standby = relay().start().await?;
    stands_by(&mut standby).await?;
    let writers = Writers::start(&scene.database, Load::endless()).await?;
    paused.reaches("relay_confirmed_total", 500).await?;
    send("STOP", &paused).await?;
    standby.reaches("relay_leader", 1).await?;
    writers.commit_more(500).await?;
    let ledger = writers.stop().await?;
    standby.publishes_all(&scene.database).await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).at_least_once_in_order()?;

    send("CONT", &paused).await?;
    stands_by(&mut paused).await?;
    scene.broker.is_empty(&queue).await?;
    standby.stop().await?;
    paused.reaches("relay_leader", 1).await?;
    paused.stop().await?;
    scene.broker.is_empty(&queue).await
}
