//! Idempotency keys on real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{Place, on_both_servers};
use anyhow::{Context as _, Result, bail, ensure};
use mysql_async::prelude::Queryable as _;
use reliability::idempotency::{
    Answer, Claim, Fingerprint, Idempotency, IdempotencyError, Key, Refusals, Settings, Ticket,
    WorkError,
};
use reliability::migrate;
use reliability::mysql::{IsolationLevel, Settings as PoolSettings, TransactionError};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

on_both_servers! {
    fifty_requests_with_one_key_have_one_effect
    an_answer_is_replayed_byte_for_byte
    another_request_with_the_key_is_refused
    keys_of_two_scopes_are_two
    a_dead_claim_is_taken_over_and_the_late_one_fenced_off
    what_fails_frees_the_key
    refusals_are_stored_or_not
    dropped_at_any_moment_it_is_done_once
    work_cut_off_by_the_server_frees_the_key
    first_requests_do_not_deadlock
    takeovers_do_not_deadlock
    expired_keys_are_cleaned_by_the_index
    an_expired_key_is_new_again
    the_migration_keeps_what_is_there
}

const EFFECTS: &str = "SELECT n FROM t WHERE id = 1";

impl Place {
    async fn keys(&self, settings: Settings) -> Result<Idempotency> {
        let pool = PoolSettings {
            max_connections: 32,
            ..PoolSettings::default()
        };
        let database = self.database(pool).await?;
        let mut conn = self.connect().await?;
        migrate::run(&mut conn, &[migrate::IDEMPOTENCY_KEYS]).await?;
        conn.disconnect().await?;
        Ok(Idempotency::new(database, settings))
    }

    async fn execute(&self, sql: &str) -> Result<()> {
        let mut conn = self.connect().await?;
        conn.query_drop(sql).await?;
        Ok(conn.disconnect().await?)
    }
}

fn key(text: &str) -> Key {
    let Ok(key) = Key::new(text) else {
        unreachable!("{text} is no key")
    };
    key
}

fn request() -> Fingerprint {
    Fingerprint::of("POST", "/things", b"{}")
}

async fn end(idempotency: Idempotency) -> Result<()> {
    idempotency.idle().await;
    Ok(idempotency.database().clone().close().await?)
}

/// One effect in `t`.
async fn work(ticket: Ticket) -> Result<Answer, TransactionError<WorkError<mysql_async::Error>>> {
    ticket
        .run(async move |tx| {
            tx.query_drop("UPDATE t SET n = n + 1 WHERE id = 1").await?;
            Ok(Answer::new(201, "done"))
        })
        .await
}

async fn fresh(idempotency: &Idempotency, key: &Key) -> Result<Ticket> {
    match idempotency.claim(key, &request()).await? {
        Claim::New(ticket) => Ok(ticket),
        other => bail!("not new: {other:?}"),
    }
}

/// As a client does: again and again, until there is an answer.
async fn insist(idempotency: &Idempotency, key: &Key) -> Result<Answer> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match idempotency.claim(key, &request()).await? {
            Claim::New(ticket) => return Ok(work(ticket).await?),
            Claim::Replay(answer) => return Ok(answer),
            Claim::InProgress { .. } => sleep(Duration::from_millis(5)).await,
            Claim::Mismatch => bail!("mismatch"),
        }
        ensure!(Instant::now() < deadline, "no answer");
    }
}

async fn fifty_requests_with_one_key_have_one_effect(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    let start = Arc::new(Barrier::new(50));
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let (idempotency, start) = (idempotency.clone(), start.clone());
        tasks.spawn(async move {
            start.wait().await;
            match idempotency.claim(&key("one"), &request()).await? {
                Claim::New(ticket) => Ok(("new", Some(work(ticket).await?))),
                Claim::Replay(answer) => Ok(("replay", Some(answer))),
                Claim::InProgress { .. } => Ok(("in progress", None)),
                Claim::Mismatch => bail!("mismatch"),
            }
        });
    }
    let outcomes: Vec<_> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    let count = |kind| outcomes.iter().filter(|(found, _)| *found == kind).count();
    assert_eq!(count("new"), 1);
    assert_eq!(count("replay") + count("in progress"), 49);
    ensure!(
        outcomes
            .iter()
            .flat_map(|(_, answer)| answer)
            .all(|answer| *answer == Answer::new(201, "done"))
    );
    assert_eq!(place.number(EFFECTS).await?, 1);
    let counts = idempotency.counts();
    assert_eq!(
        (counts.claimed, counts.replayed + counts.in_progress),
        (1, 49)
    );
    assert_eq!(idempotency.database().deadlocks(), 0);
    end(idempotency).await
}

async fn an_answer_is_replayed_byte_for_byte(place: Place) -> Result<()> {
    let settings = Settings {
        body_max: 3_000_000,
        ..Settings::default()
    };
    let idempotency = place.keys(settings).await?;
    let every_byte: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    let bodies = [
        Vec::new(),
        br#"{ "z": 1.50, "a": {"b": [ ]}, "a": 2 }"#.to_vec(),
        b"\xff\x00'\\\n".to_vec(),
        every_byte.clone(),
    ];
    for (number, body) in bodies.into_iter().enumerate() {
        let key = key(&format!("k{number}"));
        let given = Answer::new(202, body)
            .with_header("Content-Type", "application/json")
            .with_header("location", "/things/\"7\"?ж")
            .with_header("set-cookie", "secret");
        let stored = given.clone();
        let first = fresh(&idempotency, &key)
            .await?
            .run(async move |_| Ok::<_, mysql_async::Error>(stored.clone()))
            .await?;
        assert_eq!(first, given);
        let Claim::Replay(replayed) = idempotency.claim(&key, &request()).await? else {
            bail!("no replay")
        };
        assert_eq!((replayed.status(), replayed.body()), (202, given.body()));
        assert_eq!(
            replayed.headers(),
            given.headers().get(..2).unwrap_or_default()
        );
    }
    // A byte too many is an error, and nothing is done.
    let mut big = every_byte;
    big.push(0);
    let refused = fresh(&idempotency, &key("big"))
        .await?
        .run(async move |tx| {
            tx.query_drop("UPDATE t SET n = n + 1 WHERE id = 1").await?;
            Ok::<_, mysql_async::Error>(Answer::new(200, big.clone()))
        })
        .await;
    ensure!(matches!(
        refused,
        Err(TransactionError::Body(WorkError::Key(
            IdempotencyError::TooLarge {
                length: 3_000_001,
                ..
            }
        )))
    ));
    assert_eq!(place.number(EFFECTS).await?, 0);
    end(idempotency).await
}

async fn another_request_with_the_key_is_refused(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    let other = Fingerprint::of("POST", "/things", b"[]");
    let ticket = fresh(&idempotency, &key("k")).await?;
    for _ in 0..2 {
        ensure!(matches!(
            idempotency.claim(&key("k"), &other).await?,
            Claim::Mismatch
        ));
    }
    ensure!(matches!(
        idempotency.claim(&key("k"), &request()).await?,
        Claim::InProgress { retry_after } if retry_after == Duration::from_secs(1)
    ));
    work(ticket).await?;
    ensure!(matches!(
        idempotency.claim(&key("k"), &other).await?,
        Claim::Mismatch
    ));
    ensure!(matches!(
        idempotency.claim(&key("k"), &request()).await?,
        Claim::Replay(_)
    ));
    // Keys differ in case, too.
    fresh(&idempotency, &key("K")).await?.release().await?;
    assert_eq!(idempotency.counts().mismatched, 3);
    end(idempotency).await
}

async fn keys_of_two_scopes_are_two(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    for scope in ["", "tenant-1", "tenant-2"] {
        work(fresh(&idempotency, &key("k").scoped(scope)?).await?).await?;
    }
    let again = idempotency
        .claim(&key("k").scoped("tenant-1")?, &request())
        .await?;
    ensure!(matches!(again, Claim::Replay(_)));
    assert_eq!(place.number(EFFECTS).await?, 3);
    end(idempotency).await
}

const OVER: &str = "UPDATE idempotency_keys SET locked_until = NOW(6) - INTERVAL 1 SECOND WHERE status = 'PROCESSING'";

async fn a_dead_claim_is_taken_over_and_the_late_one_fenced_off(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    let late = fresh(&idempotency, &key("k")).await?;
    let claim = async || idempotency.claim(&key("k"), &request()).await;
    ensure!(matches!(claim().await?, Claim::InProgress { .. }));
    place.execute(OVER).await?;
    let other = Fingerprint::of("POST", "/things", b"[]");
    ensure!(matches!(
        idempotency.claim(&key("k"), &other).await?,
        Claim::Mismatch
    ));
    let second = fresh(&idempotency, &key("k")).await?;
    assert_eq!((late.fence(), second.fence()), (1, 2));
    // The late one did its work, and may not commit it: before and after the second's own.
    let fenced = work(late).await;
    ensure!(
        matches!(
            fenced,
            Err(TransactionError::Body(WorkError::Key(
                IdempotencyError::Fenced { .. }
            )))
        ),
        "{fenced:?}"
    );
    assert_eq!(place.number(EFFECTS).await?, 0);
    // Nor does its end free the second's claim.
    ensure!(matches!(claim().await?, Claim::InProgress { .. }));
    place.execute(OVER).await?;
    let third = fresh(&idempotency, &key("k")).await?;
    work(third).await?;
    ensure!(work(second).await.is_err());
    assert_eq!(place.number(EFFECTS).await?, 1);
    ensure!(matches!(claim().await?, Claim::Replay(_)));
    // A lease that is over, and nobody came: the claim is still good.
    let slow = fresh(&idempotency, &key("slow")).await?;
    place.execute(OVER).await?;
    work(slow).await?;
    assert_eq!(place.number(EFFECTS).await?, 2);
    let counts = idempotency.counts();
    assert_eq!(
        (
            counts.claimed,
            counts.taken_over,
            counts.fenced,
            counts.released
        ),
        (4, 2, 2, 0)
    );
    end(idempotency).await
}

async fn what_fails_frees_the_key(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    let ticket = fresh(&idempotency, &key("k")).await?;
    let failed = ticket
        .run(async move |tx| {
            tx.query_drop("UPDATE t SET n = n + 1 WHERE id = 1").await?;
            tx.query_drop("INSERT INTO t (id) VALUES (1)").await?;
            Ok::<_, mysql_async::Error>(Answer::new(201, ""))
        })
        .await;
    ensure!(matches!(
        failed,
        Err(TransactionError::Body(WorkError::Work(_)))
    ));
    // At once: no request in between is told that it is in progress.
    let ticket = fresh(&idempotency, &key("k")).await?;
    let failed = ticket
        .run(async move |tx| {
            tx.query_drop("UPDATE t SET n = n + 1 WHERE id = 1").await?;
            Ok::<_, mysql_async::Error>(Answer::new(500, "broken"))
        })
        .await;
    ensure!(matches!(
        failed,
        Err(TransactionError::Body(WorkError::Unstored(answer))) if answer.status() == 500
    ));
    // A released key is free for another request as well.
    let other = Fingerprint::of("POST", "/things", b"[]");
    let Claim::New(ticket) = idempotency.claim(&key("k"), &other).await? else {
        bail!("not free")
    };
    assert_eq!(ticket.fence(), 3);
    drop(ticket);
    idempotency.idle().await;
    assert_eq!(place.number(EFFECTS).await?, 0);
    work(fresh(&idempotency, &key("k")).await?).await?;
    assert_eq!(
        (place.number(EFFECTS).await?, idempotency.counts().released),
        (1, 3)
    );
    end(idempotency).await
}

async fn refusals_are_stored_or_not(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    let settings = Settings {
        refusals: Refusals::Release,
        ..Settings::default()
    };
    let lenient = Idempotency::new(idempotency.database().clone(), settings);
    let refuse = async |ticket: Ticket| {
        ticket
            .run(async move |_| Ok::<_, mysql_async::Error>(Answer::new(409, "sold out")))
            .await
    };
    assert_eq!(
        refuse(fresh(&idempotency, &key("strict")).await?)
            .await?
            .status(),
        409
    );
    let Claim::Replay(answer) = idempotency.claim(&key("strict"), &request()).await? else {
        bail!("not stored")
    };
    assert_eq!(answer, Answer::new(409, "sold out"));
    ensure!(matches!(
        refuse(fresh(&lenient, &key("lenient")).await?).await,
        Err(TransactionError::Body(WorkError::Unstored(_)))
    ));
    work(fresh(&lenient, &key("lenient")).await?).await?;
    lenient.idle().await;
    end(idempotency).await
}

/// Cut at every moment from the first byte of the claim to the answer, as by a client that hangs up.
async fn dropped_at_any_moment_it_is_done_once(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    let whole = Instant::now();
    insist(&idempotency, &key("whole")).await?;
    let whole = whole.elapsed();
    let (mut tasks, cut) = (JoinSet::new(), Arc::new(AtomicU32::new(0)));
    for number in 0..60_u32 {
        let (idempotency, cut) = (idempotency.clone(), cut.clone());
        tasks.spawn(async move {
            let key = key(&format!("k{number}"));
            for round in 0..3 {
                let moment = whole * (number * 3 + round) / 90;
                if timeout(moment, insist(&idempotency, &key)).await.is_err() {
                    cut.fetch_add(1, Ordering::Relaxed);
                }
            }
            insist(&idempotency, &key).await
        });
    }
    for answer in tasks.join_all().await {
        assert_eq!(answer?, Answer::new(201, "done"));
    }
    ensure!(cut.load(Ordering::Relaxed) > 20, "hardly one was cut");
    assert_eq!(place.number(EFFECTS).await?, 61);
    let left = "SELECT COUNT(*) FROM idempotency_keys WHERE status <> 'COMPLETED'";
    assert_eq!(place.number(left).await?, 0);
    end(idempotency).await
}

/// The connection is killed before the work, after it, and after the completion.
async fn work_cut_off_by_the_server_frees_the_key(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    for step in 0..3 {
        let key = key(&format!("k{step}"));
        let ticket = fresh(&idempotency, &key).await?;
        let (completion, mut admin) = (ticket.completion(), place.connect().await?);
        let lost = idempotency
            .database()
            .transaction(IsolationLevel::ReadCommitted, async |tx| {
                for at in 0..3 {
                    if at == step {
                        admin
                            .query_drop(format!("KILL {}", tx.id()))
                            .await
                            .map_err(WorkError::Work)?;
                    }
                    match at {
                        0 => tx
                            .query_drop("UPDATE t SET n = n + 1 WHERE id = 1")
                            .await
                            .map_err(WorkError::Work)?,
                        1 => completion.complete(tx, &Answer::new(201, "done")).await?,
                        _ => {}
                    }
                }
                Ok::<_, WorkError<mysql_async::Error>>(())
            })
            .await;
        ensure!(lost.is_err(), "step {step}");
        drop(ticket);
        assert_eq!(insist(&idempotency, &key).await?, Answer::new(201, "done"));
        admin.disconnect().await?;
    }
    assert_eq!(place.number(EFFECTS).await?, 3);
    end(idempotency).await
}

async fn first_requests_do_not_deadlock(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    for round in 0..5 {
        let start = Arc::new(Barrier::new(64));
        let mut tasks = JoinSet::new();
        for number in 0..64 {
            let (idempotency, start) = (idempotency.clone(), start.clone());
            tasks.spawn(async move {
                start.wait().await;
                let ticket = fresh(&idempotency, &key(&format!("{round}-{number:03}"))).await?;
                anyhow::Ok(work(ticket).await?)
            });
        }
        tasks
            .join_all()
            .await
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
    }
    let database = idempotency.database();
    assert_eq!((database.deadlocks(), database.lock_timeouts()), (0, 0));
    assert_eq!(place.number(EFFECTS).await?, 320);
    end(idempotency).await
}

async fn takeovers_do_not_deadlock(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    let mut dead = Vec::new();
    for number in 0..8 {
        dead.push(fresh(&idempotency, &key(&format!("k{number}"))).await?);
    }
    place.execute(OVER).await?;
    let mut tasks = JoinSet::new();
    for number in 0..64 {
        let idempotency = idempotency.clone();
        tasks.spawn(async move { insist(&idempotency, &key(&format!("k{}", number % 8))).await });
    }
    tasks
        .join_all()
        .await
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    assert_eq!(place.number(EFFECTS).await?, 8);
    assert_eq!(
        (
            idempotency.counts().taken_over,
            idempotency.database().deadlocks()
        ),
        (8, 0)
    );
    drop(dead);
    end(idempotency).await
}

async fn by_the_index(place: &Place) -> Result<()> {
    let mut conn = place.connect().await?;
    let format = if conn.server_version() >= (10, 0, 0) {
        ""
    } else {
        "FORMAT = TRADITIONAL "
    };
    let plan: Option<mysql_async::Row> = conn
        .query_first(format!(
            "EXPLAIN {format}DELETE FROM idempotency_keys WHERE expires_at <= NOW(6) \
             AND (locked_until IS NULL OR locked_until <= NOW(6)) ORDER BY expires_at LIMIT 100"
        ))
        .await?;
    conn.disconnect().await?;
    let plan = plan.context("no plan")?;
    let column = |name| {
        plan.get::<Option<String>, _>(name)
            .flatten()
            .unwrap_or_default()
    };
    ensure!(column("key") == "idx_idempotency_expires", "{plan:?}");
    ensure!(!column("Extra").contains("filesort"), "{plan:?}");
    Ok(())
}

async fn expired_keys_are_cleaned_by_the_index(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    let rows: Vec<String> = (0..2000)
        .map(|n| {
            format!(
                "('k{n}', '', 'COMPLETED', NOW(6) + INTERVAL {} SECOND)",
                n - 1000
            )
        })
        .collect();
    place
        .execute(&format!(
            "INSERT INTO idempotency_keys (idempotency_key, request_hash, status, expires_at) VALUES {}",
            rows.join(", ")
        ))
        .await?;
    // A claim that stands is left, whatever its end; a dead one goes.
    place
        .execute(
            "INSERT INTO idempotency_keys (idempotency_key, request_hash, status, expires_at, locked_until) VALUES \
             ('alive', '', 'PROCESSING', NOW(6) - INTERVAL 1 DAY, NOW(6) + INTERVAL 1 HOUR), \
             ('dead', '', 'PROCESSING', NOW(6) - INTERVAL 1 DAY, NOW(6) - INTERVAL 1 HOUR)",
        )
        .await?;
    place.execute("ANALYZE TABLE idempotency_keys").await?;
    by_the_index(&place).await?;
    assert_eq!(idempotency.clean(300).await?, 300);
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let idempotency = idempotency.clone();
        tasks.spawn(async move {
            let mut cleaned = 0;
            loop {
                match idempotency.clean(100).await? {
                    0 => return anyhow::Ok(cleaned),
                    some => cleaned += some,
                }
            }
        });
    }
    let cleaned: Vec<u64> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    // A second or more has passed since the first was inserted.
    ensure!(cleaned.iter().sum::<u64>() >= 702);
    let left = place
        .number("SELECT COUNT(*) FROM idempotency_keys WHERE idempotency_key LIKE 'k%'")
        .await?;
    ensure!((900..=999).contains(&left), "{left}");
    assert_eq!(
        place
            .number("SELECT COUNT(*) FROM idempotency_keys WHERE idempotency_key = 'alive'")
            .await?,
        1
    );
    end(idempotency).await
}

async fn an_expired_key_is_new_again(place: Place) -> Result<()> {
    let idempotency = place.keys(Settings::default()).await?;
    work(fresh(&idempotency, &key("k")).await?).await?;
    place
        .execute("UPDATE idempotency_keys SET expires_at = NOW(6)")
        .await?;
    let other = Fingerprint::of("POST", "/things", b"[]");
    let Claim::New(ticket) = idempotency.claim(&key("k"), &other).await? else {
        bail!("not new")
    };
    assert_eq!((ticket.fence(), idempotency.counts().taken_over), (2, 0));
    work(ticket).await?;
    ensure!(matches!(
        idempotency.claim(&key("k"), &other).await?,
        Claim::Replay(_)
    ));
    end(idempotency).await
}

async fn the_migration_keeps_what_is_there(place: Place) -> Result<()> {
    let mut conn = place.connect().await?;
    migrate::run(&mut conn, &[migrate::RELIABILITY]).await?;
    conn.query_drop(
        "INSERT INTO idempotency_keys (idempotency_key, request_hash, status, response_status, response_body) \
         VALUES ('old', 'hash', 'COMPLETED', 201, '{\"id\": 7}')",
    )
    .await?;
    for _ in 0..2 {
        migrate::run(&mut conn, &[migrate::IDEMPOTENCY_KEYS]).await?;
        // As if it had been cut short.
        conn.query_drop("DELETE FROM schema_migrations WHERE version = 6")
            .await?;
    }
    let row: Option<(String, String, bool)> = conn
        .query_first(
            "SELECT scope, response_body, expires_at = created_at + INTERVAL 1 DAY FROM idempotency_keys",
        )
        .await?;
    assert_eq!(row, Some((String::new(), "{\"id\": 7}".to_owned(), true)));
    // An insert that names the original columns only, as other programs make it.
    conn.query_drop("INSERT INTO idempotency_keys (idempotency_key, request_hash, status) VALUES ('new', 'hash', 'PROCESSING')")
        .await?;
    Ok(conn.disconnect().await?)
}
