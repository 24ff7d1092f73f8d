//! The events that are published, the same for everyone.

use std::fmt::Write as _;

use anyhow::Result;
use mysql_async::prelude::Queryable as _;
use tests::database::Database;

/// Events that share an aggregate: far apart, so that order per aggregate has work to do and the window
/// still fills.
const EVENTS_PER_AGGREGATE: u64 = 10;

/// Bytes of a payload.
const PAYLOAD: usize = 300;

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
    let mut next = 0;
    while next < events {
        let end = events.min(next + batch.max(1));
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
