//! Many workers, dead ones, paused ones, and sagas that nobody can work on.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use reliability::claim::Form;
use reliability::saga::{
    self, Definition, DefinitionError, Driven, Engine, Kind, Retried, SagaStatus, Settings, Step,
};

use super::world::{self, Act, Faults, KIND, Worker, World};
use crate::support::{Place, on_both_servers};

on_both_servers! {
    workers_with_skip_locked_share_the_sagas
    workers_with_tokens_share_the_sagas
    a_paused_worker_records_nothing
    a_paused_call_comes_too_late
    a_lease_is_renewed_while_a_call_runs
    a_worker_that_lost_its_lease_drops_the_call
    what_is_not_known_is_left_alone
    a_changed_definition_is_refused
    bad_sagas_stop_nobody
    a_saga_goes_on_without_its_caller
    stopping_finishes_the_step_or_lets_go
    claims_are_served_by_their_index
    definitions_are_checked
}

async fn workers_with_skip_locked_share_the_sagas(place: Place) -> Result<()> {
    workers_share_the_sagas(place, Form::SkipLocked).await
}

async fn workers_with_tokens_share_the_sagas(place: Place) -> Result<()> {
    workers_share_the_sagas(place, Form::Token).await
}

async fn workers_share_the_sagas(place: Place, form: Form) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    let mut sagas = Vec::new();
    for n in 0..40 {
        sagas.push(world::start(&database, &n.to_string()).await?);
    }
    let mut workers = Vec::new();
    let mut engines = Vec::new();
    for _ in 0..4 {
        let settings = Settings {
            concurrency: 3,
            form,
            ..world::settings()
        };
        let engine = Engine::new(database.clone(), vec![world.definition()?], settings)?;
        workers.push(Worker::new(&engine));
        engines.push(engine);
    }
    for saga in &sagas {
        world::until(&database, saga, SagaStatus::Completed).await?;
        world::balanced(&world, &database, saga, SagaStatus::Completed).await?;
        // No lease was over: nobody called twice.
        let calls = ["a", "c"].map(|step| world.calls(saga, step, "do"));
        assert_eq!(calls, [1, 1]);
    }
    for worker in workers {
        worker.stop().await?;
    }
    let completed: u64 = engines
        .iter()
        .map(|engine| engine.counters().completed)
        .sum();
    assert_eq!(completed, 40);
    Ok(database.close().await?)
}

async fn a_paused_worker_records_nothing(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    for point in [
        "record a: after",
        "record b: after",
        "record c: after",
        "end: after",
    ] {
        let world = World::new(Faults::none());
        let gate = world.gate(point);
        let slow = world.engine(&database)?;
        let saga = world::start(&database, point).await?;
        let paused = tokio::spawn({
            let (slow, saga) = (slow.clone(), saga.clone());
            async move { slow.drive(&saga).await }
        });
        gate.reached.cancelled().await;
        world::expire(&database, &saga).await?;
        let quick = world.engine(&database)?;
        let worker = Worker::new(&quick);
        world::until(&database, &saga, SagaStatus::Completed).await?;
        worker.stop().await?;
        assert_eq!(quick.counters().takeovers, 1);
        // It wakes, with its rows written and not committed.
        gate.open.cancel();
        assert_eq!(paused.await??, Some(Driven::Lost), "{point}");
        assert_eq!((slow.counters().lost, slow.counters().completed), (1, 0));
        world::balanced(&world, &database, &saga, SagaStatus::Completed).await?;
    }
    Ok(database.close().await?)
}

async fn a_paused_call_comes_too_late(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    let gate = world.gate("do c: before");
    let slow = world.engine(&database)?;
    let saga = world::start(&database, "one").await?;
    let paused = tokio::spawn({
        let (slow, saga) = (slow.clone(), saga.clone());
        async move { slow.drive(&saga).await }
    });
    gate.reached.cancelled().await;
    world::expire(&database, &saga).await?;
    world.script("do c", &[Act::Refuse]);
    let quick = world.engine(&database)?;
    let worker = Worker::new(&quick);
    world::until(&database, &saga, SagaStatus::Compensated).await?;
    worker.stop().await?;
    // The request of the first worker gets to the other side now.
    world.script("do c", &[Act::Fine]);
    gate.open.cancel();
    assert_eq!(paused.await??, Some(Driven::Lost));
    assert_eq!(world.calls(&saga, "c", "do"), 1);
    world::balanced(&world, &database, &saga, SagaStatus::Compensated).await?;
    Ok(database.close().await?)
}

/// A worker in the call of `a`, with a lease of that time.
async fn in_a_call(
    place: &Place,
    lease: Duration,
) -> Result<(
    reliability::mysql::Database,
    Engine,
    Worker,
    String,
    Arc<world::Gate>,
)> {
    let database = world::database(place).await?;
    let world = World::new(Faults::none());
    let gate = world.gate("do a: before");
    let settings = Settings {
        lease,
        stop_timeout: Duration::from_millis(50),
        ..world::settings()
    };
    let engine = Engine::new(database.clone(), vec![world.definition()?], settings)?;
    let saga = world::start(&database, "one").await?;
    let worker = Worker::new(&engine);
    gate.reached.cancelled().await;
    Ok((database, engine, worker, saga, gate))
}

async fn a_lease_is_renewed_while_a_call_runs(place: Place) -> Result<()> {
    let (database, engine, worker, saga, gate) =
        in_a_call(&place, Duration::from_millis(1500)).await?;
    let until = async || {
        let history = saga::show(&database, &saga).await?.context("no saga")?;
        anyhow::Ok(history.summary.next_attempt_at)
    };
    let mut seen = vec![until().await?];
    let renewed = async {
        while seen.len() < 4 {
            let now = until().await?;
            if seen.last() != Some(&now) {
                seen.push(now);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(60), renewed).await??;
    ensure!(seen.is_sorted(), "{seen:?}");
    gate.open.cancel();
    world::until(&database, &saga, SagaStatus::Completed).await?;
    worker.stop().await?;
    assert_eq!(engine.counters().lost, 0);
    Ok(database.close().await?)
}

async fn a_worker_that_lost_its_lease_drops_the_call(place: Place) -> Result<()> {
    let (database, engine, worker, saga, _gate) =
        in_a_call(&place, Duration::from_millis(300)).await?;
    let mut conn = database.connection().await?;
    // Another has it, for a while.
    let take = "UPDATE saga_instances SET epoch = epoch + 1, locked_by = 'other', \
        locked_until = NOW(6) + INTERVAL 1 HOUR, next_attempt_at = NOW(6) + INTERVAL 1 HOUR WHERE id = ?";
    conn.exec_drop(take, (&saga,)).await?;
    drop(conn);
    let dropped = async {
        while engine.counters().lost == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), dropped).await?;
    worker.stop().await?;
    let left = "SELECT COUNT(*) FROM saga_instances WHERE locked_by = 'other'";
    assert_eq!(place.number(left).await?, 1);
    assert_eq!(saga::retry(&database, &saga).await?, Retried::InProgress);
    Ok(database.close().await?)
}

async fn what_is_not_known_is_left_alone(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    let engine = world.engine(&database)?;
    let newer = world::start_kind(&database, Kind::new("test", 2), "newer").await?;
    let other = world::start_kind(&database, Kind::new("other", 1), "other").await?;
    let mut conn = database.connection().await?;
    conn.query_drop(
        "INSERT INTO saga_instances (id, saga_type, correlation_id, payload) \
         VALUES ('unreadable', 'test', 'unreadable', '{\"no\": \"text\"}')",
    )
    .await?;
    drop(conn);
    let known = world::start(&database, "known").await?;
    let worker = Worker::new(&engine);
    world::until(&database, &known, SagaStatus::Completed).await?;
    let counted = async {
        while engine.counters().refused_definitions < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), counted).await?;
    worker.stop().await?;
    assert_eq!(engine.counters().refused_definitions, 3);
    for (saga, why) in [
        (newer.as_str(), "no definition of saga test version 2"),
        (&other, "no definition of saga other version 1"),
        ("unreadable", "its payload can't be read"),
    ] {
        let history = saga::show(&database, saga).await?.context("no saga")?;
        assert_eq!(
            (history.summary.status, history.steps.len()),
            (SagaStatus::Running, 0)
        );
        let error = history.summary.error.context("no reason")?;
        ensure!(error.starts_with(why), "{error}");
        ensure!(history.summary.locked_by.is_none());
    }
    let put_off = "SELECT COUNT(*) FROM saga_instances WHERE status = 'RUNNING' \
        AND next_attempt_at > UTC_TIMESTAMP(6) + INTERVAL 10 SECOND";
    assert_eq!(place.number(put_off).await?, 3);
    // A worker that knows it goes on.
    let version_2 = world.define(Kind::new("test", 2), world::policy(), None)?;
    let newest = Engine::new(
        database.clone(),
        vec![world.definition()?, version_2],
        world::settings(),
    )?;
    assert_eq!(
        newest.drive(&newer).await?,
        Some(Driven::Ended(SagaStatus::Completed))
    );
    Ok(database.close().await?)
}

async fn a_changed_definition_is_refused(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    world.script("do c", &[Act::LoseRequest]);
    let settings = Settings {
        wait_in_place: Duration::ZERO,
        ..world::settings()
    };
    let engine = Engine::new(
        database.clone(),
        vec![world.definition()?],
        settings.clone(),
    )?;
    let saga = world::start(&database, "one").await?;
    assert_eq!(engine.drive(&saga).await?, Some(Driven::Waiting));
    struct Other;
    impl Step<String> for Other {}
    let renamed = Definition::of(KIND)
        .step("z", world::policy(), Other)
        .step("b", world::policy(), Other)
        .step("c", world::policy(), Other)
        .build()?;
    let shorter = Definition::of(KIND)
        .step("a", world::policy(), Other)
        .build()?;
    for changed in [renamed, shorter] {
        let engine = Engine::new(database.clone(), vec![changed], settings.clone())?;
        assert_eq!(engine.drive(&saga).await?, Some(Driven::Refused));
    }
    let history = saga::show(&database, &saga).await?.context("no saga")?;
    assert_eq!(
        (history.summary.status, history.steps.len()),
        (SagaStatus::Running, 3)
    );
    Ok(database.close().await?)
}

async fn bad_sagas_stop_nobody(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let bad = World::new(Faults::none());
    bad.script("do a", &[Act::Panic]);
    bad.script("undo a", &[Act::Panic]);
    let good = World::new(Faults::none());
    let bad_kind: Kind<String> = Kind::new("bad", 1);
    let mut bad_sagas = Vec::new();
    for n in 0..6 {
        bad_sagas.push(world::start_kind(&database, bad_kind, &n.to_string()).await?);
        world::start_kind(&database, Kind::new("unknown", 1), &n.to_string()).await?;
    }
    let mut good_sagas = Vec::new();
    for n in 0..6 {
        good_sagas.push(world::start(&database, &n.to_string()).await?);
    }
    let definitions = vec![
        bad.define(bad_kind, world::policy(), None)?,
        good.definition()?,
    ];
    let engine = Engine::new(database.clone(), definitions, world::settings())?;
    let worker = Worker::new(&engine);
    for saga in &good_sagas {
        world::until(&database, saga, SagaStatus::Completed).await?;
    }
    for saga in &bad_sagas {
        world::until(&database, saga, SagaStatus::CompensationFailed).await?;
    }
    ensure!(engine.counters().panics >= 36, "{:?}", engine.counters());
    bad.script("undo a", &[Act::Fine]);
    for saga in &bad_sagas {
        world::until(&database, saga, SagaStatus::Compensated).await?;
    }
    worker.stop().await?;
    Ok(database.close().await?)
}

async fn a_saga_goes_on_without_its_caller(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    world.script("do c", &[Act::Refuse]);
    let gate = world.gate("undo a: before");
    let engine = world.engine(&database)?;
    let saga = world::start(&database, "one").await?;
    let caller = tokio::spawn({
        let (engine, saga) = (engine.clone(), saga.clone());
        async move { engine.drive(&saga).await }
    });
    gate.reached.cancelled().await;
    caller.abort();
    ensure!(caller.await.is_err());
    gate.open.cancel();
    world::until(&database, &saga, SagaStatus::Compensated).await?;
    world::balanced(&world, &database, &saga, SagaStatus::Compensated).await?;
    Ok(database.close().await?)
}

async fn stopping_finishes_the_step_or_lets_go(place: Place) -> Result<()> {
    let (database, _, worker, saga, _gate) = in_a_call(&place, Duration::from_secs(60)).await?;
    // The call does not end within the time: dropped, and anybody's at once.
    worker.stop().await?;
    let free = "SELECT COUNT(*) FROM saga_instances \
        WHERE locked_by IS NULL AND next_attempt_at <= UTC_TIMESTAMP(6)";
    assert_eq!(place.number(free).await?, 1);
    let world = World::new(Faults::none());
    let gate = world.gate("do a: before");
    let engine = world.engine(&database)?;
    let worker = Worker::new(&engine);
    gate.reached.cancelled().await;
    let stopped = tokio::spawn(worker.stop());
    gate.open.cancel();
    stopped.await??;
    assert_eq!(place.number(free).await?, 1);
    let history = saga::show(&database, &saga).await?.context("no saga")?;
    let steps: Vec<_> = history
        .steps
        .iter()
        .map(|step| (step.status, step.attempts))
        .collect();
    assert_eq!(steps, [(saga::StepStatus::Completed, 2)]);
    Ok(database.close().await?)
}

async fn claims_are_served_by_their_index(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    world::start(&database, "one").await?;
    let mut conn = database.connection().await?;
    for _ in 0..11 {
        conn.query_drop(
            "INSERT INTO saga_instances (id, saga_type, correlation_id, payload, status, next_attempt_at) \
             SELECT UUID(), 'done', UUID(), payload, 'COMPLETED', NULL FROM saga_instances",
        )
        .await?;
    }
    conn.query_drop("ANALYZE TABLE saga_instances").await?;
    drop(conn);
    let world = World::new(Faults::none());
    for form in [Form::SkipLocked, Form::Token] {
        let settings = Settings {
            form,
            ..world::settings()
        };
        let engine = Engine::new(database.clone(), vec![world.definition()?], settings)?;
        let plan = engine.claim_plan().await?;
        ensure!(plan.contains("key='idx_saga_next'"), "{plan}");
        ensure!(plan.contains("type='range'"), "{plan}");
        ensure!(!plan.contains("filesort"), "{plan}");
        ensure!(
            plan.contains("rows=1 ") || plan.contains("rows='1'"),
            "{plan}"
        );
    }
    assert_eq!(saga::overview(&database).await?.running, 1);
    Ok(database.close().await?)
}

async fn definitions_are_checked(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    struct Other;
    impl Step<String> for Other {}
    let empty = Definition::of(KIND).build().err().context("it succeeded")?;
    assert_eq!(empty.to_string(), "saga test has no steps");
    let twice = Definition::of(KIND)
        .step("a", world::policy(), Other)
        .step("a", world::policy(), Other)
        .build();
    ensure!(matches!(twice, Err(DefinitionError::TwoSteps { step, .. }) if step == "a"));
    let long = "x".repeat(129);
    let long = Definition::of(KIND)
        .step(&long, world::policy(), Other)
        .build();
    ensure!(matches!(long, Err(DefinitionError::Field(_))));
    let world = World::new(Faults::none());
    let both = vec![world.definition()?, world.definition()?];
    let error = Engine::new(database.clone(), both, world::settings())
        .err()
        .context("it succeeded")?;
    assert_eq!(error.to_string(), "saga test version 1 is defined twice");
    Ok(database.close().await?)
}
