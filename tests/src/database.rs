//! A database of its own on one of the servers.

use anyhow::{Context as _, Result};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder, Pool, Row, params};
use reqwest::Url;

use crate::servers::Flavor;

/// The business tables that the writers use.
const ORDERS_SQL: &str = include_str!("../../migrations/0003_orders.sql");

/// A database, to be [dropped](Database::drop) at the end.
#[derive(Debug)]
pub struct Database {
    flavor: Flavor,
    name: String,
    url: Url,
    server: Url,
    pool: Pool,
}

/// A row of `outbox_events`, as SQL shows it.
#[derive(Debug, Clone)]
pub struct OutboxRow {
    /// Primary key.
    pub id: i64,
    /// Kind of the aggregate.
    pub aggregate_type: String,
    /// Which aggregate.
    pub aggregate_id: i64,
    /// What happened.
    pub event_type: String,
    /// The bytes that `SELECT payload` sends.
    pub payload: Vec<u8>,
    /// Idempotency key.
    pub key: String,
    /// `created_at` as `2026-01-02T03:04:05.000006Z`.
    pub created_at: String,
    /// `created_at` in whole seconds since 1970.
    pub created_seconds: i64,
    /// `PENDING`, `PROCESSING`, `PUBLISHED` or `FAILED`.
    pub status: String,
    /// Counted failures.
    pub attempts: i64,
    /// Text of the last one.
    pub last_error: Option<String>,
}

const SELECT_ROWS: &str = "SELECT id, aggregate_type, aggregate_id, event_type, payload, \
     idempotency_key AS k, DATE_FORMAT(created_at, '%Y-%m-%dT%H:%i:%s.%fZ') AS created_at, \
     TIMESTAMPDIFF(SECOND, '1970-01-01', created_at) AS created_seconds, status, attempts, \
     last_error FROM outbox_events ORDER BY id";

impl OutboxRow {
    fn of(row: Row) -> Result<Self> {
        let mut row = row;
        let mut text = |column: &str| -> Result<String> {
            row.take(column)
                .with_context(|| format!("no column {column}"))
        };
        let (aggregate_type, event_type, key) =
            (text("aggregate_type")?, text("event_type")?, text("k")?);
        let (created_at, status) = (text("created_at")?, text("status")?);
        let mut number = |column: &str| -> Result<i64> {
            row.take(column)
                .with_context(|| format!("no column {column}"))
        };
        let (id, aggregate_id) = (number("id")?, number("aggregate_id")?);
        let (created_seconds, attempts) = (number("created_seconds")?, number("attempts")?);
        Ok(Self {
            id,
            aggregate_type,
            aggregate_id,
            event_type,
            payload: row.take("payload").context("no column payload")?,
            key,
            created_at,
            created_seconds,
            status,
            attempts,
            last_error: row.take("last_error").context("no column last_error")?,
        })
    }

    /// The body that DESIGN, section 6, gives this row.
    ///
    /// The text columns are written by the tests and need escapes only where `serde_json` puts them.
    pub fn body(&self) -> Vec<u8> {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut body = format!(
            "{{\"event_id\":{},\"event_type\":{},\"aggregate_type\":{},\"aggregate_id\":{},\
             \"idempotency_key\":{},\"created_at\":\"{}\",\"payload\":",
            self.id,
            quoted(&self.event_type),
            quoted(&self.aggregate_type),
            self.aggregate_id,
            quoted(&self.key),
            self.created_at,
        )
        .into_bytes();
        body.extend_from_slice(&self.payload);
        body.push(b'}');
        body
    }
}

/// A row to insert into `outbox_events`.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// Kind of the aggregate; the first word of the routing key.
    pub aggregate_type: String,
    /// Which aggregate.
    pub aggregate_id: i64,
    /// What happened; the second word of the routing key.
    pub event_type: String,
    /// JSON text.
    pub payload: String,
    /// Idempotency key.
    pub key: String,
    /// Status to insert it with.
    pub status: &'static str,
}

impl NewEvent {
    /// An `order` event with a small payload.
    pub fn order(aggregate_id: i64, event_type: &str, key: impl Into<String>) -> Self {
        Self {
            aggregate_type: "order".to_owned(),
            aggregate_id,
            event_type: event_type.to_owned(),
            payload: format!("{{\"order_id\": {aggregate_id}}}"),
            key: key.into(),
            status: "PENDING",
        }
    }
}

impl Database {
    /// Creates a database of that name, with the business tables in it.
    ///
    /// # Errors
    /// The server is not there, or refuses.
    pub async fn create(flavor: Flavor, name: String) -> Result<Self> {
        Self::create_at(flavor, flavor.url()?, name).await
    }

    /// [`create`](Self::create) on the server at that address.
    ///
    /// # Errors
    /// The server is not there, or refuses.
    pub async fn create_at(flavor: Flavor, server: Url, name: String) -> Result<Self> {
        let mut conn = Conn::new(options(&server)?)
            .await
            .with_context(|| format!("cannot connect to {flavor}: are its services up?"))?;
        conn.query_drop(format!("CREATE DATABASE `{name}` CHARACTER SET utf8mb4"))
            .await?;
        conn.disconnect().await?;
        let database = Self::open(flavor, server, name)?;
        database.apply(ORDERS_SQL).await?;
        Ok(database)
    }

    /// The database of that name that the server at that address has, or will have.
    ///
    /// # Errors
    /// The address is not one of MySQL.
    pub fn open(flavor: Flavor, server: Url, name: String) -> Result<Self> {
        let mut url = server.clone();
        url.set_path(&name);
        let pool = Pool::new(options(&url)?);
        Ok(Self {
            flavor,
            name,
            url,
            server,
            pool,
        })
    }

    /// Which server it is on.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address, password and all.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// A connection to it.
    ///
    /// # Errors
    /// The server is not there.
    pub async fn connect(&self) -> Result<Conn> {
        self.pool
            .get_conn()
            .await
            .context("cannot connect to the database")
    }

    /// Runs the statements of a migration, one by one.
    ///
    /// # Errors
    /// The first statement that fails.
    pub async fn apply(&self, sql: &str) -> Result<()> {
        let mut conn = self.connect().await?;
        for statement in sql.split(";\n") {
            let is_code = |line: &str| !line.trim().is_empty() && !line.starts_with("--");
            if statement.lines().any(is_code) {
                conn.query_drop(statement)
                    .await
                    .context("migration failed")?;
            }
        }
        Ok(())
    }

    /// Runs one statement.
    ///
    /// # Errors
    /// It failed.
    pub async fn execute(&self, sql: &str) -> Result<()> {
        Ok(self.connect().await?.query_drop(sql).await?)
    }

    /// The one number that a query gives.
    ///
    /// # Errors
    /// It failed, or gave none.
    pub async fn number(&self, sql: &str) -> Result<u64> {
        let number: Option<u64> = self.connect().await?.query_first(sql).await?;
        number.with_context(|| format!("no result: {sql}"))
    }

    /// How many rows of `outbox_events` meet that condition.
    ///
    /// # Errors
    /// The query failed.
    pub async fn count(&self, condition: &str) -> Result<u64> {
        self.number(&format!(
            "SELECT COUNT(*) FROM outbox_events WHERE {condition}"
        ))
        .await
    }

    /// Every row of `outbox_events`, by id.
    ///
    /// # Errors
    /// The query failed.
    pub async fn outbox(&self) -> Result<Vec<OutboxRow>> {
        let rows: Vec<Row> = self.connect().await?.query(SELECT_ROWS).await?;
        rows.into_iter().map(OutboxRow::of).collect()
    }

    /// Inserts events, in one transaction.
    ///
    /// # Errors
    /// It failed.
    pub async fn insert(&self, events: &[NewEvent]) -> Result<()> {
        let mut conn = self.connect().await?;
        conn.query_drop("START TRANSACTION").await?;
        let rows = events.iter().map(|event| {
            params! {
                "aggregate_type" => &event.aggregate_type, "aggregate_id" => event.aggregate_id,
                "event_type" => &event.event_type, "payload" => &event.payload,
                "k" => &event.key, "status" => event.status,
            }
        });
        conn.exec_batch(
            "INSERT INTO outbox_events \
             (aggregate_type, aggregate_id, event_type, payload, idempotency_key, status) \
             VALUES (:aggregate_type, :aggregate_id, :event_type, :payload, :k, :status)",
            rows,
        )
        .await?;
        conn.query_drop("COMMIT").await?;
        Ok(())
    }

    /// Drops it.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn drop(self) -> Result<()> {
        self.pool.disconnect().await?;
        let mut conn = Conn::new(options(&self.server)?).await?;
        conn.query_drop(format!("DROP DATABASE IF EXISTS `{}`", self.name))
            .await?;
        conn.disconnect().await?;
        Ok(())
    }
}

fn options(url: &Url) -> Result<OptsBuilder> {
    // TCP only: a test that cuts or counts connections must know what they are.
    let opts = Opts::from_url(url.as_str()).context("not a MySQL URL")?;
    Ok(OptsBuilder::from_opts(opts).prefer_socket(false))
}
