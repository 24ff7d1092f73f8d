//! A first start on a table that has rows in it.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::database::NewEvent;
use tests::inbox::Inbox;
use tests::ledger::{Committed, Ledger};
use tests::proxy::Proxy;
use tests::scene::Scene;
use tests::servers::Flavor;
use tests::writers::{Load, Writers};

/// Aggregates of the rows that are there first; far from the ids of the writers' orders.
const OLD: i64 = 1_000_000;

/// Row `number` of the old ones: five events an aggregate, some of them done or given up before.
fn old_event(number: i64) -> NewEvent {
    let aggregate = OLD + number / 5;
    let status = match number % 50 {
        0 => "PUBLISHED",
        1 => "FAILED",
        // Left by a worker that died: its lock is over.
        2 => "PROCESSING",
        _ => "PENDING",
    };
    let kind = [
        "OrderCreated",
        "OrderPaid",
        "OrderPacked",
        "OrderShipped",
        "OrderClosed",
    ];
    let kind = kind
        .get(usize::try_from(number % 5).unwrap_or(0))
        .copied()
        .unwrap_or_default();
    NewEvent {
        status,
        ..NewEvent::order(aggregate, kind, format!("old:{number}"))
    }
}

fn committed(event: &NewEvent) -> Committed {
    Committed {
        aggregate_id: event.aggregate_id,
        event_type: event.event_type.clone(),
        key: event.key.clone(),
    }
}

/// What was there and what is written during the start is published, each once and in order; what was
/// published or given up before is not.
pub(crate) async fn rows_already_there_are_published_once(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let old: Vec<NewEvent> = (0..5_000).map(old_event).collect();
    scene.database.insert(&old).await?;
    scene
        .database
        .execute(
            "UPDATE outbox_events SET locked_by = 'gone:1', locked_until = '2020-01-01' \
             WHERE status = 'PROCESSING'",
        )
        .await?;
    let mut ledger = Ledger::new();
    ledger.commit(
        old.iter()
            .filter(|e| matches!(e.status, "PENDING" | "PROCESSING"))
            .map(committed),
    );

    let writers = Writers::start(&scene.database, Load::endless()).await?;
    let mut relay = scene.relay().spawn()?;
    // Later events of the aggregates that the snapshot holds, while it is taken.
    for number in 0..500 {
        let event = NewEvent::order(OLD + number, "OrderReviewed", format!("late:{number}"));
        scene.database.insert(std::slice::from_ref(&event)).await?;
        ledger.commit([committed(&event)]);
    }
    relay.ready().await?;
    writers.commit_more(1_000).await?;
    ledger.extend(writers.stop().await?);

    let failed = old.iter().filter(|event| event.status == "FAILED").count();
    relay
        .publishes_all_but(&scene.database, "status = 'FAILED'")
        .await?;
    relay.stop().await?;
    let still = scene.database.count("status = 'FAILED'").await?;
    ensure!(
        still == u64::try_from(failed)?,
        "{still} rows are FAILED, not {failed}"
    );
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).exactly_once_in_order()
}

/// Snapshots that are taken while eight writers commit, over a line so slow that some transactions are committed
/// between the reading of the position and the opening of the view, and some between that and the second reading:
/// rows that both the snapshot and the binlog behind it hold are published once, and none is left out.
pub(crate) async fn snapshots_under_load_publish_each_row_once(scene: &mut Scene) -> Result<()> {
    const SNAPSHOTS: u64 = 3;
    let queue = scene.broker.queue("#").await?;
    let proxy = Proxy::start(scene.account().url()).await?;
    let slow = scene
        .relay()
        .with("RELAY_MYSQL_URL", proxy.address_for(scene.account().url())?);
    proxy.slow(Duration::from_millis(10));
    let writers = Writers::start(&scene.database, Load::endless().paced(50)).await?;
    let mut overlapping = 0;
    for _ in 0..SNAPSHOTS {
        let mut relay = slow.start().await?;
        relay.reaches("relay_confirmed_total", 300).await?;
        relay.reaches("relay_source_connected", 1).await?;
        writers.commit_more(100).await?;
        let seen = relay.metrics().await?.get("relay_confirmed_total");
        relay.reaches("relay_confirmed_total", seen + 100).await?;
        overlapping += relay.metrics().await?.get("relay_snapshot_overlap_total");
        relay.stop().await?;
        scene
            .database
            .execute("DELETE FROM relay_checkpoints")
            .await?;
    }
    let ledger = writers.stop().await?;
    let mut last = scene.relay().start().await?;
    last.publishes_all(&scene.database).await?;
    last.stop().await?;
    scene.tell(&format!(
        "{overlapping} events were in a snapshot and in the binlog behind it"
    ));
    if scene.database.flavor() == Flavor::Mysql {
        // MariaDB tells the view's exact position: there is no overlap to test.
        ensure!(
            overlapping > 0,
            "the line was not slow enough to test anything"
        );
    }
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).exactly_once_in_order()
}
