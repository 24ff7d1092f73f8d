//! A scene's shop: the app in all its roles, its providers and the relay, as processes on databases and queues of their own.
//!
//! ```text
//!  Client ──▶ app api ──▶ Database ──▶ relay ──▶ Broker ──▶ app worker ──▶ app providers
//!                            └────────────── Books: do they agree? ───────────────┘
//! ```

mod books;
mod client;
mod providers;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::{FromRow, Queryable as _};

use crate::port;
use crate::program::{Output, Program, Running};
use crate::relay::RelayProcess;
use crate::scene::Scene;
use crate::until::{Seen, until};

pub use books::Books;
pub use client::{Answer, Client, PRICE, order};
pub use providers::{Fact, Facts, Providers};

/// The settings of a shop's workers: as short as they may be while a machine under load still keeps a lease.
const WORKER: [(&str, &str); 7] = [
    ("APP_SAGA_LEASE_MS", "3000"),
    ("APP_SAGA_POLL_MS", "100"),
    ("APP_SAGA_ATTEMPTS", "3"),
    ("APP_SAGA_RETRY_MS", "20"),
    ("APP_SAGA_RECOVER_MS", "200"),
    ("APP_PROVIDER_TIMEOUT_MS", "3000"),
    ("APP_PROVIDER_OPEN_MS", "500"),
];

/// A role of the app, to be started.
#[derive(Debug, Clone)]
pub struct Role {
    program: Program,
    arguments: Vec<String>,
    variable: &'static str,
    address: String,
}

impl Role {
    /// Sets a variable.
    #[must_use]
    pub fn with(mut self, variable: &str, value: impl ToString) -> Self {
        self.program = self.program.with(variable, value);
        self
    }

    /// Starts it and does not wait.
    ///
    /// # Errors
    /// It could not be started.
    pub fn spawn(&self) -> Result<Running> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.program
            .serve(&arguments, self.variable, self.address.clone())
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// It ended, or is not ready by the deadline.
    pub async fn start(&self) -> Result<Running> {
        let mut running = self.spawn()?;
        running.ready().await?;
        Ok(running)
    }
}

/// A shop with its goods, nothing of it started.
#[derive(Debug)]
pub struct Shop<'a> {
    scene: &'a Scene,
    stock: BTreeMap<String, u64>,
    queue: String,
    api: String,
    providers: String,
}

/// All of a shop, running.
#[derive(Debug)]
pub struct Open {
    /// `app providers`.
    pub providers: Running,
    /// `app api`.
    pub api: Running,
    /// `app worker`.
    pub worker: Running,
    /// `relay run`.
    pub relay: RelayProcess,
}

impl Open {
    /// Stops all, from the door to the back.
    ///
    /// # Errors
    /// One does not end with 0.
    pub async fn close(self) -> Result<()> {
        self.api.stop().await?;
        self.relay.stop().await?;
        self.worker.stop().await?;
        self.providers.stop().await
    }
}

impl<'a> Shop<'a> {
    /// Migrates the scene's database by `app migrate` and puts those goods into the stock.
    ///
    /// # Errors
    /// A command failed.
    pub async fn open(scene: &'a mut Scene, stock: &[(&str, u64)]) -> Result<Self> {
        let queue = format!("{}.worker", scene.broker.exchange());
        scene.broker.adopt(queue.clone());
        let address = || anyhow::Ok(format!("127.0.0.1:{}", port::free()?));
        let mut shop = Self {
            scene,
            stock: BTreeMap::new(),
            queue,
            api: address()?,
            providers: address()?,
        };
        shop.command(&["migrate"]).await?.is(0, &[])?;
        for (sku, available) in stock {
            shop.fill(sku, *available).await?;
        }
        Ok(shop)
    }

    /// The scene it plays in.
    pub fn scene(&self) -> &'a Scene {
        self.scene
    }

    /// Puts goods into the stock by `app stock set`; there are as many as that, whoever has them.
    ///
    /// # Errors
    /// The command failed.
    pub async fn fill(&mut self, sku: &str, available: u64) -> Result<()> {
        let set = ["stock", "set", sku, &available.to_string()];
        self.command(&set).await?.is(0, &[])?;
        self.stock.insert(sku.to_owned(), available);
        Ok(())
    }

    /// Runs a command of the app that ends by itself.
    ///
    /// # Errors
    /// It could not be started, or does not end.
    pub async fn command(&self, arguments: &[&str]) -> Result<Output> {
        self.scene.app("app").output(arguments).await
    }

    fn role(&self, name: &'static str, variable: &'static str, address: String) -> Role {
        Role {
            program: self.scene.app(name),
            arguments: vec![name.to_owned()],
            variable,
            address,
        }
    }

    /// `app api`, always at the same address.
    pub fn api(&self) -> Role {
        self.role("api", "APP_HTTP_ADDR", self.api.clone())
    }

    /// One more `app worker`.
    ///
    /// # Errors
    /// No port is free.
    pub fn worker(&self) -> Result<Role> {
        let address = format!("127.0.0.1:{}", port::free()?);
        let providers = format!("http://{}", self.providers);
        let role = WORKER
            .iter()
            .fold(
                self.role("worker", "APP_WORKER_HTTP_ADDR", address),
                |role, (variable, value)| role.with(variable, value),
            )
            .with("APP_QUEUE", &self.queue)
            .with("APP_PAYMENT_URL", &providers)
            .with("APP_SHIPPING_URL", &providers);
        Ok(role)
    }

    /// `app providers`, always at the same address and with the same file of facts.
    pub fn providers(&self) -> Role {
        self.role("providers", "APP_PROVIDERS_ADDR", self.providers.clone())
            .with(
                "APP_PROVIDERS_STATE",
                self.scene.path("providers.facts").display(),
            )
    }

    /// Starts all of it.
    ///
    /// # Errors
    /// One ended, or is not ready by the deadline.
    pub async fn start(&self) -> Result<Open> {
        self.start_with(self.worker()?).await
    }

    /// Starts all of it, with that worker.
    ///
    /// # Errors
    /// One ended, or is not ready by the deadline.
    pub async fn start_with(&self, worker: Role) -> Result<Open> {
        let providers = self.providers().start().await?;
        // First, for it declares the queue: without one, the relay could deliver nothing.
        let worker = worker.start().await?;
        let api = self.api().start().await?;
        let relay = self.scene.relay().start().await?;
        Ok(Open {
            providers,
            api,
            worker,
            relay,
        })
    }

    /// A client of its API.
    ///
    /// # Errors
    /// None can be made.
    pub fn client(&self) -> Result<Client> {
        Client::new(&self.api)
    }

    /// Whoever asks the providers.
    ///
    /// # Errors
    /// No client can be made.
    pub fn provider(&self) -> Result<Providers> {
        Providers::new(&self.providers)
    }

    /// Rows of a query.
    ///
    /// # Errors
    /// It failed.
    pub async fn rows<T: FromRow + Send + 'static>(&self, sql: &str) -> Result<Vec<T>> {
        let mut conn = self.scene.database.connect().await?;
        conn.query(sql)
            .await
            .with_context(|| format!("failed: {sql}"))
    }

    /// Types of an order's events, in the order in which they were written.
    ///
    /// # Errors
    /// The query failed.
    pub async fn events(&self, order_id: u64) -> Result<Vec<String>> {
        self.rows(&format!(
            "SELECT event_type FROM outbox_events WHERE aggregate_type = 'order' AND aggregate_id = {order_id} ORDER BY id"
        ))
        .await
    }

    /// Asserts the events of an order.
    ///
    /// # Errors
    /// They are others.
    pub async fn told(&self, order_id: u64, expected: &[&str]) -> Result<()> {
        let events = self.events(order_id).await?;
        ensure!(
            events == expected,
            "the events of order {order_id} are {events:?}, not {expected:?}"
        );
        Ok(())
    }

    /// Asserts status and steps of an order's saga, each step as `Name:STATUS`.
    ///
    /// # Errors
    /// They are others.
    pub async fn saga_is(&self, order_id: u64, status: &str, steps: &[&str]) -> Result<()> {
        let (id, found) = self.saga(order_id).await?;
        let history: Vec<String> = self
            .rows(&format!(
                "SELECT CONCAT(step_name, ':', status) FROM saga_steps WHERE saga_id = '{id}' AND status <> 'PENDING' ORDER BY step_order"
            ))
            .await?;
        ensure!(
            found == status && history == steps,
            "the saga of order {order_id} is {found} with {history:?}, not {status} with {steps:?}"
        );
        Ok(())
    }

    /// Id and status of an order's saga.
    ///
    /// # Errors
    /// There is none.
    pub async fn saga(&self, order_id: u64) -> Result<(String, String)> {
        let select = format!(
            "SELECT id, status FROM saga_instances WHERE correlation_id = 'order:{order_id}'"
        );
        let rows = self.rows(&select).await?;
        rows.into_iter()
            .next()
            .with_context(|| format!("order {order_id} has no saga"))
    }

    /// Available and reserved.
    ///
    /// # Errors
    /// There is no such sku.
    pub async fn stock(&self, sku: &str) -> Result<(i64, i64)> {
        let select = format!("SELECT available, reserved FROM inventory WHERE sku = '{sku}'");
        let rows = self.rows(&select).await?;
        rows.into_iter()
            .next()
            .with_context(|| format!("there is no {sku}"))
    }

    /// Waits until nothing is under way any more: each order at its end, each event published and received.
    ///
    /// # Errors
    /// The deadline passed.
    pub async fn settles(&self) -> Result<()> {
        let open = "SELECT CONCAT_WS(', ', \
             (SELECT CONCAT(COUNT(*), ' orders CREATED') FROM orders WHERE status = 'CREATED' HAVING COUNT(*) > 0), \
             (SELECT CONCAT(COUNT(*), ' sagas open') FROM saga_instances \
              WHERE status NOT IN ('COMPLETED', 'COMPENSATED', 'FAILED') HAVING COUNT(*) > 0), \
             (SELECT CONCAT(COUNT(*), ' commands open') FROM command_queue WHERE status <> 'DONE' HAVING COUNT(*) > 0), \
             (SELECT CONCAT(COUNT(*), ' events not PUBLISHED') FROM outbox_events WHERE status <> 'PUBLISHED' HAVING COUNT(*) > 0), \
             (SELECT CONCAT(COUNT(*), ' events not received') FROM outbox_events e LEFT JOIN inbox_events i \
              ON i.event_id = e.idempotency_key WHERE i.processed_at IS NULL HAVING COUNT(*) > 0))";
        until("the shop to settle", async || {
            let open: Vec<String> = self.rows(open).await?;
            let open = open.concat();
            Ok(Seen::when(open.is_empty(), || open))
        })
        .await
    }

    /// Waits until nothing is under way, and checks that database and providers agree.
    ///
    /// # Errors
    /// The deadline passed, or they do not.
    pub async fn balances(&self) -> Result<Books> {
        self.settles().await?;
        let facts = self.provider()?.facts().await?;
        let books = Books::read(self, facts).await?;
        books.balance(&self.stock)?;
        Ok(books)
    }
}
