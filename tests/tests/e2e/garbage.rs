//! Bytes that change between the database and the relay.

use anyhow::{Context as _, Result, ensure};
use tests::garbler::{Damage, Garbler};
use tests::inbox::Inbox;
use tests::on_servers;
use tests::scene::Scene;
use tests::until::{Seen, until};
use tests::writers::{Load, Writers};

use crate::contract;

on_servers! {
    mysql Mysql: damaged_binlog_streams_are_read_again;
    mariadb Mariadb: damaged_binlog_streams_are_read_again;
}

/// Times that each kind of damage is done: which bits are hit, and of which event, is drawn with a seed.
const ROUNDS: u64 = 2;

/// Under load, again and again an event is damaged on its way: the relay notices each, reads again, and publishes
/// every row as it stands in the table.
async fn damaged_binlog_streams_are_read_again(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let seed = 20_261;
    let garbler = Garbler::start(scene.account().url(), seed).await?;
    let mut relay = scene
        .relay()
        .with(
            "RELAY_MYSQL_URL",
            garbler.address_for(scene.account().url())?,
        )
        .with("RELAY_CHECKPOINT_INTERVAL", "100ms")
        .with("RELAY_BINLOG_HEARTBEAT", "1s")
        .start()
        .await?;
    let writers = Writers::start(&scene.database, Load::endless().paced(20)).await?;
    // A stream begins with an event that no checksum covers, and in which nothing counts where positions are GTIDs.
    relay.reaches("relay_confirmed_total", 50).await?;
    let mut done = 0;
    for _ in 0..ROUNDS {
        for damage in Damage::ALL {
            if damage == Damage::ChecksumsOff {
                // What follows it has to be damaged as well, or nothing would be wrong but the format event.
                garbler.damage_next(Damage::Cut);
                damaged(&garbler, &mut done, damage).await?;
            }
            let before = interruptions(&relay.metrics().await?, &relay.log());
            garbler.damage_next(damage);
            damaged(&garbler, &mut done, damage).await?;
            until(&format!("the relay to notice {damage:?}"), async || {
                relay.still_runs()?;
                let now = interruptions(&relay.metrics().await?, &relay.log());
                Ok(Seen::when(now > before, || now.to_string()))
            })
            .await?;
            relay.ready().await?;
            let confirmed = relay.metrics().await?.get("relay_confirmed_total");
            relay
                .reaches("relay_confirmed_total", confirmed + 50)
                .await?;
        }
    }
    let ledger = writers.stop().await?;
    relay.publishes_all(&scene.database).await?;
    let log = relay.log();
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    let verdict = ledger.verdict(&inbox);
    verdict.at_least_once_in_order()?;
    contract::holds(scene, &inbox).await?;
    let panics = log.matches("panicked at").count();
    scene.tell(&format!(
        "{} events, {} duplicates, {done} events damaged, {panics} panics survived",
        ledger.len(),
        verdict.duplicates
    ));
    ensure!(
        log.contains("a checksum is wrong"),
        "no checksum was found wrong"
    );
    let dead = "SELECT COUNT(*) FROM dead_letter_events";
    let dead = scene.database.number(dead).await.context("cannot count")?;
    ensure!(dead == 0, "{dead} dead letters");
    Ok(())
}

async fn damaged(garbler: &Garbler, done: &mut u64, damage: Damage) -> Result<()> {
    *done += 1;
    until(&format!("an event to be damaged: {damage:?}"), async || {
        let found = garbler.damaged();
        Ok(Seen::when(found == *done, || found.to_string()))
    })
    .await
}

/// Streams that were opened again, and sessions that began anew.
fn interruptions(metrics: &tests::metrics::Scrape, log: &str) -> u64 {
    let sessions = log.matches("starting over from the checkpoint").count();
    metrics.get("relay_reconnects_total") + u64::try_from(sessions).unwrap_or(u64::MAX)
}
