//! The command queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mysql_async::Transaction;
use mysql_async::prelude::Queryable as _;
use reliability::claim::Form;
use reliability::commands::{
    BoxError, Command, CommandError, Enqueued, Failed, Handler, NewCommand, Queue, Settings,
    enqueue,
};
use reliability::migrate;
use reliability::mysql::IsolationLevel::ReadCommitted;
use reliability::mysql::{Database, TransactionError};
use reliability::resilience::Backoff;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{Place, on_both_servers};

on_both_servers! {
    each_takes_effect_once_with_skip_locked
    each_takes_effect_once_with_tokens
    a_key_names_one_command
    a_command_goes_with_its_transaction
    an_expired_lease_is_claimed_and_fences_the_late
    a_command_is_done_when_it_is_time
    a_poisonous_command_fails_and_stops_nobody
    a_command_that_kills_its_workers_fails
    an_ignored_deadlock_is_not_done
    stopping_puts_back_what_is_not_done
    claims_are_served_by_their_index
    the_migration_runs_twice_and_on_old_rows
}

fn quick() -> Settings {
    Settings {
        backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(5)),
        poll_interval: Duration::from_millis(20),
        ..Settings::default()
    }
}

async fn put(database: &Database, kind: &'static str, payload: u32) -> Result<u64> {
    let enqueued = database
        .transaction(ReadCommitted, async |tx| {
            enqueue(tx, &NewCommand::new(kind, &payload)).await
        })
        .await?;
    match enqueued {
        Enqueued::New(id) => Ok(id),
        Enqueued::Duplicate => anyhow::bail!("a duplicate without a key"),
    }
}

/// Waits until `sql` gives `wanted`.
pub(crate) async fn until(place: &Place, sql: &str, wanted: u64) -> Result<()> {
    let seen = async {
        while place.number(sql).await? != wanted {
            sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    timeout(Duration::from_secs(60), seen)
        .await
        .with_context(|| format!("never {wanted}: {sql}"))?
}

/// One effect a command, counted in the table `t`: the id is the payload.
struct Count;

impl Handler for Count {
    async fn handle(&self, tx: &mut Transaction<'_>, command: &Command) -> Result<(), BoxError> {
        let id: u32 = command.payload()?;
        tx.exec_drop(
            "INSERT INTO t (id, n) VALUES (?, 1) ON DUPLICATE KEY UPDATE n = n + 1",
            (id,),
        )
        .await?;
        tokio::task::yield_now().await;
        Ok(())
    }
}

async fn each_takes_effect_once_with_skip_locked(place: Place) -> Result<()> {
    each_takes_effect_once(place, Form::SkipLocked).await
}

async fn each_takes_effect_once_with_tokens(place: Place) -> Result<()> {
    each_takes_effect_once(place, Form::Token).await
}

async fn each_takes_effect_once(place: Place, form: Form) -> Result<()> {
    const COMMANDS: u32 = 300;
    let database = place
        .database(reliability::mysql::Settings {
            max_connections: 24,
            acquire_timeout: Duration::from_secs(30),
            ..Default::default()
        })
        .await?;
    for n in 0..COMMANDS {
        put(&database, "count", 1000 + n).await?;
    }
    let stop = CancellationToken::new();
    let worker = |_| {
        let settings = Settings {
            form,
            concurrency: 3,
            // What the killed leave is taken over soon; what is too slow is done again, and once.
            lease: Duration::from_secs(1),
            attempts: 50,
            ..quick()
        };
        let (queue, stop) = (Queue::new(database.clone(), settings), stop.clone());
        tokio::spawn(async move { queue.run(stop, Count).await })
    };
    let workers: Vec<_> = (0..8).map(worker).collect();
    let done = "SELECT COUNT(*) FROM command_queue WHERE status = 'DONE'";
    while place.number(done).await? < 40 {
        sleep(Duration::from_millis(5)).await;
    }
    let mut workers = workers.into_iter();
    workers.by_ref().take(3).for_each(|worker| worker.abort());
    until(&place, done, u64::from(COMMANDS)).await?;
    stop.cancel();
    for worker in workers {
        worker.await?;
    }
    let effects = "SELECT COUNT(*) FROM t WHERE id >= 1000 AND n = 1";
    assert_eq!(place.number(effects).await?, u64::from(COMMANDS));
    let others = "SELECT COUNT(*) FROM t WHERE id >= 1000 AND n <> 1";
    assert_eq!(place.number(others).await?, 0);
    Ok(database.close().await?)
}

async fn a_key_names_one_command(place: Place) -> Result<()> {
    let database = place.database(Default::default()).await?;
    let both = database
        .transaction(ReadCommitted, async |tx| {
            let first = enqueue(tx, &NewCommand::new("a", &1).key("k")).await?;
            let other_case = enqueue(tx, &NewCommand::new("a", &1).key("K")).await?;
            let again = enqueue(tx, &NewCommand::new("b", &2).key("k")).await?;
            Ok::<_, CommandError>([first, other_case, again])
        })
        .await?;
    ensure!(matches!(
        both,
        [Enqueued::New(_), Enqueued::New(_), Enqueued::Duplicate]
    ));
    let empty = database
        .transaction(ReadCommitted, async |tx| {
            enqueue(tx, &NewCommand::new("", &1)).await
        })
        .await;
    assert_eq!(
        empty.err().context("it succeeded")?.to_string(),
        "command_type is empty"
    );
    let queue = Queue::new(database.clone(), quick());
    let claimed = queue.claim(8).await?;
    assert_eq!(claimed.len(), 2);
    let first = claimed.first().context("none")?;
    assert_eq!(
        (
            first.command_type.as_str(),
            first.key.as_deref(),
            first.json(),
            first.attempt
        ),
        ("a", Some("k"), "1", 1)
    );
    ensure!(first.payload::<String>().is_err());
    Ok(database.close().await?)
}

async fn a_command_goes_with_its_transaction(place: Place) -> Result<()> {
    let database = place.database(Default::default()).await?;
    let undone = database
        .transaction(ReadCommitted, async |tx| {
            enqueue(tx, &NewCommand::new("a", &1)).await?;
            Err::<(), _>(CommandError::Lost { id: 0 })
        })
        .await;
    ensure!(undone.is_err());
    let queue = Queue::new(database.clone(), quick());
    assert_eq!(queue.claim(8).await?, []);
    // The columns of the original write-up are enough.
    let mut conn = place.connect().await?;
    conn.query_drop("SET time_zone = '+00:00'").await?;
    conn.query_drop("INSERT INTO command_queue (command_type, payload) VALUES ('plain', '{}')")
        .await?;
    conn.disconnect().await?;
    assert_eq!(queue.claim(8).await?.len(), 1);
    Ok(database.close().await?)
}

async fn an_expired_lease_is_claimed_and_fences_the_late(place: Place) -> Result<()> {
    for form in [Form::SkipLocked, Form::Token] {
        let database = if form == Form::SkipLocked {
            place.database(Default::default()).await?
        } else {
            Database::new(&place.url, Default::default())
        };
        put(&database, "count", 1).await?;
        let settings = Settings { form, ..quick() };
        let brief = Settings {
            lease: Duration::ZERO,
            ..settings.clone()
        };
        let slow = Queue::new(database.clone(), brief);
        let quick = Queue::new(database.clone(), settings);
        let late = slow.claim(1).await?.pop().context("nothing to claim")?;
        let taken = quick.claim(1).await?.pop().context("not taken over")?;
        assert_eq!((late.id, taken.id, taken.attempt), (late.id, late.id, 2));
        assert_eq!(quick.claim(1).await?, []);
        let finish = async |queue: &Queue, command: &Command| {
            database
                .transaction(ReadCommitted, async |tx| {
                    tx.query_drop("UPDATE t SET n = n + 1 WHERE id = 1")
                        .await
                        .map_err(|source| CommandError::Mysql {
                            doing: "count",
                            source,
                        })?;
                    queue.done(tx, command).await
                })
                .await
        };
        let lost = |outcome: &Result<(), TransactionError<CommandError>>| {
            matches!(
                outcome,
                Err(TransactionError::Body(CommandError::Lost { .. }))
            )
        };
        ensure!(lost(&finish(&slow, &late).await));
        ensure!(matches!(
            slow.failed(&late, "no").await,
            Err(CommandError::Lost { .. })
        ));
        finish(&quick, &taken).await?;
        ensure!(lost(&finish(&slow, &late).await));
        ensure!(lost(&finish(&quick, &taken).await));
        ensure!(slow.release(&late).await.is_err());
        assert_eq!(place.number("SELECT n FROM t WHERE id = 1").await?, 1);
        let mut conn = place.connect().await?;
        conn.query_drop("UPDATE t SET n = 0").await?;
        conn.disconnect().await?;
        database.close().await?;
    }
    Ok(())
}

async fn a_command_is_done_when_it_is_time(place: Place) -> Result<()> {
    let database = place.database(Default::default()).await?;
    database
        .transaction(ReadCommitted, async |tx| {
            let later = NewCommand::new("later", &1).delay(Duration::from_secs(3600));
            enqueue(tx, &later).await?;
            let never = NewCommand::new("never", &1).delay(Duration::MAX);
            enqueue(tx, &never).await
        })
        .await?;
    let queue = Queue::new(database.clone(), quick());
    assert_eq!(queue.claim(8).await?, []);
    let mut conn = place.connect().await?;
    conn.query_drop("UPDATE command_queue SET available_at = available_at - INTERVAL 3601 SECOND")
        .await?;
    conn.disconnect().await?;
    let due = queue.claim(8).await?;
    assert_eq!(due.len(), 1);
    // The delay after a failure is honoured too.
    let settings = Settings {
        backoff: Backoff::new(Duration::from_secs(600), Duration::from_secs(600)),
        ..quick()
    };
    let patient = Queue::new(database.clone(), settings);
    let failed = patient.failed(due.first().context("none")?, "no").await?;
    ensure!(matches!(failed, Failed::Again(delay) if delay >= Duration::from_secs(300)));
    assert_eq!(patient.claim(8).await?, []);
    Ok(database.close().await?)
}

/// Fails in the way that the type of the command says; counts deadlocks, and what it is told of.
#[derive(Clone, Default)]
struct Moody(Arc<AtomicU32>, Arc<AtomicU32>);

impl Handler for Moody {
    async fn handle(&self, tx: &mut Transaction<'_>, command: &Command) -> Result<(), BoxError> {
        Count.handle(tx, command).await?;
        match command.command_type.as_str() {
            "poison" => Err("it is poisonous".into()),
            "panic" => std::panic::resume_unwind(Box::new("it is a bomb")),
            "deadlock" if self.0.fetch_add(1, Ordering::Relaxed) < 2 => {
                Err(Box::new(mysql_async::ServerError {
                    code: 1213,
                    state: "40001".to_owned(),
                    message: "Deadlock found".to_owned(),
                }))
            }
            "hang" => std::future::pending().await,
            _ => Ok(()),
        }
    }

    fn committed(&self, _command: &Command) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

async fn a_poisonous_command_fails_and_stops_nobody(place: Place) -> Result<()> {
    let database = place.database(Default::default()).await?;
    for (n, kind) in ["poison", "panic", "deadlock"]
        .into_iter()
        .cycle()
        .take(9)
        .enumerate()
    {
        put(&database, kind, 100 + u32::try_from(n)?).await?;
    }
    put(&database, "fine", 200).await?;
    let settings = Settings {
        attempts: 3,
        concurrency: 2,
        ..quick()
    };
    let queue = Queue::new(database.clone(), settings);
    let stop = CancellationToken::new();
    let moody = Moody::default();
    let worker = {
        let (queue, stop, moody) = (queue.clone(), stop.clone(), moody.clone());
        tokio::spawn(async move { queue.run(stop, moody).await })
    };
    let open = "SELECT COUNT(*) FROM command_queue WHERE status IN ('PENDING', 'PROCESSING')";
    until(&place, open, 0).await?;
    stop.cancel();
    worker.await?;
    let failed = "SELECT COUNT(*) FROM command_queue WHERE status = 'FAILED' AND attempts = 3 AND \
        last_error IN ('the handler failed: it is poisonous', 'the handler panicked: it is a bomb')";
    assert_eq!(place.number(failed).await?, 6);
    // A deadlock is no failed attempt: the whole transaction ran again.
    let fine = "SELECT COUNT(*) FROM command_queue WHERE status = 'DONE' AND attempts = 1";
    assert_eq!(place.number(fine).await?, 4);
    assert_eq!(database.deadlocks(), 2);
    assert_eq!(
        place
            .number("SELECT COUNT(*) FROM t WHERE id >= 100 AND n = 1")
            .await?,
        4
    );
    let counters = queue.counters();
    assert_eq!(
        (counters.done, counters.failed_attempts, counters.given_up),
        (4, 18, 6)
    );
    assert_eq!(moody.1.load(Ordering::Relaxed), 4);
    Ok(database.close().await?)
}

async fn a_command_that_kills_its_workers_fails(place: Place) -> Result<()> {
    let database = place.database(Default::default()).await?;
    put(&database, "kill", 1).await?;
    let settings = Settings {
        lease: Duration::ZERO,
        attempts: 3,
        ..quick()
    };
    let queue = Queue::new(database.clone(), settings);
    for attempt in 1..=3 {
        assert_eq!(
            queue.claim(2).await?.first().map(|c| c.attempt),
            Some(attempt)
        );
    }
    assert_eq!(queue.claim(2).await?, []);
    let failed = "SELECT COUNT(*) FROM command_queue WHERE status = 'FAILED' AND last_error LIKE '%gave up%'";
    assert_eq!(place.number(failed).await?, 1);
    assert_eq!(queue.counters().given_up, 1);
    Ok(database.close().await?)
}

/// Ends its transaction and says nothing.
struct Careless;

impl Handler for Careless {
    async fn handle(&self, tx: &mut Transaction<'_>, command: &Command) -> Result<(), BoxError> {
        Count.handle(tx, command).await?;
        tx.query_drop("ROLLBACK").await?;
        Ok(())
    }
}

async fn an_ignored_deadlock_is_not_done(place: Place) -> Result<()> {
    let database = place.database(Default::default()).await?;
    put(&database, "careless", 100).await?;
    let settings = Settings {
        attempts: 1,
        ..quick()
    };
    let queue = Queue::new(database.clone(), settings);
    let stop = CancellationToken::new();
    let worker = tokio::spawn({
        let stop = stop.clone();
        async move { queue.run(stop, Careless).await }
    });
    let failed = "SELECT COUNT(*) FROM command_queue WHERE status = 'FAILED'";
    until(&place, failed, 1).await?;
    stop.cancel();
    worker.await?;
    Ok(database.close().await?)
}

async fn stopping_puts_back_what_is_not_done(place: Place) -> Result<()> {
    let database = place.database(Default::default()).await?;
    put(&database, "hang", 100).await?;
    let settings = Settings {
        stop_timeout: Duration::from_millis(50),
        ..quick()
    };
    let queue = Queue::new(database.clone(), settings);
    let stop = CancellationToken::new();
    let worker = {
        let (queue, stop) = (queue.clone(), stop.clone());
        tokio::spawn(async move { queue.run(stop, Moody::default()).await })
    };
    let at_work = "SELECT COUNT(*) FROM command_queue WHERE status = 'PROCESSING'";
    until(&place, at_work, 1).await?;
    stop.cancel();
    worker.await?;
    let put_back = "SELECT COUNT(*) FROM command_queue \
        WHERE status = 'PENDING' AND attempts = 0 AND locked_by IS NULL AND available_at <= UTC_TIMESTAMP(6)";
    assert_eq!(place.number(put_back).await?, 1);
    assert_eq!(
        place
            .number("SELECT COUNT(*) FROM t WHERE id = 100")
            .await?,
        0
    );
    Ok(database.close().await?)
}

async fn claims_are_served_by_their_index(place: Place) -> Result<()> {
    let database = place.database(Default::default()).await?;
    let mut conn = database.connection().await?;
    conn.query_drop("INSERT INTO command_queue (command_type, payload) VALUES ('a', '{}')")
        .await?;
    for _ in 0..11 {
        conn.query_drop(
            "INSERT INTO command_queue (command_type, payload, status, available_at) \
             SELECT command_type, payload, 'DONE', NULL FROM command_queue",
        )
        .await?;
    }
    conn.query_drop("ANALYZE TABLE command_queue").await?;
    drop(conn);
    for form in [Form::SkipLocked, Form::Token] {
        let queue = Queue::new(database.clone(), Settings { form, ..quick() });
        let plan = queue.claim_plan().await?;
        ensure!(plan.contains("key='idx_command_due'"), "{plan}");
        ensure!(plan.contains("type='range'"), "{plan}");
        ensure!(!plan.contains("filesort"), "{plan}");
        ensure!(
            plan.contains("rows=1 ") || plan.contains("rows='1'"),
            "{plan}"
        );
    }
    Ok(database.close().await?)
}

async fn the_migration_runs_twice_and_on_old_rows(place: Place) -> Result<()> {
    let mut conn = place.connect().await?;
    migrate::run(&mut conn, &[migrate::RELIABILITY]).await?;
    conn.query_drop(
        "INSERT INTO command_queue (command_type, payload, status) VALUES ('a', '{}', 'DONE'), ('b', '{}', 'PENDING')",
    )
    .await?;
    conn.query_drop(
        "INSERT INTO saga_instances (id, saga_type, correlation_id, status, payload) \
         VALUES ('1', 's', 'a', 'RUNNING', '{}'), ('2', 's', 'b', 'COMPLETED', '{}')",
    )
    .await?;
    for _ in 0..2 {
        migrate::run(&mut conn, &[migrate::RELIABILITY, migrate::LEASES]).await?;
        conn.query_drop("DELETE FROM schema_migrations WHERE version = 5")
            .await?;
    }
    conn.disconnect().await?;
    let due = "SELECT COUNT(*) FROM command_queue WHERE available_at IS NOT NULL";
    assert_eq!(place.number(due).await?, 1);
    let due = "SELECT COUNT(*) FROM saga_instances WHERE next_attempt_at = created_at";
    assert_eq!(place.number(due).await?, 1);
    Ok(())
}
