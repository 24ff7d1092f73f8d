//! The yardsticks, each run as a process of its own.

use std::process::Stdio;

use anyhow::{Result, ensure};
use tests::broker::QueueKind;
use tests::scene::Scene;
use tokio::process::Command;

use crate::measurement::{Measurement, Spent};
use crate::{Args, backlog, drain};

/// The same messages by lapin alone.
pub(crate) async fn bare_lapin(
    scene: &mut Scene,
    args: &Args,
    kind: QueueKind,
) -> Result<Measurement> {
    let queue = scene.broker.queue_of(kind, "#").await?;
    let spent = child("bare", scene, args.rows).await?;
    drain::arrived(scene, &queue, args.rows).await?;
    Ok(Measurement {
        what: "bare lapin".to_owned(),
        kind,
        events: args.rows,
        spent,
    })
}

/// A sample of the rows by the write-up's worker.
pub(crate) async fn polling_worker(
    scene: &mut Scene,
    args: &Args,
    kind: QueueKind,
) -> Result<Measurement> {
    let queue = scene.broker.queue_of(kind, "#").await?;
    backlog::insert(&scene.database, args.sample, args.batch).await?;
    let spent = child("poll", scene, args.sample).await?;
    drain::arrived(scene, &queue, args.sample).await?;
    Ok(Measurement {
        what: "polling worker".to_owned(),
        kind,
        events: args.sample,
        spent,
    })
}

/// Runs this program again in that role.
async fn child(role: &str, scene: &Scene, events: u64) -> Result<Spent> {
    let output = Command::new(std::env::current_exe()?)
        .args([role, scene.broker.exchange(), &events.to_string()])
        .env("BENCH_MYSQL_URL", scene.database.url().as_str())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(
        output.status.success(),
        "`bench {role}` failed with {}",
        output.status
    );
    Spent::parse(&String::from_utf8_lossy(&output.stdout))
}
