//! The yardstick: the worker of the outbox pattern's usual write-up.
//!
//! Claim up to 100 rows in a transaction; then for each: publish, await the confirm, mark, commit.
//! It is spared what that worker does besides: a new connection a batch, and a second's sleep after it.

use std::time::Instant;

use anyhow::Result;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use reqwest::Url;
use tests::process::Usage;

use crate::bare::{self, Post};
use crate::measurement::Spent;

/// An id, aggregate, event type, payload, key.
type Claimed = (u64, u64, String, String, String);

const CLAIM: &str = "SELECT id, aggregate_id, event_type, payload, idempotency_key \
     FROM outbox_events WHERE status IN ('PENDING', 'FAILED') AND attempts < 10 \
     AND (locked_until IS NULL OR locked_until < NOW(6)) ORDER BY id LIMIT 100 \
     FOR UPDATE SKIP LOCKED";

const MARK: &str = "UPDATE outbox_events SET status = 'PUBLISHED', published_at = NOW(6), \
     locked_by = NULL, locked_until = NULL, last_error = NULL WHERE id = ?";

/// Works off that many rows.
pub(crate) async fn work(mysql: &str, amqp: &Url, exchange: &str, events: u64) -> Result<Spent> {
    let options = OptsBuilder::from_opts(Opts::from_url(mysql)?).prefer_socket(false);
    let mut conn = Conn::new(options).await?;
    let (_connection, channel) = bare::open(amqp).await?;
    let start = Instant::now();
    let mut done = 0;
    while done < events {
        for (id, aggregate, event_type, payload, key) in claim(&mut conn).await? {
            let body = format!(
                "{{\"event_id\":{id},\"event_type\":\"{event_type}\",\"aggregate_type\":\"order\",\
                 \"aggregate_id\":{aggregate},\"idempotency_key\":\"{key}\",\
                 \"created_at\":\"2026-01-02T03:04:05.000006Z\",\"payload\":{payload}}}"
            );
            let post = Post {
                id,
                aggregate,
                key,
                body,
            };
            bare::confirmed(Some(bare::post(&channel, exchange, &post).await?)).await?;
            conn.query_drop("START TRANSACTION").await?;
            conn.exec_drop(MARK, (id,)).await?;
            conn.query_drop("COMMIT").await?;
            done += 1;
        }
    }
    let spent = Spent {
        time: start.elapsed(),
        usage: Usage::of(std::process::id())?,
    };
    conn.disconnect().await?;
    Ok(spent)
}

async fn claim(conn: &mut Conn) -> Result<Vec<Claimed>> {
    conn.query_drop("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        .await?;
    conn.query_drop("START TRANSACTION").await?;
    let rows: Vec<Claimed> = conn.query(CLAIM).await?;
    if !rows.is_empty() {
        let ids: Vec<String> = rows.iter().map(|row| row.0.to_string()).collect();
        conn.query_drop(format!(
            "UPDATE outbox_events SET status = 'PROCESSING', locked_by = 'bench', \
             locked_until = DATE_ADD(NOW(6), INTERVAL 120 SECOND) WHERE id IN ({})",
            ids.join(",")
        ))
        .await?;
    }
    conn.query_drop("COMMIT").await?;
    Ok(rows)
}
