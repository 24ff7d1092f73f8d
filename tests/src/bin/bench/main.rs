//! `bench`: how fast a backlog drains, and at what cost, beside two yardsticks.
//!
//! - **relay**: the relay in binlog mode, started on a backlog that it has a checkpoint before; with other settings; and
//!   polling.
//! - **bare lapin**: the same messages, published by `lapin` alone with the same window. What the relay
//!   adds to it is reading, decoding, order, checkpoints and marks.
//! - **polling worker**: the loop of the outbox pattern's usual write-up, with a publisher that awaits
//!   each confirm: claim 100 rows, publish one, mark it, commit, next.
//!
//! Each is a process of its own, so that its CPU time and memory are its own too.
//! Nothing is asserted about time.
#![expect(clippy::print_stdout, reason = "its output is what it is for")]

mod backlog;
mod bare;
mod drain;
mod latency;
mod measurement;
mod poller;

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use tests::broker::QueueKind;
use tests::scene::{self, Failure, Scene};
use tests::servers::{self, Flavor};
use tokio::process::Command;

use crate::measurement::{Measurement, Spent};

/// Drains a backlog through the relay, bare lapin and a polling worker, and prints one table.
#[derive(Debug, Parser)]
struct Args {
    /// Rows of the backlog.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Rows for the polling worker, which is slow.
    #[arg(long, default_value_t = 2_000)]
    sample: u64,
    /// Rows a transaction of the backlog.
    #[arg(long, default_value_t = 100)]
    batch: u64,
    /// Kind of queue; both if not given.
    #[arg(long)]
    queue: Option<Queue>,
    /// Database server.
    #[arg(long, default_value = "mysql")]
    server: Server,
    /// Measure commit to delivery at 1,000 events a second for 10 s instead.
    #[arg(long)]
    latency: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Queue {
    Quorum,
    Classic,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Server {
    Mysql,
    Mariadb,
}

/// What a child process does; it prints what it spent.
#[derive(Debug, Subcommand)]
enum Role {
    /// Publishes that many messages with lapin alone.
    #[command(hide = true)]
    Bare { exchange: String, events: u64 },
    /// Works off that many rows of the database in BENCH_MYSQL_URL, as the write-up's worker does.
    #[command(hide = true)]
    Poll { exchange: String, events: u64 },
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    match &args.role {
        Some(Role::Bare { exchange, events }) => {
            println!(
                "{}",
                bare::publish(&servers::amqp_url()?, exchange, *events)
                    .await?
                    .json()
            );
        }
        Some(Role::Poll { exchange, events }) => {
            let url = std::env::var("BENCH_MYSQL_URL").context("BENCH_MYSQL_URL is not set")?;
            let amqp = servers::amqp_url()?;
            println!(
                "{}",
                poller::work(&url, &amqp, exchange, *events).await?.json()
            );
        }
        None if args.latency => latency(&args).await?,
        None => drains(&args).await?,
    }
    Ok(())
}

impl Args {
    fn kinds(&self) -> Vec<QueueKind> {
        match self.queue {
            Some(Queue::Quorum) => vec![QueueKind::Quorum],
            Some(Queue::Classic) => vec![QueueKind::Classic],
            None => vec![QueueKind::Quorum, QueueKind::Classic],
        }
    }

    fn flavor(&self) -> Flavor {
        match self.server {
            Server::Mysql => Flavor::Mysql,
            Server::Mariadb => Flavor::Mariadb,
        }
    }
}

async fn drains(args: &Args) -> Result<(), Failure> {
    let mut all = Vec::new();
    for kind in args.kinds() {
        for variant in drain::VARIANTS {
            all.push(
                in_scene(args, async |scene| {
                    drain::relay(scene, args, kind, variant).await
                })
                .await?,
            );
        }
        all.push(in_scene(args, async |scene| bare_lapin(scene, args, kind).await).await?);
        all.push(in_scene(args, async |scene| polling_worker(scene, args, kind).await).await?);
    }
    println!(
        "{}",
        if args.json {
            measurement::json(&all)
        } else {
            measurement::table(&all)
        }
    );
    Ok(())
}

async fn latency(args: &Args) -> Result<(), Failure> {
    let mut all = Vec::new();
    for kind in args.kinds() {
        all.push(in_scene(args, async |scene| latency::measure(scene, kind).await).await?);
    }
    println!(
        "{}",
        if args.json {
            latency::json(&all)
        } else {
            latency::table(&all)
        }
    );
    Ok(())
}

/// Runs one measurement in a scene of its own.
async fn in_scene<T>(
    args: &Args,
    body: impl AsyncFnOnce(&mut Scene) -> Result<T>,
) -> Result<T, Failure> {
    let mut found = None;
    scene::run(args.flavor(), async |scene: &mut Scene| {
        found = Some(body(scene).await?);
        Ok(())
    })
    .await?;
    Ok(found.context("nothing measured")?)
}

async fn bare_lapin(scene: &mut Scene, args: &Args, kind: QueueKind) -> Result<Measurement> {
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

async fn polling_worker(scene: &mut Scene, args: &Args, kind: QueueKind) -> Result<Measurement> {
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
