//! Writers: what an application does, with a ledger of it.
//!
//! A transaction writes a business row and its outbox rows together. Each order is one aggregate and
//! belongs to one writer, so its commit order is known without asking the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::database::Database;
use crate::ledger::{Committed, Ledger};
use crate::until::{Seen, until};

/// What the writers do.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Concurrent connections.
    pub writers: u64,
    /// Orders in all, those rolled back included; `None`: until they are stopped.
    pub orders: Option<u64>,
    /// Per cent of the transactions that are rolled back.
    pub rolled_back: u8,
    /// Orders a second and writer at most; `None`: as fast as they can.
    pub pace: Option<u32>,
}

impl Load {
    /// That many orders by eight writers, 5 % of the transactions rolled back.
    pub fn orders(orders: u64) -> Self {
        Self {
            orders: Some(orders),
            ..Self::endless()
        }
    }

    /// Eight writers until they are stopped, 5 % of the transactions rolled back.
    pub fn endless() -> Self {
        Self {
            writers: 8,
            orders: None,
            rolled_back: 5,
            pace: None,
        }
    }

    /// At most that many orders a second and writer.
    #[must_use]
    pub fn paced(self, pace: u32) -> Self {
        Self {
            pace: Some(pace),
            ..self
        }
    }
}

/// Writers at work.
#[derive(Debug)]
pub struct Writers {
    tasks: JoinSet<Result<Ledger>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    committed: AtomicU64,
}

impl Writers {
    /// Starts them.
    ///
    /// # Errors
    /// No connection.
    pub async fn start(database: &Database, load: Load) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        for number in 0..load.writers {
            // The first writers take what does not divide.
            let share =
                |orders: u64| orders / load.writers + u64::from(number < orders % load.writers);
            let writer = Writer {
                conn: database.connect().await?,
                rng: Rng::with_seed(number),
                load: Load {
                    orders: load.orders.map(share),
                    ..load
                },
                shared: shared.clone(),
                ledger: Ledger::new(),
            };
            tasks.spawn(writer.run());
        }
        Ok(Self { tasks, shared })
    }

    /// Events committed so far.
    pub fn committed(&self) -> u64 {
        self.shared.committed.load(Ordering::Relaxed)
    }

    /// Waits until that many more events are committed.
    ///
    /// # Errors
    /// The deadline passed.
    pub async fn commit_more(&self, events: u64) -> Result<()> {
        let goal = self.committed() + events;
        until("the writers to commit more", async || {
            let found = self.committed();
            Ok(Seen::when(found >= goal, || format!("{found} of {goal}")))
        })
        .await
    }

    /// Stops them after the transaction they are in.
    ///
    /// # Errors
    /// A transaction failed: nothing the relay does may do that to an application.
    pub async fn stop(self) -> Result<Ledger> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.finish().await
    }

    /// Waits until they have written all orders.
    ///
    /// # Errors
    /// A transaction failed: nothing the relay does may do that to an application.
    pub async fn finish(mut self) -> Result<Ledger> {
        let mut all = Ledger::new();
        while let Some(ledger) = self.tasks.join_next().await {
            all.extend(ledger?.context("a writer's transaction failed")?);
        }
        Ok(all)
    }
}

/// Places orders with [`Load::orders`] and waits for the end.
///
/// # Errors
/// A transaction failed.
pub async fn place_orders(database: &Database, load: Load) -> Result<Ledger> {
    Writers::start(database, load).await?.finish().await
}

struct Writer {
    conn: Conn,
    rng: Rng,
    load: Load,
    shared: Arc<Shared>,
    ledger: Ledger,
}

impl Writer {
    async fn run(mut self) -> Result<Ledger> {
        let mut pace = self.load.pace.map(|pace| {
            let mut ticks = interval(Duration::from_secs(1) / pace);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        let mut placed = 0;
        while self.load.orders.is_none_or(|orders| placed < orders)
            && !self.shared.stop.load(Ordering::Relaxed)
        {
            if let Some(ticks) = &mut pace {
                ticks.tick().await;
            }
            self.order().await?;
            placed += 1;
        }
        Ok(self.ledger)
    }

    /// An order: created, for every other one with an invoice in the same transaction, and for every
    /// fourth one paid in a transaction of its own right after.
    async fn order(&mut self) -> Result<()> {
        let cents = self.rng.u32(100..1_000_000);
        self.conn.query_drop("START TRANSACTION").await?;
        self.conn
            .exec_drop(
                "INSERT INTO orders (customer_id, status, total_cents) VALUES (?, 'NEW', ?)",
                (self.rng.u32(1..10_000), cents),
            )
            .await?;
        let id = self.conn.last_insert_id().context("no order id")?;
        let id = i64::try_from(id)?;
        let mut kinds = vec!["OrderCreated"];
        if self.rng.bool() {
            kinds.push("InvoiceRequested");
        }
        let kept = self.write(id, &kinds, cents).await?;
        if kept && self.rng.u8(..) < 64 {
            self.conn.query_drop("START TRANSACTION").await?;
            self.conn
                .exec_drop(
                    "UPDATE orders SET status = 'PAID', version = version + 1 WHERE id = ?",
                    (id,),
                )
                .await?;
            self.write(id, &["OrderPaid"], cents).await?;
        }
        Ok(())
    }

    /// Writes the outbox rows in one statement and ends the transaction; whether it was committed.
    async fn write(&mut self, id: i64, kinds: &[&str], cents: u32) -> Result<bool> {
        let values = vec!["('order', ?, ?, ?, ?)"; kinds.len()].join(", ");
        let insert = format!(
            "INSERT INTO outbox_events \
             (aggregate_type, aggregate_id, event_type, payload, idempotency_key) VALUES {values}"
        );
        let events: Vec<Committed> = kinds
            .iter()
            .map(|kind| Committed {
                aggregate_id: id,
                event_type: (*kind).to_owned(),
                key: format!("order:{id}:{kind}"),
            })
            .collect();
        let parameters: Vec<mysql_async::Value> = events
            .iter()
            .flat_map(|event| {
                let payload = format!(
                    "{{\"order_id\": {id}, \"total_cents\": {cents}, \"what\": \"{}\", \
                     \"customer\": {{\"name\": \"Зоя 🛒\", \"vip\": {}}}}}",
                    event.event_type,
                    cents.is_multiple_of(2),
                );
                [
                    id.into(),
                    (&event.event_type).into(),
                    payload.into(),
                    (&event.key).into(),
                ]
            })
            .collect();
        self.conn.exec_drop(insert, parameters).await?;
        let keep = self.rng.u8(..100) >= self.load.rolled_back;
        if keep {
            self.conn.query_drop("COMMIT").await?;
            let count = u64::try_from(events.len())?;
            self.ledger.commit(events);
            self.shared.committed.fetch_add(count, Ordering::Relaxed);
        } else {
            self.conn.query_drop("ROLLBACK").await?;
            self.ledger.roll_back(events);
        }
        Ok(keep)
    }
}
