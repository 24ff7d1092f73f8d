//! The measurements, and what each prints.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tests::scene::{self, Failure, Scene};

use crate::{Args, drain, idle, latency, measurement, orders, sagas, takeover, transaction};
use crate::{ORDERS, ROUNDS, SECONDS, TRANSACTION, yardstick};

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Drain,
    Latency,
    /// Rows.
    Transaction(u64),
    /// Rounds.
    Takeover(u32),
    /// How long.
    Idle(Duration),
    /// Orders.
    Orders(u64),
    /// Orders.
    Sagas(u64),
}

/// What a measurement found.
pub(crate) struct Found {
    /// For a person.
    pub(crate) table: String,
    /// For a program.
    pub(crate) json: Value,
}

impl Mode {
    /// Those that are named; all if none is.
    pub(crate) fn of(args: &Args) -> Result<Vec<Self>> {
        let seconds = |seconds| Mode::Idle(Duration::from_secs(seconds));
        let named = [
            args.drain.then_some(Mode::Drain),
            args.latency.then_some(Mode::Latency),
            args.transaction.map(Mode::Transaction),
            args.takeover.map(Mode::Takeover),
            args.idle.map(seconds),
            args.orders.map(Mode::Orders),
            args.orders.map(Mode::Sagas),
        ];
        let named: Vec<Self> = named.into_iter().flatten().collect();
        if !named.is_empty() {
            return Ok(named);
        }
        Ok(vec![
            Mode::Drain,
            Mode::Latency,
            Mode::Transaction(TRANSACTION.parse()?),
            Mode::Takeover(ROUNDS.parse()?),
            seconds(SECONDS.parse()?),
            Mode::Orders(ORDERS.parse()?),
            Mode::Sagas(ORDERS.parse()?),
        ])
    }

    /// Its name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Drain => "drain",
            Mode::Latency => "latency",
            Mode::Transaction(_) => "transaction",
            Mode::Takeover(_) => "takeover",
            Mode::Idle(_) => "idle",
            Mode::Orders(_) => "orders",
            Mode::Sagas(_) => "sagas",
        }
    }

    /// Measures.
    pub(crate) async fn measure(self, args: &Args) -> Result<Found, Failure> {
        match self {
            Mode::Drain => drains(args).await,
            Mode::Latency => latencies(args).await,
            Mode::Transaction(rows) => transactions(args, rows).await,
            Mode::Takeover(rounds) => takeovers(args, rounds).await,
            Mode::Idle(time) => idles(args, time).await,
            Mode::Orders(count) => placing(args, count).await,
            Mode::Sagas(count) => fulfilling(args, count).await,
        }
    }
}

async fn drains(args: &Args) -> Result<Found, Failure> {
    let mut all = Vec::new();
    for kind in args.kinds() {
        for variant in drain::VARIANTS {
            let body = async |scene: &mut Scene| drain::relay(scene, args, kind, variant).await;
            all.push(in_scene(args, body).await?);
        }
        let body = async |scene: &mut Scene| yardstick::bare_lapin(scene, args, kind).await;
        all.push(in_scene(args, body).await?);
        let body = async |scene: &mut Scene| yardstick::polling_worker(scene, args, kind).await;
        all.push(in_scene(args, body).await?);
    }
    Ok(Found {
        table: measurement::table(&all),
        json: measurement::json(&all),
    })
}

async fn latencies(args: &Args) -> Result<Found, Failure> {
    let mut all = Vec::new();
    for kind in args.kinds() {
        let body = async |scene: &mut Scene| latency::measure(scene, kind).await;
        all.push(in_scene(args, body).await?);
    }
    Ok(Found {
        table: latency::table(&all),
        json: latency::json(&all),
    })
}

async fn transactions(args: &Args, rows: u64) -> Result<Found, Failure> {
    let (mut all, kind) = (Vec::new(), args.kind_or_classic());
    for mark in transaction::MARKS {
        let body = async |scene: &mut Scene| transaction::measure(scene, kind, mark, rows).await;
        all.push(alone(args, body).await?);
    }
    Ok(Found {
        table: transaction::table(&all),
        json: transaction::json(&all),
    })
}

async fn takeovers(args: &Args, rounds: u32) -> Result<Found, Failure> {
    let mut all = Vec::new();
    for end in takeover::ENDS {
        let body = async |scene: &mut Scene| takeover::measure(scene, end, rounds).await;
        all.push(in_scene(args, body).await?);
    }
    Ok(Found {
        table: takeover::table(&all),
        json: takeover::json(&all),
    })
}

async fn idles(args: &Args, time: Duration) -> Result<Found, Failure> {
    let mut all = Vec::new();
    for source in idle::SOURCES {
        let body = async |scene: &mut Scene| idle::measure(scene, source, time).await;
        all.push(alone(args, body).await?);
    }
    Ok(Found {
        table: idle::table(&all),
        json: idle::json(&all),
    })
}

async fn placing(args: &Args, count: u64) -> Result<Found, Failure> {
    let body = async |scene: &mut Scene| orders::measure(scene, count).await;
    let all = in_scene(args, body).await?;
    Ok(Found {
        table: orders::table(&all),
        json: orders::json(&all),
    })
}

async fn fulfilling(args: &Args, count: u64) -> Result<Found, Failure> {
    let mut all = Vec::new();
    for goods in sagas::GOODS {
        let body = async |scene: &mut Scene| sagas::measure(scene, goods, count).await;
        all.push(in_scene(args, body).await?);
    }
    Ok(Found {
        table: sagas::table(&all),
        json: sagas::json(&all),
    })
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

/// [`in_scene`] on a database server that nobody else uses: a relay reads all that its server logs.
async fn alone<T>(
    args: &Args,
    body: impl AsyncFnOnce(&mut Scene) -> Result<T>,
) -> Result<T, Failure> {
    let mut found = None;
    scene::run_private(args.flavor(), &[], async |scene, _| {
        found = Some(body(scene).await?);
        Ok(())
    })
    .await?;
    Ok(found.context("nothing measured")?)
}
