//! `bench`: what the relay can do, and at what cost.
//!
//! - **drain**: how fast a backlog drains, beside two yardsticks. The relay in binlog mode, started on a backlog that it has a
//!   checkpoint before; with other settings; and polling. **Bare lapin**: the same messages, published by `lapin` alone with
//!   the same window; what the relay adds to it is reading, decoding, order, checkpoints and marks. **Polling worker**: the
//!   loop of the outbox pattern's usual write-up, with a publisher that awaits each confirm: claim 100 rows, publish one, mark
//!   it, commit, next. Each is a process of its own, so that its CPU time and memory are its own too.
//! - **latency**: from commit to delivery, at a steady rate.
//! - **transaction**: memory of the relay during one big transaction.
//! - **takeover**: from the end of a leader to the first publication of its standby.
//! - **idle**: what a relay costs that has nothing to do.
//! - **orders**: `POST /orders` of the app beside a bare transaction.
//! - **sagas**: orders from the first request to the last confirmation.
//!
//! Nothing is asserted about time.
#![expect(clippy::print_stdout, reason = "its output is what it is for")]

mod backlog;
mod bare;
mod drain;
mod goods;
mod idle;
mod latency;
mod measurement;
mod mode;
mod orders;
mod poller;
mod sagas;
mod takeover;
mod transaction;
mod yardstick;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand, ValueEnum};
use serde_json::{Map, Value};
use tests::broker::QueueKind;
use tests::scene::Failure;
use tests::servers::{self, Flavor};

use crate::mode::Mode;

/// Measures the relay and prints tables: all measurements, or those that are named.
#[derive(Debug, Parser)]
struct Args {
    /// Drain a backlog through the relay, bare lapin and a polling worker.
    #[arg(long)]
    drain: bool,
    /// Commit to delivery at 1,000 events a second for 10 s.
    #[arg(long)]
    latency: bool,
    /// Memory of the relay during one transaction of that many rows.
    #[arg(long, value_name = "ROWS", num_args = 0..=1, default_missing_value = TRANSACTION)]
    transaction: Option<u64>,
    /// Time from the end of a leader to the first publication of its standby, that many rounds for each way to end.
    #[arg(long, value_name = "ROUNDS", num_args = 0..=1, default_missing_value = ROUNDS)]
    takeover: Option<u32>,
    /// Cost of a relay that has nothing to do for that many seconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = SECONDS)]
    idle: Option<u64>,
    /// That many `POST /orders` with 1, 8 and 64 clients, beside a bare transaction of two inserts; and as many sagas.
    #[arg(long, value_name = "ORDERS", num_args = 0..=1, default_missing_value = ORDERS)]
    orders: Option<u64>,
    /// Rows of the backlog.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Rows for the polling worker, which is slow.
    #[arg(long, default_value_t = 2_000)]
    sample: u64,
    /// Rows a transaction of the backlog.
    #[arg(long, default_value_t = 100)]
    batch: u64,
    /// Kind of queue; if not given, both for drain and latency, classic for transaction.
    #[arg(long)]
    queue: Option<Queue>,
    /// Database server.
    #[arg(long, default_value = "mysql")]
    server: Server,
    /// Print JSON instead of tables: an object with an array for each measurement.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// Rows of the big transaction, where nothing else is said.
const TRANSACTION: &str = "1000000";
/// Takeovers of each kind.
const ROUNDS: &str = "5";
/// An idle minute.
const SECONDS: &str = "60";
/// Orders of each kind, and sagas.
const ORDERS: &str = "5000";

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
        None => report(&args).await?,
    }
    Ok(())
}

/// Each table as soon as it is there; JSON as one object at the end.
async fn report(args: &Args) -> Result<(), Failure> {
    let mut all = Map::new();
    for (number, mode) in Mode::of(args)?.into_iter().enumerate() {
        let found = mode.measure(args).await?;
        if args.json {
            all.insert(mode.name().to_owned(), found.json);
        } else {
            println!("{}{}", if number > 0 { "\n" } else { "" }, found.table);
        }
    }
    if args.json {
        println!("{}", Value::Object(all));
    }
    Ok(())
}

impl Args {
    fn kinds(&self) -> Vec<QueueKind> {
        match self.queue {
            Some(queue) => vec![queue.kind()],
            None => vec![QueueKind::Quorum, QueueKind::Classic],
        }
    }

    fn kind_or_classic(&self) -> QueueKind {
        self.queue.map_or(QueueKind::Classic, Queue::kind)
    }

    fn flavor(&self) -> Flavor {
        match self.server {
            Server::Mysql => Flavor::Mysql,
            Server::Mariadb => Flavor::Mariadb,
        }
    }
}

impl Queue {
    fn kind(self) -> QueueKind {
        match self {
            Queue::Quorum => QueueKind::Quorum,
            Queue::Classic => QueueKind::Classic,
        }
    }
}
