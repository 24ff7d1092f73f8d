//! A worker that is gone, or hurt, at every point: before and after each commit, before and after each part of each step.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use reliability::mysql::Database;
use reliability::saga::SagaStatus;
use tokio::time::timeout;

use super::proxy::Proxy;
use super::world::{self, Act, Fault, Faults, Worker, World};
use crate::support::{Place, on_both_servers};

on_both_servers! {
    a_saga_survives_a_crash_at_every_point
    a_compensation_survives_a_crash_at_every_point
    a_compensation_after_a_call_survives_a_crash_at_every_point
    a_compensation_in_doubt_survives_a_crash_at_every_point
    nothing_is_done_twice_over_a_cut_or_a_panic_at_any_point
}

/// What the steps are told to do, and how it ends.
#[derive(Clone, Copy)]
struct Plan {
    part: &'static str,
    acts: &'static [Act],
    end: SagaStatus,
}

const FORWARD: Plan = Plan {
    part: "",
    acts: &[],
    end: SagaStatus::Completed,
};
const REFUSED: Plan = Plan {
    part: "do c",
    acts: &[Act::Refuse],
    end: SagaStatus::Compensated,
};
const REFUSED_RECORD: Plan = Plan {
    part: "record c",
    acts: &[Act::Refuse],
    end: SagaStatus::Compensated,
};
const IN_DOUBT: Plan = Plan {
    part: "do c",
    acts: &[Act::LoseAnswer, Act::Refuse],
    end: SagaStatus::Compensated,
};

async fn a_saga_survives_a_crash_at_every_point(place: Place) -> Result<()> {
    everywhere(place, FORWARD, Fault::Crash, 28).await
}

async fn a_compensation_survives_a_crash_at_every_point(place: Place) -> Result<()> {
    everywhere(place, REFUSED, Fault::Crash, 39).await
}

async fn a_compensation_after_a_call_survives_a_crash_at_every_point(place: Place) -> Result<()> {
    everywhere(place, REFUSED_RECORD, Fault::Crash, 49).await
}

async fn a_compensation_in_doubt_survives_a_crash_at_every_point(place: Place) -> Result<()> {
    everywhere(place, IN_DOUBT, Fault::Crash, 53).await
}

async fn nothing_is_done_twice_over_a_cut_or_a_panic_at_any_point(place: Place) -> Result<()> {
    everywhere(place, FORWARD, Fault::Hurt, 28).await
}

/// A clean run counts the points; then each is hit once. `least` is how many there must be.
async fn everywhere(place: Place, plan: Plan, fault: Fault, least: usize) -> Result<()> {
    let direct = world::database(&place).await?;
    let points = at(&place, &direct, plan, (fault, usize::MAX)).await?;
    ensure!(points >= least, "only {points} points");
    for target in 0..points {
        at(&place, &direct, plan, (fault, target))
            .await
            .with_context(|| format!("{fault:?} at point {target}"))?;
    }
    Ok(direct.close().await?)
}

/// One saga, hit at one point; how many points it passed.
async fn at(place: &Place, direct: &Database, plan: Plan, hit: (Fault, usize)) -> Result<usize> {
    let (fault, target) = hit;
    let world = World::new(Faults::at(target, fault));
    world.script(plan.part, plan.acts);
    let proxy = Proxy::new(place, world.clone()).await?;
    let saga = world::start(direct, &target.to_string()).await?;
    let engine = world.engine(&proxy.database())?;
    let worker = Worker::new(&engine);
    if target == usize::MAX || fault == Fault::Hurt {
        // The claim is committed, and its answer lost: only time helps.
        if target == 1 {
            world.faults.tripped.cancelled().await;
            world::expire(direct, &saga).await?;
        }
        world::until(direct, &saga, plan.end).await?;
        let points = world.faults.passed();
        worker.stop().await?;
        if engine.counters().panics == 0 && plan.end == SagaStatus::Completed {
            let calls = ["a", "c"].map(|step| world.calls(&saga, step, "do"));
            ensure!(calls == [1, 1], "{calls:?} calls of the other side");
        }
        world::balanced(&world, direct, &saga, plan.end).await?;
        return Ok(points);
    }
    let tripped = world.faults.tripped.cancelled();
    timeout(Duration::from_secs(60), tripped)
        .await
        .context("never there")?;
    // A dropped task, a dropped wire: the server rolls back what is open.
    drop(worker);
    drop(proxy);
    let world = World::after(&world);
    let engine = world.engine(direct)?;
    world::expire(direct, &saga).await?;
    let worker = Worker::new(&engine);
    world::until(direct, &saga, plan.end).await?;
    worker.stop().await?;
    world::balanced(&world, direct, &saga, plan.end).await?;
    Ok(target)
}
