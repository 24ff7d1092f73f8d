//! Orders from the first request to the last confirmation: API, relay, worker and providers.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::scene::Scene;
use tests::shop::{self, Client, Shop};
use tests::until::{Seen, within};

use crate::goods;
use crate::orders::all_of;

/// Bound on all sagas: against a hang only.
const DEADLINE: Duration = Duration::from_secs(1_800);

/// Clients that place the orders.
const CLIENTS: u64 = 8;

/// Goods and lines of an order, of which there are too few for orders to keep out of each other's way, and plenty.
pub(crate) const GOODS: [u64; 2] = [10, 10_000];
const LINES: u64 = 3;

/// Calls a second to a provider: beyond what is asked for, since the limit is not what is measured.
const UNLIMITED: u32 = 100_000;

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Sagas {
    goods: u64,
    sagas: u64,
    /// From the first request to the last answer.
    placed: Duration,
    /// From the first request to the last confirmed order.
    confirmed: Duration,
    deadlocks: u64,
}

impl Sagas {
    fn rate(&self) -> f64 {
        self.sagas as f64 / self.confirmed.as_secs_f64()
    }

    fn placing_rate(&self) -> f64 {
        self.sagas as f64 / self.placed.as_secs_f64()
    }

    fn deadlocks_of_10_000(&self) -> f64 {
        self.deadlocks as f64 * 1e4 / self.sagas as f64
    }
}

/// Places that many orders over that many goods in a whole shop, and waits until each is confirmed.
pub(crate) async fn measure(scene: &mut Scene, goods: u64, sagas: u64) -> Result<Sagas> {
    let shop = Shop::open(scene, &[]).await?;
    goods::fill(&shop.scene().database, goods).await?;
    let worker = shop
        .worker()?
        .with("APP_PAYMENT_RATE", UNLIMITED)
        .with("APP_SHIPPING_RATE", UNLIMITED)
        .with("APP_LOG", "warn");
    let open = shop.start_with(worker).await?;
    let client = shop.client()?;
    let start = Instant::now();
    let post = move |number| post(client.clone(), number, goods);
    all_of(CLIENTS, 0..sagas, post).await?;
    let placed = start.elapsed();
    within(DEADLINE, "the orders to be CONFIRMED", async || {
        let left = "SELECT COUNT(*) FROM orders WHERE status = 'CREATED'";
        let left = shop.scene().database.number(left).await?;
        Ok(Seen::when(left == 0, || format!("{left} that are CREATED")))
    })
    .await?;
    let confirmed = start.elapsed();
    let others = "SELECT COUNT(*) FROM orders WHERE status <> 'CONFIRMED'";
    let others = shop.scene().database.number(others).await?;
    ensure!(others == 0, "{others} orders of {sagas} are not CONFIRMED");
    let deadlocks = open.worker.metrics().await?.get("mysql_deadlocks_total");
    open.close().await?;
    Ok(Sagas {
        goods,
        sagas,
        placed,
        confirmed,
        deadlocks,
    })
}

/// An order of several goods, in no order.
async fn post(client: Client, number: u64, goods: u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(number);
    let skus: Vec<String> = (0..LINES)
        .map(|_| goods::sku(random.u64(0..goods)))
        .collect();
    let items: Vec<(&str, u64)> = skus.iter().map(|sku| (sku.as_str(), 1)).collect();
    let body = shop::order(&items);
    client
        .place(&format!("saga:{number}"), &body)
        .await?
        .is(201)?;
    Ok(())
}

/// For a person.
pub(crate) fn table(all: &[Sagas]) -> String {
    let mut text = format!(
        "sagas from POST /orders to CONFIRMED, {CLIENTS} clients, {LINES} goods an order, one worker\n\
         {:>6} {:>7} {:>9} {:>9} {:>9} {:>17}",
        "goods", "sagas", "seconds", "placed/s", "sagas/s", "deadlocks/10,000"
    );
    for row in all {
        // Writing to a String can't fail.
        write!(
            text,
            "\n{:>6} {:>7} {:>9.1} {:>9.0} {:>9.0} {:>17.1}",
            row.goods,
            row.sagas,
            row.confirmed.as_secs_f64(),
            row.placing_rate(),
            row.rate(),
            row.deadlocks_of_10_000()
        )
        .unwrap_or_default();
    }
    text
}

/// For a program.
pub(crate) fn json(all: &[Sagas]) -> Value {
    let rows = all.iter().map(|row| {
        json!({
            "goods": row.goods, "sagas": row.sagas, "seconds": row.confirmed.as_secs_f64(),
            "placed_per_second": row.placing_rate(), "sagas_per_second": row.rate(),
            "deadlocks": row.deadlocks, "deadlocks_per_10_000": row.deadlocks_of_10_000(),
        })
    });
    Value::Array(rows.collect())
}
