//! The library on real servers: MySQL and MariaDB, each test in a database of its own.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use mysql_async::Opts;
use mysql_async::prelude::Queryable as _;
use reliability::inbox::{self, Claim, Event, InboxError};
use reliability::migrate::{self, MigrateError, Migration};
use reliability::mysql::IsolationLevel::ReadCommitted;
use reliability::mysql::{ConnectError, Database, Settings, TransactionError};
use reliability::outbox::{self, Inserted, NewEvent, OutboxError};
use serde_json::{Value, json};
use support::{Place, connect, on_both_servers};
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};

#[path = "mysql/commands.rs"]
mod commands;
#[path = "mysql/idempotency.rs"]
mod idempotency;
#[path = "mysql/saga.rs"]
mod saga;

on_both_servers! {
    migrations_run_once
    migrations_run_by_many_at_once
    a_changed_migration_is_refused
    a_failed_statement_is_named_and_can_be_mended
    migrating_needs_a_database
    sessions_are_strict_and_speak_utc
    an_event_commits_and_rolls_back_with_its_transaction
    a_taken_key_is_an_error_or_ignored
    an_inbox_claims_once
    an_inbox_claims_many
    two_consumers_claim_one_event
    a_deadlock_runs_the_whole_transaction_again
    a_lock_timeout_is_retried_and_then_reported
    an_error_of_the_closure_is_not_retried
    an_ignored_deadlock_is_noticed
    a_dropped_transaction_leaves_nothing
    transactions_dropped_at_any_moment_are_whole
    a_lost_commit_is_unknown_and_not_retried
    a_slow_transaction_is_rolled_back
    connection_errors_say_what_and_where
}

fn event<'a>(key: &'a str, payload: &'a Value) -> NewEvent<'a, Value> {
    NewEvent {
        aggregate_type: "thing",
        aggregate_id: -7,
        event_type: "ThingMade",
        payload,
        headers: None,
        idempotency_key: key,
    }
}

async fn migrations_run_once(place: Place) -> Result<()> {
    let mut conn = place.connect().await?;
    let both = [migrate::RELIABILITY, migrate::OUTBOX];
    let report = migrate::run(&mut conn, &both).await?;
    assert_eq!(report.applied, [migrate::OUTBOX, migrate::RELIABILITY]);
    let report = migrate::run(&mut conn, &both).await?;
    assert_eq!((report.applied.len(), report.skipped.len()), (0, 2));
    let tables: Vec<String> = conn.query("SHOW TABLES").await?;
    assert_eq!(tables.len(), 9, "{tables:?}");
    let lock: Option<u8> = conn
        .query_first("SELECT IS_FREE_LOCK(CONCAT('outbox-migrate:', DATABASE()))")
        .await?;
    assert_eq!(lock, Some(1));
    Ok(conn.disconnect().await?)
}

async fn migrations_run_by_many_at_once(place: Place) -> Result<()> {
    let place = Arc::new(place);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let place = place.clone();
        tasks.spawn(async move {
            let mut conn = place.connect().await?;
            let report = migrate::run(&mut conn, &[migrate::OUTBOX, migrate::RELIABILITY]).await?;
            conn.disconnect().await?;
            anyhow::Ok(report.applied.len())
        });
    }
    let mut applied: Vec<usize> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    applied.sort_unstable();
    assert_eq!(applied, [0, 0, 0, 0, 0, 0, 0, 2]);
    Ok(())
}

async fn a_changed_migration_is_refused(place: Place) -> Result<()> {
    let mut conn = place.connect().await?;
    let first = Migration {
        version: 7,
        name: "first",
        sql: "CREATE TABLE a (id INT);",
    };
    migrate::run(&mut conn, &[first]).await?;
    let changed = Migration {
        sql: "CREATE TABLE a (id BIGINT);",
        ..first
    };
    let fresh = Migration {
        version: 3,
        name: "fresh",
        sql: "CREATE TABLE b (id INT);",
    };
    let error = migrate::run(&mut conn, &[changed, fresh])
        .await
        .err()
        .context("it succeeded")?;
    assert!(matches!(error, MigrateError::Changed { migration } if migration == changed));
    // Nothing was run before all were checked.
    assert_eq!(
        place
            .number("SELECT COUNT(*) FROM schema_migrations")
            .await?,
        1
    );
    Ok(conn.disconnect().await?)
}

async fn a_failed_statement_is_named_and_can_be_mended(place: Place) -> Result<()> {
    let mut conn = place.connect().await?;
    let sql = "CREATE TABLE IF NOT EXISTS a (id INT);\nINSERT INTO missing VALUES (1);";
    let broken = Migration {
        version: 1,
        name: "broken",
        sql,
    };
    let error = migrate::run(&mut conn, &[broken])
        .await
        .err()
        .context("it succeeded")?;
    let text = error.to_string();
    ensure!(
        text.contains("0001_broken") && text.contains("statement 2"),
        "{text}"
    );
    let source = std::error::Error::source(&error)
        .context("no cause")?
        .to_string();
    ensure!(source.contains("missing"), "{source}");
    // The lock is free again: another connection gets it at once.
    let mut other = place.connect().await?;
    other.query_drop("CREATE TABLE missing (id INT)").await?;
    let started = Instant::now();
    assert_eq!(migrate::run(&mut other, &[broken]).await?.applied, [broken]);
    ensure!(started.elapsed() < Duration::from_secs(10));
    other.disconnect().await?;
    Ok(conn.disconnect().await?)
}

async fn migrating_needs_a_database(place: Place) -> Result<()> {
    let mut conn = connect(place.url.options().db_name(None::<String>).into()).await?;
    let error = migrate::run(&mut conn, &[migrate::OUTBOX])
        .await
        .err()
        .context("it succeeded")?;
    assert!(matches!(error, MigrateError::NoDatabase));
    Ok(conn.disconnect().await?)
}

async fn sessions_are_strict_and_speak_utc(place: Place) -> Result<()> {
    let database = Database::new(&place.url, Settings::default());
    let mut conn = database.connection().await?;
    let row: Option<(String, u32, String)> = conn
        .query_first("SELECT @@time_zone, @@innodb_lock_wait_timeout, @@sql_mode")
        .await?;
    let (zone, wait, mode) = row.context("no row")?;
    assert_eq!((zone.as_str(), wait), ("+00:00", 5));
    ensure!(mode.contains("STRICT_TRANS_TABLES"), "{mode}");
    drop(conn);
    Ok(database.close().await?)
}

async fn an_event_commits_and_rolls_back_with_its_transaction(place: Place) -> Result<()> {
    let database = place.database(Settings::default()).await?;
    let payload = json!({"текст": "привет 🦀", "n": 9_007_199_254_740_993_u64, "": null});
    let Value::Object(headers) = json!({"traceparent": "00-ab", "n": 1}) else {
        unreachable!()
    };
    let id = database
        .transaction(ReadCommitted, async |tx| {
            let event = NewEvent {
                headers: Some(&headers),
                ..event("thing:1:made", &payload)
            };
            outbox::insert(tx, &event).await
        })
        .await?;
    let refused = database
        .transaction(ReadCommitted, async |tx| {
            outbox::insert(tx, &event("thing:2:made", &payload)).await?;
            outbox::insert(tx, &event("", &payload)).await
        })
        .await
        .err()
        .context("it succeeded")?;
    assert_eq!(refused.to_string(), "idempotency_key is empty");
    let mut conn = database.connection().await?;
    type Row = (u64, String, i64, String, String, String, String, String);
    let rows: Vec<Row> = conn
        .query(
            "SELECT id, aggregate_type, aggregate_id, event_type, payload, headers, status, \
             idempotency_key FROM outbox_events",
        )
        .await?;
    let [row] = rows.as_slice() else {
        anyhow::bail!("{rows:?}")
    };
    assert_eq!((row.0, row.1.as_str(), row.2), (id.0, "thing", -7));
    assert_eq!(
        (row.3.as_str(), row.6.as_str(), row.7.as_str()),
        ("ThingMade", "PENDING", "thing:1:made")
    );
    assert_eq!(serde_json::from_str::<Value>(&row.4)?, payload);
    assert_eq!(
        serde_json::from_str::<Value>(&row.5)?,
        Value::Object(headers)
    );
    drop(conn);
    Ok(database.close().await?)
}

async fn a_taken_key_is_an_error_or_ignored(place: Place) -> Result<()> {
    let database = place.database(Settings::default()).await?;
    let payload = json!({});
    database
        .transaction(ReadCommitted, async |tx| {
            outbox::insert(tx, &event("one", &payload)).await?;
            assert!(matches!(
                outbox::insert(tx, &event("one", &payload)).await,
                Err(OutboxError::Taken { key, .. }) if key == "one"
            ));
            let again = outbox::insert_or_ignore(tx, &event("one", &payload)).await?;
            assert_eq!(again, Inserted::Duplicate);
            // The transaction is as good as before.
            let other = outbox::insert_or_ignore(tx, &event("two", &payload)).await?;
            assert!(matches!(other, Inserted::New(_)));
            Ok::<_, OutboxError>(())
        })
        .await?;
    assert_eq!(place.number("SELECT COUNT(*) FROM outbox_events").await?, 2);
    // Other errors are not taken for a duplicate.
    let mut conn = place.connect().await?;
    conn.query_drop(
        "ALTER TABLE outbox_events ADD UNIQUE KEY u (aggregate_id, event_type, status)",
    )
    .await
    .err()
    .context("it succeeded")?;
    conn.query_drop("DELETE FROM outbox_events WHERE idempotency_key = 'two'")
        .await?;
    conn.query_drop(
        "ALTER TABLE outbox_events ADD UNIQUE KEY u (aggregate_id, event_type, status)",
    )
    .await?;
    conn.disconnect().await?;
    let error = database
        .transaction(ReadCommitted, async |tx| {
            outbox::insert_or_ignore(tx, &event("three", &payload)).await
        })
        .await
        .err()
        .context("it succeeded")?;
    assert!(
        matches!(error, TransactionError::Body(OutboxError::Mysql { .. })),
        "{error:?}"
    );
    Ok(database.close().await?)
}

async fn an_inbox_claims_once(place: Place) -> Result<()> {
    let database = place.database(Settings::default()).await?;
    let event = Event {
        id: "thing:1:made",
        kind: "ThingMade",
        payload: r#"{"a":1}"#,
    };
    let claim = async || {
        database
            .transaction(ReadCommitted, async |tx| inbox::claim(tx, &event).await)
            .await
    };
    // Rolled back, the claim is gone too.
    let failed = database
        .transaction(ReadCommitted, async |tx| {
            assert_eq!(inbox::claim(tx, &event).await?, Claim::First);
            tx.query_drop("UPDATE t SET n = n + 1 WHERE id = 1")
                .await
                .map_err(|source| InboxError::Mysql {
                    id: String::new(),
                    source,
                })?;
            Err::<(), _>(InboxError::TooMany { count: 0 })
        })
        .await;
    assert!(matches!(
        failed,
        Err(TransactionError::Body(InboxError::TooMany { .. }))
    ));
    assert_eq!(claim().await?, Claim::First);
    assert_eq!(claim().await?, Claim::Duplicate);
    let done = "SELECT COUNT(*) FROM inbox_events WHERE processed_at IS NOT NULL";
    assert_eq!(place.number(done).await?, 1);
    assert_eq!(place.number("SELECT SUM(n) FROM t").await?, 0);
    Ok(database.close().await?)
}

async fn an_inbox_claims_many(place: Place) -> Result<()> {
    let database = place.database(Settings::default()).await?;
    let claim = async |ids: &[&str]| {
        let events: Vec<Event<'_>> = ids
            .iter()
            .map(|id| Event {
                id,
                kind: "ThingMade",
                payload: "{}",
            })
            .collect();
        database
            .transaction(ReadCommitted, async |tx| {
                inbox::claim_all(tx, &events).await
            })
            .await
    };
    use Claim::{Duplicate, First};
    assert_eq!(claim(&[]).await?, []);
    assert_eq!(claim(&["a", "b", "a"]).await?, [First, First, Duplicate]);
    assert_eq!(
        claim(&["c", "b", "d", "c"]).await?,
        [First, Duplicate, First, Duplicate]
    );
    assert_eq!(claim(&["a", "b"]).await?, [Duplicate, Duplicate]);
    assert_eq!(place.number("SELECT COUNT(*) FROM inbox_events").await?, 4);
    let long = "x".repeat(256);
    let error = claim(&["e", &long]).await.err().context("it succeeded")?;
    assert_eq!(
        error.to_string(),
        "event_id has 256 characters; its column holds 255"
    );
    let many = vec!["z"; inbox::CLAIM_ALL_MAX + 1];
    assert!(claim(&many).await.is_err());
    assert_eq!(place.number("SELECT COUNT(*) FROM inbox_events").await?, 4);
    Ok(database.close().await?)
}

async fn two_consumers_claim_one_event(place: Place) -> Result<()> {
    let database = place.database(Settings::default()).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for consumer in 0..8 {
        let database = database.clone();
        tasks.spawn(async move {
            let mut effects = 0;
            for n in 0..20 {
                let id = format!("thing:{n}");
                let claims = database
                    .transaction(ReadCommitted, async move |tx| {
                        let event = Event {
                            id: &id,
                            kind: "ThingMade",
                            payload: "{}",
                        };
                        if consumer % 2 == 0 {
                            inbox::claim_all(tx, &[event]).await
                        } else {
                            Ok(vec![inbox::claim(tx, &event).await?])
                        }
                    })
                    .await?;
                effects += usize::from(claims == [Claim::First]);
            }
            anyhow::Ok(effects)
        });
    }
    let effects: Vec<usize> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    assert_eq!(effects.iter().sum::<usize>(), 20);
    Ok(database.close().await?)
}

async fn a_deadlock_runs_the_whole_transaction_again(place: Place) -> Result<()> {
    let database = place.database(Settings::default()).await?;
    let both_hold_one = Arc::new(Barrier::new(2));
    let runs = Arc::new(AtomicU32::new(0));
    let crossing = |first: u32, second: u32| {
        let (database, barrier, runs) = (database.clone(), both_hold_one.clone(), runs.clone());
        tokio::spawn(async move {
            let mut met = false;
            database
                .transaction(ReadCommitted, async move |tx| {
                    runs.fetch_add(1, Ordering::Relaxed);
                    tx.exec_drop("UPDATE t SET n = n + 1 WHERE id = ?", (first,))
                        .await?;
                    if !met {
                        met = true;
                        barrier.wait().await;
                    }
                    tx.exec_drop("UPDATE t SET n = n + 10 WHERE id = ?", (second,))
                        .await
                })
                .await
        })
    };
    let (one, two) = (crossing(1, 2), crossing(2, 1));
    one.await??;
    two.await??;
    // The loser's first update is not counted twice.
    assert_eq!(place.number("SELECT SUM(n) FROM t").await?, 22);
    assert_eq!((runs.load(Ordering::Relaxed), database.deadlocks()), (3, 1));
    Ok(database.close().await?)
}

async fn a_lock_timeout_is_retried_and_then_reported(place: Place) -> Result<()> {
    let settings = Settings {
        lock_wait_seconds: 1,
        attempts: 2,
        ..Settings::default()
    };
    let database = place.database(settings).await?;
    let mut holder = place.connect().await?;
    holder.query_drop("BEGIN").await?;
    holder.query_drop("UPDATE t SET n = 5 WHERE id = 2").await?;
    let change = async || {
        database
            .transaction(ReadCommitted, async |tx| {
                tx.query_drop("UPDATE t SET n = n + 1 WHERE id = 1").await?;
                tx.query_drop("UPDATE t SET n = n + 1 WHERE id = 2").await
            })
            .await
    };
    let error = change().await.err().context("it succeeded")?;
    assert!(
        matches!(error, TransactionError::Contended { attempts: 2, .. }),
        "{error:?}"
    );
    assert_eq!(database.lock_timeouts(), 2);
    // Only the statement was undone by the server; the rest by us.
    assert_eq!(place.number("SELECT n FROM t WHERE id = 1").await?, 0);
    let release = async {
        sleep(Duration::from_millis(1300)).await;
        holder.query_drop("COMMIT").await
    };
    let (changed, released) = tokio::join!(change(), release);
    changed?;
    released?;
    assert_eq!(database.lock_timeouts(), 3);
    assert_eq!(place.number("SELECT SUM(n) FROM t").await?, 7);
    holder.disconnect().await?;
    Ok(database.close().await?)
}

async fn an_error_of_the_closure_is_not_retried(place: Place) -> Result<()> {
    let database = place.database(Settings::default()).await?;
    let mut runs = 0;
    let error = database
        .transaction(ReadCommitted, async |tx| {
            runs += 1;
            tx.query_drop("UPDATE t SET n = 1").await?;
            tx.query_drop("INSERT INTO t (id) VALUES (1)").await
        })
        .await
        .err()
        .context("it succeeded")?;
    assert!(matches!(error, TransactionError::Body(_)), "{error:?}");
    assert_eq!(runs, 1);
    assert_eq!(place.number("SELECT SUM(n) FROM t").await?, 0);
    Ok(database.close().await?)
}

async fn an_ignored_deadlock_is_noticed(place: Place) -> Result<()> {
    let database = place.database(Settings::default()).await?;
    let both_hold_one = Barrier::new(2);
    let careless = async |first: u32, second: u32, last: &str| {
        database
            .transaction(ReadCommitted, async |tx| {
                tx.exec_drop("UPDATE t SET n = n + 1 WHERE id = ?", (first,))
                    .await?;
                both_hold_one.wait().await;
                let crossed = tx
                    .exec_drop("UPDATE t SET n = n + 10 WHERE id = ?", (second,))
                    .await;
                if crossed.is_err() && !last.is_empty() {
                    tx.query_drop(last).await?;
                }
                Ok::<_, mysql_async::Error>(crossed.is_err())
            })
            .await
    };
    for last in ["", "UPDATE t SET n = n + 100", "SELECT * FROM t"] {
        let (one, two) = tokio::join!(careless(1, 2, last), careless(2, 1, last));
        let outcomes = [one, two];
        let count = |wanted: fn(&Outcome) -> bool| outcomes.iter().filter(|o| wanted(o)).count();
        type Outcome = Result<bool, TransactionError<mysql_async::Error>>;
        assert_eq!(
            (
                count(|outcome| matches!(outcome, Ok(false))),
                count(|outcome| matches!(outcome, Err(TransactionError::Ended)))
            ),
            (1, 1),
            "{last:?}: {outcomes:?}"
        );
    }
    Ok(database.close().await?)
}

async fn a_dropped_transaction_leaves_nothing(place: Place) -> Result<()> {
    // One connection: whoever comes next gets the one that was dropped, or a new one in its place.
    let database = place
        .database(Settings {
            max_connections: 1,
            ..Settings::default()
        })
        .await?;
    for within_a_statement in [false, true, false] {
        let dropped = database.transaction(ReadCommitted, async |tx| {
            tx.query_drop("UPDATE t SET n = n + 1").await?;
            if within_a_statement {
                tx.query_drop("DO SLEEP(2)").await?;
            }
            std::future::pending::<mysql_async::Result<()>>().await
        });
        ensure!(timeout(Duration::from_millis(300), dropped).await.is_err());
        let started = Instant::now();
        let seen = database
            .transaction(ReadCommitted, async |tx| {
                tx.query_first::<u64, _>("SELECT SUM(n) FROM t FOR UPDATE")
                    .await
            })
            .await?;
        assert_eq!(seen, Some(0));
        // The server finishes the statement before it looks at the connection.
        ensure!(
            started.elapsed() < Duration::from_secs(4),
            "{:?}",
            started.elapsed()
        );
    }
    Ok(database.close().await?)
}

async fn transactions_dropped_at_any_moment_are_whole(place: Place) -> Result<()> {
    let database = place
        .database(Settings {
            max_connections: 4,
            ..Settings::default()
        })
        .await?;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u32 {
        let database = database.clone();
        tasks.spawn(async move {
            for n in 0..40_u32 {
                let id = 1000 + task * 1000 + n * 2;
                let pair = database.transaction(ReadCommitted, async move |tx| {
                    tx.exec_drop("INSERT INTO t (id) VALUES (?)", (id,)).await?;
                    tx.query_iter("SELECT * FROM t").await?;
                    tx.exec_drop("INSERT INTO t (id) VALUES (?)", (id + 1,))
                        .await
                });
                let moment = Duration::from_micros(u64::from((task * 40 + n) * 37 % 12_000));
                if let Ok(outcome) = timeout(moment, pair).await {
                    outcome?;
                }
            }
            anyhow::Ok(())
        });
    }
    tasks.join_all().await.into_iter().collect::<Result<()>>()?;
    // The pool is as good as new: all its connections, none in a transaction.
    let mut loans = Vec::new();
    for _ in 0..4 {
        loans.push(database.connection().await?);
    }
    drop(loans);
    database.close().await?;
    let halves = "SELECT COUNT(*) FROM t a WHERE id >= 1000 AND NOT EXISTS \
                  (SELECT 1 FROM t b WHERE b.id = a.id ^ 1)";
    assert_eq!(place.number(halves).await?, 0);
    ensure!(
        place.number("SELECT COUNT(*) FROM t").await? > 2,
        "none was committed"
    );
    Ok(())
}

async fn a_lost_commit_is_unknown_and_not_retried(place: Place) -> Result<()> {
    let database = place.database(Settings::default()).await?;
    let mut admin = place.connect().await?;
    let mut runs = 0;
    let error = database
        .transaction(ReadCommitted, async |tx| {
            runs += 1;
            tx.query_drop("UPDATE t SET n = 1").await?;
            admin.query_drop(format!("KILL {}", tx.id())).await
        })
        .await
        .err()
        .context("it succeeded")?;
    admin.disconnect().await?;
    assert!(error.outcome_unknown(), "{error:?}");
    assert_eq!(runs, 1);
    // The pool has a good connection for the next one.
    database
        .transaction(ReadCommitted, async |tx| tx.query_drop("DO 1").await)
        .await?;
    Ok(database.close().await?)
}

async fn a_slow_transaction_is_rolled_back(place: Place) -> Result<()> {
    let settings = Settings {
        attempt_timeout: Duration::from_millis(300),
        ..Settings::default()
    };
    let database = place.database(settings).await?;
    let error = database
        .transaction(ReadCommitted, async |tx| {
            tx.query_drop("UPDATE t SET n = 1").await?;
            tx.query_drop("DO SLEEP(2)").await
        })
        .await
        .err()
        .context("it succeeded")?;
    assert!(
        matches!(error, TransactionError::Timeout { .. }),
        "{error:?}"
    );
    assert_eq!(place.number("SELECT SUM(n) FROM t").await?, 0);
    Ok(database.close().await?)
}

async fn connection_errors_say_what_and_where(place: Place) -> Result<()> {
    let brisk = Settings {
        max_connections: 1,
        acquire_timeout: Duration::from_millis(100),
        ..Settings::default()
    };
    let database = Database::new(&place.url, brisk.clone());
    let loan = database.connection().await?;
    let error = database.connection().await.err().context("it succeeded")?;
    assert!(
        matches!(error, ConnectError::Busy { connections: 1, .. }),
        "{error:?}"
    );
    drop(loan);
    database.close().await?;

    let options = Opts::from(place.url.options());
    let (host, port) = (options.ip_or_hostname(), options.tcp_port());
    let (user, name) = (place.url.user(), place.url.database());
    let wrong = Database::new(
        &format!("mysql://{user}:s3cret@{host}:{port}/{name}").parse()?,
        brisk.clone(),
    );
    let error = wrong.connection().await.err().context("it succeeded")?;
    let text = format!("{:#}", anyhow::Error::new(error));
    ensure!(text.contains(user) && text.contains("1045"), "{text}");
    ensure!(!text.contains("s3cret"), "{text}");

    // Port 1 of this host is nobody's.
    let nowhere = Database::new(&"mysql://u:s3cret@127.0.0.1:1/d".parse()?, brisk.clone());
    let error = nowhere.connection().await.err().context("it succeeded")?;
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");

    // Accepts, and never says a word.
    let mute = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("mysql://u:p@{}/d", mute.local_addr()?);
    let settings = Settings {
        connect_timeout: Duration::from_millis(200),
        ..brisk
    };
    let error = Database::new(&url.parse()?, settings)
        .connection()
        .await
        .err()
        .context("it succeeded")?;
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error:?}");
    Ok(())
}
