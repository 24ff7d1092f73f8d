//! `POST /orders` of the app, beside a bare transaction of two inserts.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts, TxOpts};
use serde_json::{Value, json};
use tests::scene::Scene;
use tests::shop::{self, Client, Shop};
use tokio::task::JoinSet;

use crate::goods;
use crate::latency::percentile;

/// Clients at once.
const CLIENTS: [u64; 3] = [1, 8, 64];

/// Goods that are ordered in turn; an order takes none from the stock.
const GOODS: u64 = 100;

/// Connections of the app's pool, its default, and of the bare one.
const CONNECTIONS: usize = 32;

/// Orders before the clock starts: connections are opened, statements prepared.
const WARM_UP: u64 = 200;

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Orders {
    what: &'static str,
    clients: u64,
    time: Duration,
    /// Of every order, sorted.
    times: Vec<Duration>,
}

impl Orders {
    fn rate(&self) -> f64 {
        self.times.len() as f64 / self.time.as_secs_f64()
    }
}

/// Places that many orders with each number of clients, through the API and by the bare transaction.
pub(crate) async fn measure(scene: &mut Scene, orders: u64) -> Result<Vec<Orders>> {
    let shop = Shop::open(scene, &[]).await?;
    goods::fill(&shop.scene().database, GOODS).await?;
    let api = shop
        .api()
        .with("APP_MYSQL_CONNECTIONS", CONNECTIONS)
        .with("APP_LOG", "warn")
        .start()
        .await?;
    let pool = pool(shop.scene())?;
    let mut all = Vec::new();
    for clients in CLIENTS {
        let client = shop.client()?;
        let post = move |number| post(client.clone(), format!("api:{clients}:{number}"), number);
        all.push(timed("POST /orders", clients, orders, post).await?);
        let bare = pool.clone();
        let insert = move |number| insert(bare.clone(), format!("bare:{clients}:{number}"), number);
        all.push(timed("bare transaction", clients, orders, insert).await?);
    }
    api.stop().await?;
    pool.disconnect().await?;
    Ok(all)
}

/// A pool as the app's.
fn pool(scene: &Scene) -> Result<Pool> {
    let options = PoolOpts::default()
        .with_constraints(PoolConstraints::new(0, CONNECTIONS).unwrap_or_default())
        .with_reset_connection(false);
    let url = Opts::from_url(scene.database.url().as_str())?;
    Ok(Pool::new(
        OptsBuilder::from_opts(url)
            .prefer_socket(false)
            .pool_opts(options),
    ))
}

async fn post(client: Client, key: String, number: u64) -> Result<()> {
    let body = shop::order(&[(&goods::sku(number % GOODS), 1)]);
    client.place(&key, &body).await?.is(201)?;
    Ok(())
}

/// The order and its event: the least that any application of the outbox pattern has to do.
async fn insert(pool: Pool, key: String, number: u64) -> Result<()> {
    let mut tx = pool.start_transaction(TxOpts::default()).await?;
    tx.exec_drop(
        "INSERT INTO orders (customer_id, status, total_cents) VALUES (?, 'CREATED', ?)",
        (7, shop::PRICE),
    )
    .await?;
    let id = tx.last_insert_id().unwrap_or_default();
    let items = [json!({"sku": goods::sku(number % GOODS), "qty": 1, "price_cents": shop::PRICE})];
    let payload = json!({
        "order_id": id, "customer_id": 7, "items": items, "total_cents": shop::PRICE,
    });
    tx.exec_drop(
        "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, idempotency_key) \
         VALUES ('order', ?, 'OrderCreated', ?, ?)",
        (id, payload.to_string(), key),
    )
    .await?;
    Ok(tx.commit().await?)
}

/// Places a few orders to warm up and then those that count.
async fn timed<P, R>(what: &'static str, clients: u64, orders: u64, place: P) -> Result<Orders>
where
    P: Fn(u64) -> R + Clone + Send + 'static,
    R: Future<Output = Result<()>> + Send,
{
    all_of(clients, 0..WARM_UP, place.clone()).await?;
    let start = Instant::now();
    let mut times = all_of(clients, WARM_UP..WARM_UP + orders, place).await?;
    let time = start.elapsed();
    times.sort_unstable();
    Ok(Orders {
        what,
        clients,
        time,
        times,
    })
}

/// Places orders of those numbers, each client one after another; the time of each.
pub(crate) async fn all_of<P, R>(
    clients: u64,
    numbers: Range<u64>,
    place: P,
) -> Result<Vec<Duration>>
where
    P: Fn(u64) -> R + Clone + Send + 'static,
    R: Future<Output = Result<()>> + Send,
{
    let next = Arc::new(AtomicU64::new(numbers.start));
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (place, next, end) = (place.clone(), next.clone(), numbers.end);
        tasks.spawn(async move {
            let mut times = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return anyhow::Ok(times);
                }
                let sent = Instant::now();
                place(number).await?;
                times.push(sent.elapsed());
            }
        });
    }
    let mut all = Vec::new();
    while let Some(times) = tasks.join_next().await {
        all.extend(times??);
    }
    Ok(all)
}

/// For a person.
pub(crate) fn table(all: &[Orders]) -> String {
    let mut text = format!(
        "orders by clients that place one after another\n{:<18} {:>7} {:>7} {:>9} {:>8} {:>8}",
        "what", "clients", "orders", "orders/s", "p50 ms", "p99 ms"
    );
    for row in all {
        // Writing to a String can't fail.
        write!(
            text,
            "\n{:<18} {:>7} {:>7} {:>9.0} {:>8.2} {:>8.2}",
            row.what,
            row.clients,
            row.times.len(),
            row.rate(),
            percentile(&row.times, 50),
            percentile(&row.times, 99)
        )
        .unwrap_or_default();
    }
    text
}

/// For a program.
pub(crate) fn json(all: &[Orders]) -> Value {
    let rows = all.iter().map(|row| {
        json!({
            "what": row.what, "clients": row.clients, "orders": row.times.len(),
            "orders_per_second": row.rate(),
            "p50_ms": percentile(&row.times, 50), "p99_ms": percentile(&row.times, 99),
        })
    });
    Value::Array(rows.collect())
}
