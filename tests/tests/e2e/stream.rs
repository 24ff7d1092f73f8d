//! The plain case: what is committed while the relay runs arrives.

use anyhow::{Result, ensure};
use tests::inbox::Inbox;
use tests::scene::Scene;
use tests::writers::{Load, place_orders};

use crate::contract;

/// The queue holds exactly the committed events, in commit order per aggregate, as the contract has them.
pub(crate) async fn orders_arrive_in_commit_order_per_aggregate(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut relay = scene.relay().start().await?;
    let ledger = place_orders(&scene.database, Load::orders(10_000)).await?;
    ensure!(
        ledger.rolled_back() > 100,
        "only {} events rolled back",
        ledger.rolled_back()
    );
    relay.publishes_all(&scene.database).await?;
    let events = u64::try_from(ledger.len())?;
    relay.reaches("relay_marks_total", events).await?;

    let metrics = relay.metrics().await?;
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).exactly_once_in_order()?;
    contract::holds(scene, &inbox).await?;

    for (name, expected) in [
        ("relay_published_total", events),
        ("relay_confirmed_total", events),
        ("relay_commit_to_confirm_seconds_count", events),
        ("relay_in_flight", 0),
        ("relay_returned_total", 0),
        ("relay_nacked_total", 0),
    ] {
        let found = metrics.get(name);
        ensure!(
            metrics.has(name) && found == expected,
            "{name} is {found}, not {expected}"
        );
    }
    Ok(())
}
