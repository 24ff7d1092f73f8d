//! Connections that end, are refused, or go silent; a broker that is restarted.

use std::fs::File;
use std::path::Path;

use anyhow::{Result, ensure};
use tests::inbox::Inbox;
use tests::ledger::Ledger;
use tests::proxy::Proxy;
use tests::relay::{RelayCommand, RelayProcess};
use tests::scene::{self, Failure, Scene};
use tests::servers::{self, Flavor};
use tests::writers::{Load, Writers};
use tokio::process::Command;

const WINDOW: u64 = 500;

/// Few attempts: a single one counted by an outage would soon show in dead letters.
fn relay(scene: &Scene) -> RelayCommand {
    scene
        .relay()
        .with("RELAY_WINDOW", WINDOW)
        .with("RELAY_MAX_ATTEMPTS", 3)
        .with("RELAY_CONFIRM_TIMEOUT", "5s")
        .with("RELAY_AMQP_HEARTBEAT", "2s")
        .with("RELAY_BINLOG_HEARTBEAT", "1s")
}

/// 100 orders a second and writer: a load that goes on however long a fault takes to be noticed.
fn load() -> Load {
    Load::endless().paced(100)
}

/// The relay goes on by itself after its broker connection was cut, refused and silent.
pub(crate) async fn broker_outage_is_survived(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let proxy = Proxy::start(scene.broker.url()).await?;
    let relay = relay(scene).with("RELAY_AMQP_URL", proxy.address_for(scene.broker.url())?);
    let mut relay = relay.start().await?;
    let writers = Writers::start(&scene.database, load()).await?;
    // Twice round: the connection after a fault must be as good as the first.
    for _ in 0..2 {
        flows(&mut relay).await?;
        proxy.cut();
        flows(&mut relay).await?;
        proxy.refuse();
        let reason = relay.unready().await?;
        ensure!(
            reason.to_lowercase().contains("broker"),
            "readyz says only {reason:?}"
        );
        writers.commit_more(1_000).await?;
        proxy.resume();
        flows(&mut relay).await?;
        proxy.stall();
        relay.unready().await?;
        writers.commit_more(200).await?;
        proxy.resume();
    }
    flows(&mut relay).await?;
    let reconnects = relay.metrics().await?.get("relay_reconnects_total");
    ensure!(reconnects >= 6, "{reconnects} reconnects for 6 faults");
    // Each fault repeats at most what was in flight.
    settled(scene, &queue, relay, writers.stop().await?, 6 * WINDOW).await
}

/// The same for all connections to the database, the one that reads the binlog among them.
pub(crate) async fn binlog_outage_is_survived(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let proxy = Proxy::start(scene.account().url()).await?;
    let relay = relay(scene)
        .with("RELAY_MYSQL_URL", proxy.address_for(scene.account().url())?)
        .with("RELAY_CHECKPOINT_INTERVAL", "100ms");
    let mut relay = relay.start().await?;
    let writers = Writers::start(&scene.database, load()).await?;
    for _ in 0..2 {
        checkpoints(&mut relay).await?;
        proxy.cut();
        checkpoints(&mut relay).await?;
        proxy.refuse();
        relay.unready().await?;
        writers.commit_more(1_000).await?;
        proxy.resume();
        checkpoints(&mut relay).await?;
        proxy.stall();
        relay.unready().await?;
        writers.commit_more(200).await?;
        proxy.resume();
    }
    checkpoints(&mut relay).await?;
    let ledger = writers.stop().await?;
    // What a relay has to read again lies behind its checkpoint, so how much depends on the clock; but
    // starting over at the first checkpoint each time would repeat all events about three times.
    let bound = u64::try_from(ledger.len())?;
    settled(scene, &queue, relay, ledger, bound).await
}

/// The same with a broker that is stopped and started.
pub(crate) async fn broker_restart_is_survived(flavor: Flavor) -> Result<(), Failure> {
    let _alone = alone().await?;
    // Whatever a test that was killed has left.
    service("start").await?;
    scene::run_on(
        flavor,
        servers::amqp_legacy_url()?,
        async |scene: &mut Scene| {
            let queue = scene.broker.queue("#").await?;
            let mut relay = relay(scene).start().await?;
            let writers = Writers::start(&scene.database, load()).await?;
            flows(&mut relay).await?;
            service("stop").await?;
            let outage = async {
                relay.unready().await?;
                writers.commit_more(1_000).await
            };
            let outcome = outage.await;
            // Started again whatever happened: the next test needs it.
            service("start").await?;
            scene.broker.reconnect().await?;
            outcome?;
            flows(&mut relay).await?;
            settled(scene, &queue, relay, writers.stop().await?, WINDOW).await
        },
    )
    .await
}

/// Waits until the relay is ready and has confirmed some more.
async fn flows(relay: &mut RelayProcess) -> Result<()> {
    relay.ready().await?;
    let now = relay.metrics().await?.get("relay_confirmed_total");
    relay.reaches("relay_confirmed_total", now + 200).await
}

/// Waits until the relay is ready, has confirmed some more, and covered it by a checkpoint.
async fn checkpoints(relay: &mut RelayProcess) -> Result<()> {
    flows(relay).await?;
    let now = relay.metrics().await?.get("relay_checkpoint_writes_total");
    // The first may have been under way.
    relay
        .reaches("relay_checkpoint_writes_total", now + 2)
        .await
}

/// Everything arrived, in order, with at most that many duplicates, and no attempt was counted.
async fn settled(
    scene: &Scene,
    queue: &str,
    mut relay: RelayProcess,
    ledger: Ledger,
    bound: u64,
) -> Result<()> {
    relay.publishes_all(&scene.database).await?;
    let counted = scene
        .database
        .count("attempts > 0 OR last_error IS NOT NULL")
        .await?;
    ensure!(
        counted == 0,
        "an outage was counted as an attempt on {counted} rows"
    );
    let dead = scene
        .database
        .number("SELECT COUNT(*) FROM dead_letter_events")
        .await?;
    ensure!(dead == 0, "{dead} dead letters");
    relay.stop().await?;

    let mut inbox = Inbox::new();
    scene.broker.take_all(queue, &mut inbox).await?;
    let verdict = ledger.verdict(&inbox);
    verdict.at_least_once_in_order()?;
    let found = u64::try_from(verdict.duplicates)?;
    scene.tell(&format!(
        "{} events, {found} duplicates, {bound} allowed",
        ledger.len()
    ));
    ensure!(found <= bound, "{found} duplicates, {bound} allowed");
    Ok(())
}

/// The old broker can be stopped by one test at a time, also where two runs share the servers.
async fn alone() -> Result<File> {
    let path = std::env::temp_dir().join("outbox-e2e-rabbitmq-legacy.lock");
    let file = File::create(path)?;
    let locked = tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await?;
    Ok(locked?)
}

async fn service(action: &str) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/services");
    let output = Command::new(script)
        .args([action, "rabbitmq-legacy"])
        .output()
        .await?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "scripts/services {action} rabbitmq-legacy: {words}"
    );
    Ok(())
}
