//! What becomes of each kind of failure, of the pivot, and of compensations that fail.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use reliability::mysql::Database;
use reliability::mysql::IsolationLevel::{ReadCommitted, RepeatableRead};
use reliability::resilience::Backoff;
use reliability::saga::{
    self, Driven, Engine, Kind, Overview, Policy, Retried, SagaError, SagaStatus, Settings,
    StepStatus,
};

use super::world::{self, Act, Faults, KIND, Worker, World};
use crate::support::{Place, on_both_servers};

on_both_servers! {
    a_start_is_one_saga_and_goes_with_its_transaction
    a_saga_completes_and_can_be_looked_at
    a_refusal_compensates_at_once
    a_technical_failure_is_retried_and_then_compensated
    an_unknown_outcome_is_retried_with_its_key_and_undone
    a_local_step_that_fails_is_not_undone
    a_step_that_is_too_slow_is_in_doubt
    waits_are_stored_and_the_lease_let_go
    a_failed_compensation_is_retried_by_the_worker
    a_failed_compensation_is_retried_by_hand
    after_the_pivot_there_is_only_forward
    a_hook_that_fails_is_tried_again
    a_transaction_that_ended_is_noticed
}

async fn a_start_is_one_saga_and_goes_with_its_transaction(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let payload = String::new();
    let failed = database
        .transaction(ReadCommitted, async |tx| {
            saga::start(tx, KIND, "one", &payload).await?;
            saga::start(tx, KIND, "", &payload).await
        })
        .await
        .err()
        .context("it succeeded")?;
    assert_eq!(failed.to_string(), "correlation_id is empty");
    assert_eq!(saga::list(&database, None, 10).await?, []);
    // Even in a snapshot that does not show the first.
    let (first, again) = database
        .transaction(RepeatableRead, async |tx| {
            tx.query_drop("SELECT COUNT(*) FROM saga_instances")
                .await
                .map_err(|source| SagaError::Mysql {
                    doing: "look",
                    source,
                })?;
            let first = world::start(&database, "one").await;
            Ok::<_, SagaError>((first, saga::start(tx, KIND, "one", &payload).await?))
        })
        .await?;
    assert_eq!((again.id, again.is_new), (first?, false));
    let other: Kind<String> = Kind::new("other", 1);
    ensure!(
        world::start_kind(&database, other, "one").await? != world::start(&database, "one").await?
    );
    assert_eq!(saga::list(&database, None, 10).await?.len(), 2);
    assert_eq!(saga::list(&database, None, 1).await?.len(), 1);
    Ok(database.close().await?)
}

async fn a_saga_completes_and_can_be_looked_at(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    let engine = world.engine(&database)?;
    let worker = Worker::new(&engine);
    let saga = world::start(&database, "one").await?;
    engine.wake();
    world::until(&database, &saga, SagaStatus::Completed).await?;
    worker.stop().await?;
    world::balanced(&world, &database, &saga, SagaStatus::Completed).await?;
    let history = saga::show(&database, &saga).await?.context("no saga")?;
    assert_eq!(history.payload, "payload");
    let steps: Vec<_> = history
        .steps
        .iter()
        .map(|step| (step.order, step.name.as_str(), step.status, step.attempts))
        .collect();
    let done = |order, name| (order, name, StepStatus::Completed, 1);
    assert_eq!(steps, [done(1, "a"), done(2, "b"), done(3, "c")]);
    let second = history.steps.get(1).context("no step")?;
    assert_eq!(second.output, Some(serde_json::json!({"a": {"step": "a"}})));
    ensure!(second.started_at <= second.completed_at && second.compensated_at.is_none());
    ensure!(
        second
            .started_at
            .as_ref()
            .is_some_and(|time| time.len() == 27 && time.ends_with('Z'))
    );
    let listed = saga::list(&database, Some(SagaStatus::Completed), 10).await?;
    assert_eq!(listed, std::slice::from_ref(&history.summary));
    assert_eq!(
        saga::list(&database, Some(SagaStatus::Running), 10).await?,
        []
    );
    assert_eq!(saga::show(&database, "nobody").await?, None);
    let counters = engine.counters();
    assert_eq!(
        (counters.started, counters.completed, counters.takeovers),
        (1, 1, 0)
    );
    assert_eq!(
        saga::retry(&database, &saga).await?,
        Retried::Ended(SagaStatus::Completed)
    );
    assert_eq!(engine.drive(&saga).await?, None);
    ensure!(
        serde_json::to_value(&history)?
            .get("correlation_id")
            .is_some()
    );
    Ok(database.close().await?)
}

/// Runs one saga to that end; each step's status, attempts and attempts to undo.
async fn run(
    database: &Database,
    world: &std::sync::Arc<World>,
    correlation: &str,
    end: SagaStatus,
) -> Result<(String, Vec<(StepStatus, u32, u32)>)> {
    let engine = world.engine(database)?;
    let worker = Worker::new(&engine);
    let saga = world::start(database, correlation).await?;
    world::until(database, &saga, end).await?;
    worker.stop().await?;
    world::balanced(world, database, &saga, end).await?;
    let history = saga::show(database, &saga).await?.context("no saga")?;
    let steps = history.steps.iter();
    let steps = steps.map(|step| (step.status, step.attempts, step.undo_attempts));
    Ok((saga, steps.collect()))
}

use StepStatus::{Compensated, Completed, Failed};

async fn a_refusal_compensates_at_once(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    world.script("do c", &[Act::Refuse]);
    let (saga, steps) = run(&database, &world, "c", SagaStatus::Compensated).await?;
    assert_eq!(
        steps,
        [(Compensated, 1, 1), (Compensated, 1, 1), (Failed, 1, 0)]
    );
    assert_eq!(world.calls(&saga, "c", "undo"), 0);
    let history = saga::show(&database, &saga).await?.context("no saga")?;
    assert_eq!(
        history.summary.error.as_deref(),
        Some("refused: it is refused")
    );
    // Nothing at all was done: the end is the same.
    let world = World::new(Faults::none());
    world.script("do a", &[Act::Refuse]);
    let (_, steps) = run(&database, &world, "a", SagaStatus::Compensated).await?;
    assert_eq!(steps, [(Failed, 1, 0)]);
    Ok(database.close().await?)
}

async fn a_technical_failure_is_retried_and_then_compensated(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    world.script("do a", &[Act::Technical, Act::Technical, Act::Fine]);
    let (_, steps) = run(&database, &world, "twice", SagaStatus::Completed).await?;
    assert_eq!(steps.first(), Some(&(Completed, 3, 0)));
    let world = World::new(Faults::none());
    world.script("do c", &[Act::Technical]);
    let (saga, steps) = run(&database, &world, "always", SagaStatus::Compensated).await?;
    assert_eq!(steps.get(2), Some(&(Failed, 3, 0)));
    assert_eq!(world.calls(&saga, "c", "undo"), 0);
    Ok(database.close().await?)
}

async fn an_unknown_outcome_is_retried_with_its_key_and_undone(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    world.script("do a", &[Act::LoseAnswer, Act::LoseRequest, Act::Fine]);
    let (saga, steps) = run(&database, &world, "twice", SagaStatus::Completed).await?;
    assert_eq!(steps.first(), Some(&(Completed, 3, 0)));
    assert_eq!(world.calls(&saga, "a", "do"), 2);
    for (correlation, acts) in [
        ("answers", &[Act::LoseAnswer] as &[Act]),
        ("requests", &[Act::LoseRequest]),
        ("panics", &[Act::Panic]),
        // In doubt once, in doubt for good.
        ("then refused", &[Act::LoseAnswer, Act::Refuse]),
        ("then broken", &[Act::LoseAnswer, Act::Technical]),
    ] {
        let world = World::new(Faults::none());
        world.script("do c", acts);
        let (saga, steps) = run(&database, &world, correlation, SagaStatus::Compensated).await?;
        let attempts = if acts.contains(&Act::Refuse) { 2 } else { 3 };
        assert_eq!(
            steps.get(2),
            Some(&(Compensated, attempts, 1)),
            "{correlation}"
        );
        assert_eq!(world.calls(&saga, "c", "undo"), 1, "{correlation}");
    }
    // The call is done, and what goes with it refused.
    let world = World::new(Faults::none());
    world.script("record c", &[Act::Refuse]);
    let (saga, steps) = run(&database, &world, "record", SagaStatus::Compensated).await?;
    assert_eq!(steps.get(2), Some(&(Compensated, 1, 1)));
    assert_eq!(world.calls(&saga, "c", "undo"), 1);
    Ok(database.close().await?)
}

async fn a_local_step_that_fails_is_not_undone(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    for (correlation, act, attempts) in [
        ("refused", Act::Refuse, 1),
        ("broken", Act::Technical, 3),
        ("panics", Act::Panic, 3),
    ] {
        let world = World::new(Faults::none());
        world.script("record b", &[act]);
        // If it were undone, it would fail for ever.
        world.script("unrecord b", &[Act::Technical]);
        let (_, steps) = run(&database, &world, correlation, SagaStatus::Compensated).await?;
        assert_eq!(
            steps,
            [(Compensated, 1, 1), (Failed, attempts, 0)],
            "{correlation}"
        );
    }
    Ok(database.close().await?)
}

async fn a_step_that_is_too_slow_is_in_doubt(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    world.script("do a", &[Act::Hang]);
    let policy = Policy {
        timeout: Duration::from_millis(20),
        ..world::policy()
    };
    let definition = world.define(KIND, policy, None)?;
    let engine = Engine::new(database.clone(), vec![definition], world::settings())?;
    let worker = Worker::new(&engine);
    let saga = world::start(&database, "one").await?;
    world::until(&database, &saga, SagaStatus::Compensated).await?;
    worker.stop().await?;
    world::balanced(&world, &database, &saga, SagaStatus::Compensated).await?;
    assert_eq!(world.calls(&saga, "a", "undo"), 1);
    assert_eq!(engine.counters().unknown, 3);
    Ok(database.close().await?)
}

async fn waits_are_stored_and_the_lease_let_go(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    world.script("do a", &[Act::Technical, Act::Fine]);
    let policy = Policy {
        backoff: Backoff::new(Duration::from_secs(3600), Duration::from_secs(3600)),
        ..world::policy()
    };
    let definition = world.define(KIND, policy, None)?;
    let engine = Engine::new(database.clone(), vec![definition], world::settings())?;
    let saga = world::start(&database, "one").await?;
    assert_eq!(engine.drive(&saga).await?, Some(Driven::Waiting));
    let waits = "SELECT COUNT(*) FROM saga_instances WHERE locked_by IS NULL AND locked_until IS NULL \
        AND next_attempt_at > UTC_TIMESTAMP(6) + INTERVAL 20 MINUTE";
    assert_eq!(place.number(waits).await?, 1);
    let history = saga::show(&database, &saga).await?.context("no saga")?;
    let step = history.steps.first().context("no step")?;
    assert_eq!(
        (step.status, step.error.as_deref()),
        (StepStatus::Pending, Some("not done: it is broken"))
    );
    // Anybody goes on from there: by hand, before its time.
    assert_eq!(saga::retry(&database, &saga).await?, Retried::Due);
    let other = Worker::new(&engine);
    world::until(&database, &saga, SagaStatus::Completed).await?;
    other.stop().await?;
    Ok(database.close().await?)
}

async fn a_failed_compensation_is_retried_by_the_worker(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    for part in ["undo a", "unrecord a", "unrecord b"] {
        let world = World::new(Faults::none());
        world.script("do c", &[Act::Refuse]);
        world.script(part, &[Act::Technical]);
        let engine = world.engine(&database)?;
        let worker = Worker::new(&engine);
        let saga = world::start(&database, part).await?;
        world::until(&database, &saga, SagaStatus::CompensationFailed).await?;
        // It goes on failing, and is told of each time.
        let failing = async {
            while engine.counters().compensation_failures < 4 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), failing).await?;
        let stuck = Overview {
            compensation_failed: 1,
            ..Overview::default()
        };
        assert_eq!(saga::overview(&database).await?, stuck);
        let listed = saga::list(&database, Some(SagaStatus::CompensationFailed), 10).await?;
        let summary = listed.first().context("not listed")?;
        assert_eq!(
            summary.error.as_deref(),
            Some("undo: not done: it is broken")
        );
        ensure!(
            summary.failed_rounds >= 4 || summary.locked_by.is_some(),
            "{summary:?}"
        );
        world.script(part, &[Act::Fine]);
        world::until(&database, &saga, SagaStatus::Compensated).await?;
        worker.stop().await?;
        world::balanced(&world, &database, &saga, SagaStatus::Compensated).await?;
        assert_eq!(saga::overview(&database).await?, Overview::default());
    }
    Ok(database.close().await?)
}

async fn a_failed_compensation_is_retried_by_hand(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    world.script("do c", &[Act::Refuse]);
    world.script(
        "undo a",
        &[Act::Technical, Act::Technical, Act::Refuse, Act::Fine],
    );
    let settings = Settings {
        stuck_backoff: Backoff::new(Duration::from_secs(3600), Duration::from_secs(3600)),
        ..world::settings()
    };
    let engine = Engine::new(database.clone(), vec![world.definition()?], settings)?;
    let worker = Worker::new(&engine);
    let saga = world::start(&database, "one").await?;
    world::until(&database, &saga, SagaStatus::CompensationFailed).await?;
    assert_eq!(engine.counters().compensation_failures, 1);
    assert_eq!(saga::retry(&database, "nobody").await?, Retried::NotFound);
    assert_eq!(saga::retry(&database, &saga).await?, Retried::Due);
    engine.wake();
    world::until(&database, &saga, SagaStatus::Compensated).await?;
    worker.stop().await?;
    world::balanced(&world, &database, &saga, SagaStatus::Compensated).await?;
    Ok(database.close().await?)
}

async fn after_the_pivot_there_is_only_forward(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let world = World::new(Faults::none());
    use Act::{Fine, LoseAnswer, Panic, Refuse, Technical};
    world.script(
        "do c",
        &[
            Refuse, Technical, Panic, LoseAnswer, Refuse, Refuse, Technical, Fine,
        ],
    );
    let definition = world.define(KIND, world::policy(), Some("b"))?;
    let engine = Engine::new(database.clone(), vec![definition], world::settings())?;
    let worker = Worker::new(&engine);
    let saga = world::start(&database, "one").await?;
    world::until(&database, &saga, SagaStatus::Completed).await?;
    world::balanced(&world, &database, &saga, SagaStatus::Completed).await?;
    // Before it is done there still is a way back.
    world.script("record b", &[Refuse]);
    let saga = world::start(&database, "two").await?;
    world::until(&database, &saga, SagaStatus::Compensated).await?;
    world::balanced(&world, &database, &saga, SagaStatus::Compensated).await?;
    worker.stop().await?;
    Ok(database.close().await?)
}

async fn a_hook_that_fails_is_tried_again(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    for (correlation, c, stuck, end) in [
        (
            "forward",
            Act::Fine,
            SagaStatus::Running,
            SagaStatus::Completed,
        ),
        (
            "back",
            Act::Refuse,
            SagaStatus::CompensationFailed,
            SagaStatus::Compensated,
        ),
    ] {
        let world = World::new(Faults::none());
        world.script("do c", &[c]);
        world.script("end", &[Act::Panic, Act::Refuse, Act::Technical]);
        let engine = world.engine(&database)?;
        let worker = Worker::new(&engine);
        let saga = world::start(&database, correlation).await?;
        let failing = async {
            while engine.counters().compensation_failures < 4 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), failing).await?;
        assert_eq!(world::status(&database, &saga).await?, stuck);
        let history = saga::show(&database, &saga).await?.context("no saga")?;
        let error = history.summary.error.context("no error")?;
        ensure!(
            error.ends_with("at its end: not done: it is broken"),
            "{error}"
        );
        ensure!(error.len() < 80, "{error}");
        world.script("end", &[Act::Fine]);
        world::until(&database, &saga, end).await?;
        worker.stop().await?;
        world::balanced(&world, &database, &saga, end).await?;
    }
    Ok(database.close().await?)
}

/// A step that ends its own transaction.
struct Careless;

impl saga::Step<String> for Careless {
    const REMOTE: bool = false;

    async fn record(
        &self,
        tx: &mut mysql_async::Transaction<'_>,
        _: &saga::Context<'_, String>,
        output: serde_json::Value,
    ) -> Result<serde_json::Value, saga::Failure> {
        tx.query_drop("ROLLBACK").await?;
        Ok(output)
    }
}

async fn a_transaction_that_ended_is_noticed(place: Place) -> Result<()> {
    let database = world::database(&place).await?;
    let careless = saga::Definition::of(KIND)
        .step("careless", world::policy(), Careless)
        .build()?;
    let engine = Engine::new(database.clone(), vec![careless], world::settings())?;
    let saga = world::start(&database, "one").await?;
    assert_eq!(
        engine.drive(&saga).await?,
        Some(Driven::Ended(SagaStatus::Compensated))
    );
    assert_eq!(engine.counters().unknown, 3);
    Ok(database.close().await?)
}
