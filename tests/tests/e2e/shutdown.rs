//! SIGTERM.

use anyhow::Result;
use tests::inbox::Inbox;
use tests::scene::Scene;
use tests::writers::{Load, Writers};

/// Stopped three times under load, the relay ends with 0 each time and no event is sent twice.
pub(crate) async fn sigterm_under_load_republishes_nothing(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let command = scene.relay();
    let writers = Writers::start(&scene.database, Load::endless()).await?;
    for _ in 0..3 {
        let mut relay = command.start().await?;
        relay.reaches("relay_confirmed_total", 1_000).await?;
        relay.stop().await?;
        writers.commit_more(500).await?;
    }
    let ledger = writers.stop().await?;
    let mut relay = command.start().await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).exactly_once_in_order()
}
