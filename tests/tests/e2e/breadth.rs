//! The ways in which rows come into the table and transactions into the binlog.

use anyhow::Result;
use tests::both::{
    arrives, decide, delivered, delivered_at_least, insert, run, session, set_checkpoint, values,
};
use tests::inbox::Inbox;
use tests::on_servers;
use tests::scene::Scene;

on_servers! {
    mysql Mysql:
        inserted_rows_are_published_and_changed_ones_are_not,
        savepoints_are_honoured,
        rolled_back_work_is_not_published,
        xa_transactions_are_published_when_they_commit,
        xa_transaction_prepared_before_a_kill_is_published_when_it_commits,
        xa_transaction_prepared_before_the_first_start_is_published_when_it_commits,
        compressed_transactions_are_published_among_plain_ones,
        tagged_transactions_are_published_and_not_repeated;
    mariadb Mariadb:
        inserted_rows_are_published_and_changed_ones_are_not,
        savepoints_are_honoured,
        rolled_back_work_is_not_published,
        xa_transactions_are_published_when_they_commit,
        xa_transaction_prepared_before_a_kill_is_published_when_it_commits,
        xa_transaction_prepared_before_the_first_start_is_published_when_it_commits,
        compressed_events_are_published_among_plain_ones,
        other_domains_are_published_and_not_repeated;
}

const INSERTED: [&str; 15] = [
    "multi1",
    "multi2",
    "multi3",
    "selected1",
    "selected2",
    "upsert",
    "upsert-new",
    "ignore-new",
    "replace",
    "replaced-by-id",
    "many-tables1",
    "many-tables2",
    "trigger",
    "inserted-and-deleted",
    "last",
];

/// Whatever statement inserts a row, its event is published once; a statement that changes a row publishes nothing.
async fn inserted_rows_are_published_and_changed_ones_are_not(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let relay = scene.relay().start().await?;
    let columns = "(aggregate_type, aggregate_id, event_type, payload, idempotency_key)";
    let update = format!(
        "{} ON DUPLICATE KEY UPDATE attempts = attempts + 1",
        insert(&["upsert"])
    );
    let two = format!(
        "{} ON DUPLICATE KEY UPDATE attempts = attempts + 1",
        insert(&["upsert", "upsert-new"])
    );
    let ignore = insert(&["upsert", "ignore-new"]).replace("INSERT", "INSERT IGNORE");
    let replace = format!(
        "REPLACE INTO outbox_events {columns} VALUES {}",
        values("replace")
    );
    let by_id = "REPLACE INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, idempotency_key) \
         SELECT id, 'order', 1, 'OrderTouched', '{}', 'replaced-by-id' FROM outbox_events WHERE idempotency_key = 'replace'";
    let select = format!(
        "INSERT INTO outbox_events {columns} SELECT 'order', 1, 'OrderTouched', '{{}}', k FROM words ORDER BY n"
    );
    session(
        scene,
        &[
            &insert(&["multi1", "multi2", "multi3"]),
            "CREATE TABLE words (n INT PRIMARY KEY, k VARCHAR(20)) SELECT 1 AS n, 'selected1' AS k UNION SELECT 2, 'selected2'",
            &select,
            &update,
            &update,
            &two,
            &ignore,
            &replace,
            by_id,
            "UPDATE outbox_events SET event_type = 'Changed' WHERE idempotency_key = 'multi1'",
            "START TRANSACTION",
            "INSERT INTO words VALUES (3, 'x')",
            &insert(&["many-tables1"]),
            "INSERT INTO orders (customer_id, status, total_cents) VALUES (1, 'NEW', 1)",
            "UPDATE words SET k = 'y' WHERE n = 3",
            &insert(&["many-tables2"]),
            "DELETE FROM words WHERE n = 3",
            "COMMIT",
            &format!("CREATE TRIGGER words_outbox AFTER INSERT ON words FOR EACH ROW {}", insert(&["trigger"])),
            "INSERT INTO words VALUES (4, 'z')",
            "DROP TRIGGER words_outbox",
            "CREATE TABLE kept LIKE outbox_events",
            "INSERT INTO kept SELECT * FROM outbox_events",
            "START TRANSACTION",
            &insert(&["rolled-back"]),
            "ROLLBACK",
            "START TRANSACTION",
            &insert(&["inserted-and-deleted"]),
            "DELETE FROM outbox_events WHERE idempotency_key = 'inserted-and-deleted'",
            "COMMIT",
            &insert(&["last"]),
        ],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(&inbox, &INSERTED)
}

/// What a savepoint takes back is not published, the rest of the transaction is.
async fn savepoints_are_honoured(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let relay = scene.relay().start().await?;
    session(
        scene,
        &[
            "START TRANSACTION",
            &insert(&["before"]),
            "SAVEPOINT a",
            &insert(&["taken-back"]),
            "SAVEPOINT b",
            &insert(&["taken-back-too"]),
            "ROLLBACK TO a",
            &insert(&["between"]),
            "SAVEPOINT c",
            &insert(&["released"]),
            "RELEASE SAVEPOINT c",
            "COMMIT",
            &insert(&["last"]),
        ],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(&inbox, &["before", "between", "released", "last"])
}

/// A temporary table keeps the server from leaving rolled back work out of the binlog (MariaDB: `OPTION_KEEP_LOG`):
/// it writes the rows, and `ROLLBACK` or `ROLLBACK TO` behind them.
async fn rolled_back_work_is_not_published(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let relay = scene.relay().start().await?;
    session(
        scene,
        &[
            "START TRANSACTION",
            "CREATE TEMPORARY TABLE scratch (a INT)",
            &insert(&["rolled-back"]),
            "ROLLBACK",
            "START TRANSACTION",
            &insert(&["before"]),
            "CREATE TEMPORARY TABLE scratch2 (a INT)",
            "SAVEPOINT `a b`",
            &insert(&["taken-back"]),
            "ROLLBACK TO `a b`",
            &insert(&["between"]),
            "COMMIT",
            &insert(&["last"]),
        ],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(&inbox, &["before", "between", "last"])
}

/// Prepares an XA transaction that inserts an event of its own name, in a session that ends.
async fn prepare(scene: &Scene, name: &str) -> Result<()> {
    let xid = xid(scene, name);
    let statements = [
        format!("XA START {xid}"),
        insert(&[name]),
        format!("XA END {xid}"),
        format!("XA PREPARE {xid}"),
    ];
    session(scene, &statements.each_ref().map(String::as_str)).await
}

fn xid(scene: &Scene, name: &str) -> String {
    format!("'{}','{name}'", scene.name())
}

/// A prepared transaction holds the database's tables: it must not outlive a test that failed.
async fn forget(scene: &Scene, names: &[&str]) -> Result<()> {
    for name in names {
        // Known by now to be detached from its session, or decided, which is an error.
        scene
            .database
            .execute(&format!("XA ROLLBACK {}", xid(scene, name)))
            .await
            .ok();
    }
    Ok(())
}

/// Nothing of an XA transaction is published before its commit, all of it after, nothing after a rollback.
async fn xa_transactions_are_published_when_they_commit(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let outcome = xa_mixed(scene, &queue).await;
    forget(scene, &["commit", "rollback"]).await?;
    outcome
}

async fn xa_mixed(scene: &Scene, queue: &str) -> Result<()> {
    let mut inbox = Inbox::new();
    let relay = scene.relay().start().await?;
    prepare(scene, "commit").await?;
    prepare(scene, "rollback").await?;
    let one = xid(scene, "one");
    session(
        scene,
        &[
            &format!("XA START {one}"),
            &insert(&["one"]),
            &format!("XA END {one}"),
            &format!("XA COMMIT {one} ONE PHASE"),
            &insert(&["plain"]),
        ],
    )
    .await?;
    arrives(scene, queue, &mut inbox, "plain").await?;
    delivered(&inbox, &["one", "plain"])?;
    let (commit, rollback) = (xid(scene, "commit"), xid(scene, "rollback"));
    decide(scene, &format!("XA ROLLBACK {rollback}")).await?;
    decide(scene, &format!("XA COMMIT {commit}")).await?;
    session(scene, &[&insert(&["last"])]).await?;
    arrives(scene, queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(queue, &mut inbox).await?;
    delivered(&inbox, &["one", "plain", "commit", "last"])
}

/// The position waits for a prepared transaction, so another relay still finds its rows.
async fn xa_transaction_prepared_before_a_kill_is_published_when_it_commits(
    scene: &mut Scene,
) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let outcome = xa_killed(scene, &queue).await;
    forget(scene, &["down", "up", "rollback"]).await?;
    outcome
}

/// The binlog behind the relay's start holds the commit alone: the table tells what was committed.
async fn xa_transaction_prepared_before_the_first_start_is_published_when_it_commits(
    scene: &mut Scene,
) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    prepare(scene, "early").await?;
    let outcome = xa_early(scene, &queue).await;
    forget(scene, &["early"]).await?;
    outcome
}

async fn xa_early(scene: &Scene, queue: &str) -> Result<()> {
    let mut inbox = Inbox::new();
    let mut relay = scene.relay().start().await?;
    session(scene, &[&insert(&["plain"])]).await?;
    arrives(scene, queue, &mut inbox, "plain").await?;
    relay.publishes_all(&scene.database).await?;
    decide(scene, &format!("XA COMMIT {}", xid(scene, "early"))).await?;
    arrives(scene, queue, &mut inbox, "early").await?;
    session(scene, &[&insert(&["last"])]).await?;
    arrives(scene, queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(queue, &mut inbox).await?;
    delivered(&inbox, &["plain", "early", "last"])
}

async fn xa_killed(scene: &Scene, queue: &str) -> Result<()> {
    let mut inbox = Inbox::new();
    let command = scene.relay().with("RELAY_CHECKPOINT_INTERVAL", "50ms");
    let mut relay = command.start().await?;
    for name in ["down", "up", "rollback"] {
        prepare(scene, name).await?;
    }
    session(scene, &[&insert(&["plain"])]).await?;
    arrives(scene, queue, &mut inbox, "plain").await?;
    relay.publishes_all(&scene.database).await?;
    relay.kill9().await?;
    let commit = xid(scene, "down");
    decide(scene, &format!("XA COMMIT {commit}")).await?;
    let relay = command.start().await?;
    arrives(scene, queue, &mut inbox, "down").await?;
    relay.stop().await?;
    let relay = command.start().await?;
    let (commit, rollback) = (xid(scene, "up"), xid(scene, "rollback"));
    decide(scene, &format!("XA ROLLBACK {rollback}")).await?;
    decide(scene, &format!("XA COMMIT {commit}")).await?;
    arrives(scene, queue, &mut inbox, "up").await?;
    session(scene, &[&insert(&["last"])]).await?;
    arrives(scene, queue, &mut inbox, "last").await?;
    relay.stop().await?;
    // All is decided: the position has passed it all, and nothing comes again.
    let before = inbox.messages().len();
    let relay = command.start().await?;
    session(scene, &[&insert(&["end"])]).await?;
    arrives(scene, queue, &mut inbox, "end").await?;
    relay.stop().await?;
    scene.broker.take_all(queue, &mut inbox).await?;
    anyhow::ensure!(
        inbox.messages().len() == before + 1,
        "events came again after the end of all XA transactions"
    );
    delivered_at_least(&inbox, &["plain", "down", "up", "last", "end"])
}

/// Compressed, plain, compressed; with savepoints, in one and in many rows; and again from the middle after a stop.
async fn compressed_transactions_are_published_among_plain_ones(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let command = scene.relay();
    let relay = command.start().await?;
    let mut conn = scene.database.connect().await?;
    let (on, off) = (
        "SET SESSION binlog_transaction_compression = ON",
        "SET SESSION binlog_transaction_compression = OFF",
    );
    run(
        &mut conn,
        &[
            on,
            &insert(&["c1", "c2"]),
            off,
            &insert(&["p1"]),
            on,
            "START TRANSACTION",
            &insert(&["c3"]),
            "INSERT INTO orders (customer_id, status, total_cents) VALUES (1, 'NEW', 1)",
            &insert(&["c4"]),
            "COMMIT",
        ],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "c4").await?;
    relay.stop().await?;
    run(&mut conn, &[&insert(&["c5"]), off, &insert(&["p2"])]).await?;
    let relay = command.start().await?;
    arrives(scene, &queue, &mut inbox, "p2").await?;
    relay.stop().await?;
    // By file and offset too: events within a compressed one have no offsets of their own.
    set_checkpoint(scene, &crate::position::head(scene).await?).await?;
    run(
        &mut conn,
        &[
            on,
            &insert(&["c6", "c7"]),
            off,
            &insert(&["p3"]),
            on,
            &insert(&["c8"]),
        ],
    )
    .await?;
    let relay = command.start().await?;
    arrives(scene, &queue, &mut inbox, "c8").await?;
    relay.stop().await?;
    run(&mut conn, &[&insert(&["c9"]), off, &insert(&["last"])]).await?;
    let relay = command.start().await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    conn.disconnect().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(
        &inbox,
        &[
            "c1", "c2", "p1", "c3", "c4", "c5", "p2", "c6", "c7", "p3", "c8", "c9", "last",
        ],
    )
}

/// MySQL 8.3: a session's GTIDs may have a tag; the checkpoint tells them from those without.
async fn tagged_transactions_are_published_and_not_repeated(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let command = scene.relay().with("RELAY_MARK", "none");
    let tagged = "SET SESSION gtid_next = 'AUTOMATIC:outbox_e2e'";
    session(scene, &[tagged, &insert(&["before"])]).await?;
    let relay = command.start().await?;
    session(scene, &[&insert(&["plain"]), tagged, &insert(&["tagged"])]).await?;
    arrives(scene, &queue, &mut inbox, "tagged").await?;
    relay.stop().await?;
    let position = tests::both::checkpoint(scene).await?;
    anyhow::ensure!(
        position.contains("outbox_e2e"),
        "no tag in the checkpoint {position}"
    );
    session(
        scene,
        &[
            tagged,
            &insert(&["tagged-down"]),
            "SET SESSION gtid_next = 'AUTOMATIC'",
            &insert(&["plain-down"]),
        ],
    )
    .await?;
    let relay = command.start().await?;
    session(scene, &[tagged, &insert(&["last"])]).await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(
        &inbox,
        &[
            "before",
            "plain",
            "tagged",
            "tagged-down",
            "plain-down",
            "last",
        ],
    )
}

/// `log_bin_compress` is global, and nothing to those who read decoded events; it is off again afterwards.
async fn compressed_events_are_published_among_plain_ones(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let outcome = mariadb_compressed(scene, &queue).await;
    session(
        scene,
        &[
            "SET GLOBAL log_bin_compress = OFF",
            "SET GLOBAL log_bin_compress_min_len = DEFAULT",
        ],
    )
    .await?;
    outcome
}

async fn mariadb_compressed(scene: &Scene, queue: &str) -> Result<()> {
    let mut inbox = Inbox::new();
    let command = scene.relay();
    let relay = command.start().await?;
    let long =
        insert(&["compressed"]).replace("{\"k\"", &format!("{{\"{}\"", "long ".repeat(20_000)));
    session(
        scene,
        &[
            &insert(&["plain"]),
            "SET GLOBAL log_bin_compress_min_len = 10",
            "SET GLOBAL log_bin_compress = ON",
            &insert(&["short1", "short2"]),
            &long,
            "SET GLOBAL log_bin_compress = OFF",
            &insert(&["last"]),
        ],
    )
    .await?;
    arrives(scene, queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(queue, &mut inbox).await?;
    delivered(&inbox, &["plain", "short1", "short2", "compressed", "last"])
}

/// A session of another replication domain: the checkpoint holds a place in each.
async fn other_domains_are_published_and_not_repeated(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut inbox = Inbox::new();
    let command = scene.relay().with("RELAY_MARK", "none");
    let (seven, zero) = (
        "SET SESSION gtid_domain_id = 7",
        "SET SESSION gtid_domain_id = 0",
    );
    session(scene, &[seven, &insert(&["before"])]).await?;
    let relay = command.start().await?;
    session(
        scene,
        &[
            seven,
            &insert(&["seven"]),
            zero,
            &insert(&["zero"]),
            seven,
            &insert(&["seven-again"]),
        ],
    )
    .await?;
    arrives(scene, &queue, &mut inbox, "seven-again").await?;
    relay.stop().await?;
    session(
        scene,
        &[
            zero,
            &insert(&["zero-down"]),
            seven,
            &insert(&["seven-down"]),
        ],
    )
    .await?;
    let relay = command.start().await?;
    session(scene, &[&insert(&["last"])]).await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    delivered(
        &inbox,
        &[
            "before",
            "seven",
            "zero",
            "seven-again",
            "zero-down",
            "seven-down",
            "last",
        ],
    )
}
