//! The sweeper: unpublished rows that the binlog does not bring.

use anyhow::{Result, ensure};
use tests::both::{arrives, insert, session};
use tests::database::NewEvent;
use tests::inbox::Inbox;
use tests::relay::RelayCommand;
use tests::scene::Scene;
use tests::until::{Seen, until};
use tests::writers::{Load, place_orders};

tests::on_servers! {
    mysql Mysql: reset_and_restored_rows_are_published, a_replayed_letter_is_published, a_sweep_leaves_alone_what_is_on_its_way;
    mariadb Mariadb: reset_and_restored_rows_are_published, a_replayed_letter_is_published, a_sweep_leaves_alone_what_is_on_its_way;
}

fn sweeping(scene: &Scene) -> RelayCommand {
    scene.relay().with("RELAY_SWEEP_INTERVAL", "100ms")
}

/// A row set back to PENDING by hand, one restored without a trace in the binlog, and one left behind by a poller.
async fn reset_and_restored_rows_are_published(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut relay = sweeping(scene).start().await?;
    session(scene, &[&insert(&["first"])]).await?;
    relay.publishes_all(&scene.database).await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    session(
        scene,
        &["UPDATE outbox_events SET status = 'PENDING', published_at = NULL"],
    )
    .await?;
    relay.reaches("relay_swept_total", 1).await?;
    session(
        scene,
        &["SET SESSION sql_log_bin = 0", &insert(&["restored"])],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "restored").await?;
    session(
        scene,
        &[
            "SET SESSION sql_log_bin = 0",
            &insert(&["left"]),
            "UPDATE outbox_events SET status = 'PROCESSING', locked_by = 'gone:1:0', \
             locked_until = NOW(6) - INTERVAL 1 SECOND WHERE idempotency_key = 'left'",
        ],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "left").await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    ensure!(
        inbox.distinct() == 3 && inbox.duplicates() == 1,
        "{} messages of {} rows",
        inbox.messages().len(),
        inbox.distinct()
    );
    Ok(())
}

/// A dead letter that is sent again arrives once there is a queue for it, and leaves no letter.
async fn a_replayed_letter_is_published(scene: &mut Scene) -> Result<()> {
    let command = sweeping(scene).with("RELAY_MAX_ATTEMPTS", 2);
    let mut relay = command.start().await?;
    session(scene, &[&insert(&["unroutable"])]).await?;
    until("the event to be given up", async || {
        relay.still_runs()?;
        let failed = scene.database.count("status = 'FAILED'").await?;
        Ok(Seen::when(failed == 1, || failed.to_string()))
    })
    .await?;
    let queue = scene.broker.queue("#").await?;
    command
        .output(&["dlq", "replay", "--all"])
        .await?
        .is(0, &[])?;
    let mut inbox = Inbox::new();
    arrives(scene, &queue, &mut inbox, "unroutable").await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;
    let letters = scene
        .database
        .number("SELECT COUNT(*) FROM dead_letter_events");
    ensure!(letters.await? == 0, "the letter is there still");
    Ok(())
}

/// Sweeps all the time, while rows are written, in flight and in retry: nothing is published twice.
async fn a_sweep_leaves_alone_what_is_on_its_way(scene: &mut Scene) -> Result<()> {
    let orders = scene.broker.queue("order.#").await?;
    let mut relay = sweeping(scene)
        .with("RELAY_SWEEP_INTERVAL", "10ms")
        .with("RELAY_MAX_ATTEMPTS", 1_000)
        .start()
        .await?;
    let ledger = place_orders(&scene.database, Load::orders(1_000)).await?;
    relay.reaches("relay_sweeps_total", 1).await?;
    relay.publishes_all(&scene.database).await?;
    let refund = NewEvent {
        aggregate_type: "refund".to_owned(),
        ..NewEvent::order(1, "RefundIssued", "refund")
    };
    scene.database.insert(&[refund]).await?;
    relay.reaches("relay_returned_total", 2).await?;
    let sweeps = relay.metrics().await?.get("relay_sweeps_total");
    let refunds = scene.broker.queue("refund.#").await?;
    relay.publishes_all(&scene.database).await?;
    relay.reaches("relay_sweeps_total", sweeps).await?;
    ensure!(relay.metrics().await?.get("relay_swept_total") == 0);
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&refunds, &mut inbox).await?;
    ensure!(inbox.messages().len() == 1);
    let mut inbox = Inbox::new();
    scene.broker.take_all(&orders, &mut inbox).await?;
    ledger.verdict(&inbox).exactly_once_in_order()
}
