//! Polling: claims by query, leases, fenced marks; and `auto`, which polls while the binlog can't be read.

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use tests::both::{self, arrives, delivered, insert};
use tests::database::NewEvent;
use tests::inbox::Inbox;
use tests::proxy::Proxy;
use tests::relay::{RelayCommand, RelayProcess};
use tests::scene::Scene;
use tests::until::{Seen, until};
use tests::writers::{Load, Writers, place_orders};

tests::on_servers! {
    mysql Mysql:
        polling_publishes_everything_in_order, workers_share_the_table_without_overlap,
        leases_of_a_dead_worker_are_taken_over, a_row_that_was_taken_over_is_not_marked,
        a_held_row_keeps_its_lease, polled_failures_become_dead_letters,
        auto_polls_while_statements_write_and_comes_back, auto_polls_without_the_grant_and_comes_back,
        rows_that_commit_late_are_found;
    mariadb Mariadb:
        polling_publishes_everything_in_order, workers_share_the_table_without_overlap,
        leases_of_a_dead_worker_are_taken_over, a_row_that_was_taken_over_is_not_marked,
        a_held_row_keeps_its_lease, polled_failures_become_dead_letters,
        auto_polls_while_statements_write_and_comes_back, auto_polls_without_the_grant_and_comes_back,
        rows_that_commit_late_are_found;
}

fn poller(scene: &Scene) -> RelayCommand {
    scene
        .relay()
        .with("RELAY_SOURCE", "poll")
        .with("RELAY_POLL_INTERVAL", "20ms")
}

fn orders(count: i64) -> Vec<NewEvent> {
    let order = |id| NewEvent::order(id, "OrderTouched", format!("o{id}"));
    (1..=count).map(order).collect()
}

/// Waits until so many rows meet the condition.
async fn rows(scene: &Scene, relay: &mut RelayProcess, condition: &str, count: u64) -> Result<()> {
    until(&format!("{count} rows with {condition}"), async || {
        relay.still_runs()?;
        let found = scene.database.count(condition).await?;
        Ok(Seen::when(found == count, || found.to_string()))
    })
    .await
}

async fn polling_publishes_everything_in_order(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    for form in ["skip_locked", "token"] {
        let command = poller(scene)
            .with("RELAY_CLAIM", form)
            .with("RELAY_CLAIM_BATCH", 70);
        let mut relay = command.start().await?;
        ensure!(
            relay
                .metrics()
                .await?
                .get("relay_source_mode{mode=\"poll\"}")
                == 1
        );
        let ledger = place_orders(&scene.database, Load::orders(500)).await?;
        relay.publishes_all(&scene.database).await?;
        relay.stop().await?;
        let leased = scene.database.count("locked_by IS NOT NULL").await?;
        ensure!(leased == 0, "{leased} rows are leased still");
        let mut inbox = Inbox::new();
        scene.broker.take_all(&queue, &mut inbox).await?;
        ledger.verdict(&inbox).exactly_once_in_order()?;
    }
    Ok(())
}

/// Three workers with names of their own, as two forms of claim: each row is published by one of them.
async fn workers_share_the_table_without_overlap(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut workers = Vec::new();
    for (name, form) in [("a", "auto"), ("b", "auto"), ("c", "token")] {
        let name = format!("{}-{name}", scene.name());
        let command = poller(scene)
            .with("RELAY_NAME", &name)
            .with("RELAY_CLAIM", form)
            .with("RELAY_CLAIM_BATCH", 20);
        workers.push(command.start().await?);
    }
    let ledger = place_orders(&scene.database, Load::orders(2_000)).await?;
    for worker in &mut workers {
        worker.publishes_all(&scene.database).await?;
    }
    let mut claimed = 0;
    for worker in workers {
        let share = worker.metrics().await?.get("relay_claimed_total");
        ensure!(share > 0, "a worker had nothing to do");
        claimed += share;
        worker.stop().await?;
    }
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    let events = u64::try_from(ledger.len())?;
    ensure!(claimed == events, "{claimed} rows claimed of {events}");
    ensure!(inbox.distinct() == ledger.len() && inbox.duplicates() == 0);
    Ok(())
}

/// Rows leased by a worker that is killed: one of the same name frees them at once, another when the lease is over.
async fn leases_of_a_dead_worker_are_taken_over(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let nowhere = format!("amqp://guest:guest@127.0.0.1:{}/%2f", tests::port::free()?);
    let lease_rows = async |lease: &str, event: NewEvent| {
        let command = poller(scene)
            .with("RELAY_AMQP_URL", &nowhere)
            .with("RELAY_CLAIM_LEASE", lease);
        let mut dead = command.spawn()?;
        scene.database.insert(&[event]).await?;
        rows(scene, &mut dead, "status = 'PROCESSING'", 1).await?;
        dead.kill9().await
    };
    lease_rows("1h", NewEvent::order(1, "OrderTouched", "same")).await?;
    let mut relay = poller(scene).start().await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;

    lease_rows("1s", NewEvent::order(1, "OrderTouched", "other")).await?;
    let name = format!("{}-other", scene.name());
    let mut relay = poller(scene).with("RELAY_NAME", name).start().await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(&inbox, &["same", "other"])
}

/// A worker whose rows another has taken over marks none of them, and says so.
async fn a_row_that_was_taken_over_is_not_marked(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let proxy = Proxy::start(scene.broker.url()).await?;
    let mut relay = poller(scene)
        .with("RELAY_AMQP_URL", proxy.address_for(scene.broker.url())?)
        .start()
        .await?;
    proxy.stall();
    scene.database.insert(&orders(3)).await?;
    rows(scene, &mut relay, "status = 'PROCESSING'", 3).await?;
    scene
        .database
        .execute("UPDATE outbox_events SET locked_by = 'another:1:0' WHERE aggregate_id = 2")
        .await?;
    proxy.resume();
    rows(scene, &mut relay, "status = 'PUBLISHED'", 2).await?;
    relay.reaches("relay_marks_fenced_total", 1).await?;
    let others = "status = 'PROCESSING' AND locked_by = 'another:1:0'";
    ensure!(scene.database.count(others).await? == 1);
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ensure!(inbox.distinct() == 3);
    Ok(())
}

/// Rows that can't be published for longer than a lease lasts stay with the worker that holds them.
async fn a_held_row_keeps_its_lease(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let proxy = Proxy::start(scene.broker.url()).await?;
    let mut holder = poller(scene)
        .with("RELAY_AMQP_URL", proxy.address_for(scene.broker.url())?)
        .with("RELAY_CLAIM_LEASE", "3s")
        .with("RELAY_WINDOW", 4)
        .with("RELAY_CLAIM_BATCH", 4)
        .start()
        .await?;
    proxy.stall();
    // Four in the window, four in the channel behind it.
    scene.database.insert(&orders(8)).await?;
    rows(scene, &mut holder, "status = 'PROCESSING'", 8).await?;
    let name = format!("{}-other", scene.name());
    let other = poller(scene).with("RELAY_NAME", name).start().await?;
    // The first leases are over by the server's own clock.
    let first_until = "SELECT CAST(MIN(locked_until) AS CHAR) FROM outbox_events";
    let first: String = scene
        .database
        .connect()
        .await?
        .query_first(first_until)
        .await?
        .context("nothing is leased")?;
    until("the first leases to be over", async || {
        holder.still_runs()?;
        let query = format!("SELECT NOW(6) > '{first}' + INTERVAL 1 SECOND");
        let over = scene.database.number(&query).await?;
        Ok(Seen::when(over == 1, || "not yet".to_owned()))
    })
    .await?;
    ensure!(
        other.metrics().await?.get("relay_claimed_total") == 0,
        "leases were not renewed"
    );
    proxy.resume();
    holder.publishes_all(&scene.database).await?;
    holder.stop().await?;
    other.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ensure!(inbox.distinct() == 8);
    Ok(())
}

async fn polled_failures_become_dead_letters(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("order.#").await?;
    let mut relay = poller(scene).with("RELAY_MAX_ATTEMPTS", 3).start().await?;
    let lost = NewEvent {
        aggregate_type: "refund".to_owned(),
        ..NewEvent::order(1, "RefundIssued", "lost")
    };
    scene.database.insert(&[lost]).await?;
    scene.database.insert(&orders(20)).await?;
    let failed =
        "status = 'FAILED' AND attempts = 3 AND last_error LIKE '%312%' AND locked_by IS NULL";
    rows(scene, &mut relay, failed, 1).await?;
    rows(scene, &mut relay, "status = 'PUBLISHED'", 20).await?;
    relay.stop().await?;
    let letters = "SELECT COUNT(*) FROM dead_letter_events WHERE attempts = 3";
    ensure!(scene.database.number(letters).await? == 1);
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ensure!(inbox.distinct() == 20 && inbox.duplicates() == 0);
    Ok(())
}

/// A transaction that takes its ids first and commits last is not skipped: no cursor goes over the ids.
async fn rows_that_commit_late_are_found(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut relay = poller(scene).start().await?;
    let mut late = scene.database.connect().await?;
    both::run(&mut late, &["START TRANSACTION", &insert(&["late"])]).await?;
    both::session(scene, &[&insert(&["early"])]).await?;
    rows(scene, &mut relay, "status = 'PUBLISHED'", 1).await?;
    both::run(&mut late, &["COMMIT"]).await?;
    rows(scene, &mut relay, "status = 'PUBLISHED'", 2).await?;
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(&inbox, &["early", "late"])
}

fn auto(scene: &Scene) -> RelayCommand {
    scene
        .relay()
        .with("RELAY_SOURCE", "auto")
        .with("RELAY_BINLOG_PROBE_INTERVAL", "200ms")
}

async fn mode(relay: &mut RelayProcess, mode: &str) -> Result<()> {
    relay
        .reaches(&format!("relay_source_mode{{mode=\"{mode}\"}}"), 1)
        .await
}

/// A session that writes statements into the binlog sends the relay to the table, and it returns by itself; rows are
/// published once whichever way they came.
async fn auto_polls_while_statements_write_and_comes_back(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("order.#").await?;
    let refunds = scene.broker.queue("refund.#").await?;
    let mut relay = auto(scene).start().await?;
    mode(&mut relay, "binlog").await?;
    let writers = Writers::start(&scene.database, Load::endless()).await?;
    relay.reaches("relay_confirmed_total", 100).await?;
    let statement = insert(&["statement"]).replace("'order'", "'refund'");
    both::session(
        scene,
        &["SET SESSION binlog_format = 'STATEMENT'", &statement],
    )
    .await?;
    relay.reaches("relay_source_switches_total", 1).await?;
    writers.commit_more(100).await?;
    relay.reaches("relay_source_switches_total", 2).await?;
    mode(&mut relay, "binlog").await?;
    writers.commit_more(100).await?;
    let ledger = writers.stop().await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&refunds, &mut inbox).await?;
    delivered(&inbox, &["statement"])?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).exactly_once_in_order()
}

/// Without the privilege of replicas the relay polls and says which is missing; granted, it goes to the binlog.
async fn auto_polls_without_the_grant_and_comes_back(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let user = format!("{}_p", scene.name());
    let database = scene.database.name().to_owned();
    let create = format!("CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'");
    let grant = format!("GRANT ALL ON `{database}`.* TO '{user}'@'%'");
    scene.database.execute(&create).await?;
    scene.database.execute(&grant).await?;
    let mut url = scene.database.url().clone();
    ensure!(url.set_username(&user).is_ok() && url.set_password(Some("secret")).is_ok());
    let outcome = async {
        let mut relay = auto(scene).with("RELAY_MYSQL_URL", &url).start().await?;
        mode(&mut relay, "poll").await?;
        both::session(scene, &[&insert(&["polled"])]).await?;
        let mut inbox = Inbox::new();
        arrives(scene, &queue, &mut inbox, "polled").await?;
        let (_, ready) = relay.get("/readyz").await?;
        ensure!(
            ready.contains("source: poll: ") && ready.contains("REPLICATION"),
            "{ready}"
        );
        let grant = format!("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{user}'@'%'");
        scene.database.execute(&grant).await?;
        mode(&mut relay, "binlog").await?;
        both::session(scene, &[&insert(&["tailed"])]).await?;
        arrives(scene, &queue, &mut inbox, "tailed").await?;
        relay.stop().await?;
        delivered(&inbox, &["polled", "tailed"])
    }
    .await;
    scene
        .database
        .execute(&format!("DROP USER '{user}'@'%'"))
        .await?;
    outcome
}
