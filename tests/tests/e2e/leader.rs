//! Two relays of one name: one leads, the other stands by.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::inbox::Inbox;
use tests::ledger::Ledger;
use tests::relay::RelayProcess;
use tests::scene::Scene;
use tests::writers::{Load, Writers};

/// Bound on the time from a leader's death to the first publication of the standby.
const AFTER_A_KILL: Duration = Duration::from_secs(5);

/// The lease of the relays that are paused.
const LEASE: Duration = Duration::from_secs(2);

/// Bound on the time from a leader's pause to the first publication of the standby.
const AFTER_A_PAUSE: Duration = LEASE.saturating_add(Duration::from_secs(2));

/// Orders a second and writer: enough that events are on their way at any moment.
const PACE: u32 = 50;

/// A leader and a standby under load, the leader well on its way.
async fn under_load(
    scene: &mut Scene,
    leader: &mut RelayProcess,
    standby: &mut RelayProcess,
) -> Result<Writers> {
    standby.stands_by().await?;
    let writers = Writers::start(&scene.database, Load::endless().paced(PACE)).await?;
    leader.reaches("relay_confirmed_total", 500).await?;
    ensure!(standby.metrics().await?.get("relay_published_total") == 0);
    Ok(writers)
}

/// Lets the writers go on, and then the leader publish all there is.
async fn go_on(scene: &Scene, leader: &mut RelayProcess, writers: Writers) -> Result<Ledger> {
    writers.commit_more(500).await?;
    let ledger = writers.stop().await?;
    leader.publishes_all(&scene.database).await?;
    Ok(ledger)
}

/// The standby is ready all the time, leads once the leader is killed, and nothing is lost or out of order.
pub(crate) async fn standby_takes_over_from_a_killed_leader(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut leader = scene.relay().start().await?;
    leader.reaches("relay_leader", 1).await?;
    let mut standby = scene.relay().start().await?;
    let writers = under_load(scene, &mut leader, &mut standby).await?;
    leader.kill9().await?;
    standby
        .reaches_within(AFTER_A_KILL, "relay_published_total", 1)
        .await?;
    let ledger = go_on(scene, &mut standby, writers).await?;
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
    let writers = under_load(scene, &mut leader, &mut standby).await?;
    leader.stop().await?;
    standby.reaches("relay_leader", 1).await?;
    let ledger = go_on(scene, &mut standby, writers).await?;
    standby.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).exactly_once_in_order()
}

/// A leader that is paused under load loses the lock; when it wakes, still under load, it stands by and sends nothing of
/// what it held, nor anything new. It may lead again later.
pub(crate) async fn paused_leader_publishes_nothing_more(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let relay = |name: &str| {
        scene
            .relay()
            .with("RELAY_LEASE", format!("{}s", LEASE.as_secs()))
            // So that a message tells who has published it.
            .with("RELAY_ROUTING_KEY", format!("{name}.{{event_type}}"))
    };
    let mut paused = relay("paused").start().await?;
    paused.reaches("relay_leader", 1).await?;
    let mut standby = relay("standby").start().await?;
    let writers = under_load(scene, &mut paused, &mut standby).await?;
    paused.signal("STOP").await?;
    standby
        .reaches_within(AFTER_A_PAUSE, "relay_published_total", 1)
        .await?;
    writers.commit_more(500).await?;

    paused.signal("CONT").await?;
    paused.stands_by().await?;
    let ledger = go_on(scene, &mut standby, writers).await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).at_least_once_in_order()?;
    only_the_standby_goes_on(&inbox)?;

    standby.stop().await?;
    paused.reaches("relay_leader", 1).await?;
    paused.stop().await?;
    scene.broker.is_empty(&queue).await
}

/// From the standby's first message on, the queue holds no other's.
fn only_the_standby_goes_on(inbox: &Inbox) -> Result<()> {
    let messages = inbox.messages();
    let of_standby = |key: &str| key.starts_with("standby.");
    let first = messages
        .iter()
        .position(|message| of_standby(&message.routing_key));
    let after = messages.get(first.unwrap_or(0)..).unwrap_or_default();
    let late = after
        .iter()
        .filter(|message| !of_standby(&message.routing_key))
        .count();
    ensure!(
        first.is_some_and(|first| first > 0) && late == 0,
        "{late} messages of the paused leader after the standby's first, which is number {first:?} of {}",
        messages.len()
    );
    Ok(())
}
