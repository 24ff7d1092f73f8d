//! The events that are published, the same for everyone.

use std::fmt::Write as _;

use anyhow::Result;
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use tests::database::Database;

/// Events that share an aggregate: far apart, so that order per aggregate has work to do and the window
/// still fills.
const EVENTS_PER_AGGREGATE: u64 = 10;

/// Bytes of a payload.
const PAYLOAD: usize = 300;

/// Rows a statement of a big transaction: far below the server's `max_allowed_packet`.
const ROWS_PER_STATEMENT: u64 = 1_000;

/// Routing key of every event.
pub(crate) const ROUTING_KEY: &str = "order.OrderCreated";

/// Event type of every event.
pub(crate) const EVENT_TYPE: &str = "OrderCreated";

/// The payload of event `number`, as MySQL's JSON shows it.
pub(crate) fn payload(number: u64) -> String {
    let start = format!("{{\"order_id\": {number}, \"description\": \"");
    let fill = PAYLOAD.saturating_sub(start.len() + 2);
    format!("{start}{}\"}}", "x".repeat(fill))
}

/// The key of event `number`.
pub(crate) fn key(number: u64) -> String {
    format!("order:{number}:created")
}

/// The aggregate of event `number` of `events`.
pub(crate) fn aggregate(number: u64, events: u64) -> u64 {
    number % events.div_ceil(EVENTS_PER_AGGREGATE).max(1)
}

/// Inserts that many rows, `batch` a transaction.
pub(crate) async fn insert(database: &Database, events: u64, batch: u64) -> Result<()> {
    let mut conn = database.connect().await?;
    statements(&mut conn, events, batch).await
}

/// A transaction with all its rows in it.
pub(crate) struct Uncommitted(Conn);

impl Uncommitted {
    /// Ends it.
    pub(crate) async fn commit(mut self) -> Result<()> {
        Ok(self.0.query_drop("COMMIT").await?)
    }
}

/// Inserts that many rows in one transaction and leaves it open.
pub(crate) async fn insert_at_once(database: &Database, events: u64) -> Result<Uncommitted> {
    let mut conn = database.connect().await?;
    conn.query_drop("START TRANSACTION").await?;
    statements(&mut conn, events, ROWS_PER_STATEMENT).await?;
    Ok(Uncommitted(conn))
}

/// Inserts that many rows, `rows` a statement.
async fn statements(conn: &mut Conn, events: u64, rows: u64) -> Result<()> {
    let mut next = 0;
    while next < events {
        let end = events.min(next + rows.max(1));
        let mut sql = "INSERT INTO outbox_events \
             (aggregate_type, aggregate_id, event_type, payload, idempotency_key) VALUES "
            .to_owned();
        for number in next..end {
            let comma = if number == next { "" } else { "," };
            write!(
                sql,
                "{comma}('order',{},'{EVENT_TYPE}','{}','{}')",
                aggregate(number, events),
                payload(number),
                key(number)
            )?;
        }
        conn.query_drop(sql).await?;
        next = end;
    }
    Ok(())
}
