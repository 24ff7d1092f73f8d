//! Events that no queue is bound for.

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use tests::database::NewEvent;
use tests::inbox::Inbox;
use tests::scene::Scene;
use tests::until::{Seen, until};
use tests::writers::{Load, place_orders};

fn refunds(aggregates: std::ops::Range<i64>) -> Vec<NewEvent> {
    aggregates
        .map(|id| NewEvent {
            aggregate_type: "refund".to_owned(),
            ..NewEvent::order(id, "RefundIssued", format!("refund:{id}"))
        })
        .collect()
}

/// All but those that no queue gets.
const REFUNDS: &str = "aggregate_type = 'refund'";

/// An event that is returned stays open while others flow, and arrives once a queue is bound.
pub(crate) async fn unroutable_event_is_not_marked_published(scene: &mut Scene) -> Result<()> {
    let orders = scene.broker.queue("order.#").await?;
    let mut relay = scene
        .relay()
        .with("RELAY_MAX_ATTEMPTS", 1_000)
        .start()
        .await?;
    scene.database.insert(&refunds(1..6)).await?;
    relay.reaches("relay_returned_total", 5).await?;
    // The others, though they are behind it in the binlog.
    let ledger = place_orders(&scene.database, Load::orders(500)).await?;
    relay.publishes_all_but(&scene.database, REFUNDS).await?;
    let published = scene
        .database
        .count("aggregate_type = 'refund' AND status = 'PUBLISHED'");
    ensure!(
        published.await? == 0,
        "an event that no queue got is marked PUBLISHED"
    );

    let refund_queue = scene.broker.queue("refund.#").await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&refund_queue, &mut inbox).await?;
    ensure!(
        inbox.distinct() == 5 && inbox.duplicates() == 0,
        "{} arrived",
        inbox.messages().len()
    );
    let mut inbox = Inbox::new();
    scene.broker.take_all(&orders, &mut inbox).await?;
    ledger.verdict(&inbox).exactly_once_in_order()
}

/// Fifty unroutable events among a thousand and more: exactly those become dead letters, and no restart
/// sends them again.
pub(crate) async fn unroutable_events_become_dead_letters(scene: &mut Scene) -> Result<()> {
    let orders = scene.broker.queue("order.#").await?;
    let command = scene.relay().with("RELAY_MAX_ATTEMPTS", 3);
    let mut relay = command.start().await?;
    let among = async {
        for id in 1..51 {
            scene.database.insert(&refunds(id..id + 1)).await?;
        }
        anyhow::Ok(())
    };
    let (ledger, inserted) =
        tokio::join!(place_orders(&scene.database, Load::orders(1_000)), among);
    let ledger = ledger?;
    inserted?;
    relay.publishes_all_but(&scene.database, REFUNDS).await?;
    until("all refunds to be FAILED", async || {
        relay.still_runs()?;
        let failed = scene
            .database
            .count("aggregate_type = 'refund' AND status = 'FAILED'")
            .await?;
        Ok(Seen::when(failed == 50, || format!("{failed}")))
    })
    .await?;
    refunds_are_kept(scene).await?;
    relay.stop().await?;

    // Routable now: whatever is sent again would arrive.
    let refund_queue = scene.broker.queue("refund.#").await?;
    let relay = command.start().await?;
    scene.database.insert(&refunds(51..52)).await?;
    let mut inbox = Inbox::new();
    let arrived = |inbox: &Inbox| inbox.has("refund:51");
    scene
        .broker
        .take_until(&refund_queue, &mut inbox, "refund:51", arrived)
        .await?;
    relay.stop().await?;
    scene.broker.take_all(&refund_queue, &mut inbox).await?;
    ensure!(
        inbox.messages().len() == 1,
        "dead letters were sent again after the restart"
    );
    let mut inbox = Inbox::new();
    scene.broker.take_all(&orders, &mut inbox).await?;
    ledger.verdict(&inbox).exactly_once_in_order()
}

/// Each refund has its last error in its row and one dead letter.
async fn refunds_are_kept(scene: &Scene) -> Result<()> {
    for row in scene
        .database
        .outbox()
        .await?
        .iter()
        .filter(|row| row.aggregate_type == "refund")
    {
        let key = &row.key;
        ensure!(row.attempts == 3, "{key} has {} attempts", row.attempts);
        ensure!(
            row.last_error.as_ref().is_some_and(|e| !e.is_empty()),
            "{key} has no last_error"
        );
        let letters: Vec<(String, Vec<u8>, String)> = scene
            .database
            .connect()
            .await?
            .exec(
                "SELECT event_type, payload, error FROM dead_letter_events \
                 WHERE source_event_id = ?",
                (row.id,),
            )
            .await?;
        ensure!(
            letters.len() == 1,
            "{key} has {} dead letters",
            letters.len()
        );
        let (event_type, payload, error) = letters.first().context("no dead letter")?;
        ensure!(*event_type == row.event_type && *payload == row.payload && !error.is_empty());
    }
    let letters = scene
        .database
        .number("SELECT COUNT(*) FROM dead_letter_events")
        .await?;
    ensure!(letters == 50, "{letters} dead letters");
    Ok(())
}
