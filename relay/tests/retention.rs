//! The plan of the cleaner on real servers: it reads published rows by the index, in order, and no others.
//!
//! Needs `MYSQL_URL` and `MARIADB_URL`: `eval "$(scripts/services env)"`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use relay::config::{Config, Raw};
use relay::mysql::Session;
use relay::retention::Pruner;

#[tokio::test]
async fn cleaning_reads_by_the_index_on_mysql() -> Result<()> {
    plan("MYSQL_URL").await
}

#[tokio::test]
async fn cleaning_reads_by_the_index_on_mariadb() -> Result<()> {
    plan("MARIADB_URL").await
}

async fn plan(server: &str) -> Result<()> {
    let server = std::env::var(server).with_context(|| format!("{server} is not set"))?;
    let name = format!("relay_retention_{:08x}", fastrand::u32(..));
    let mut conn = Conn::from_url(&server).await?;
    conn.query_drop(format!("CREATE DATABASE {name}")).await?;
    conn.query_drop(format!("USE {name}")).await?;
    let outcome = plan_in(&mut conn, &format!("{server}/{name}")).await;
    conn.query_drop(format!("DROP DATABASE {name}")).await?;
    outcome
}

async fn plan_in(conn: &mut Conn, url: &str) -> Result<()> {
    reliability::migrate::run(conn, &[reliability::migrate::OUTBOX]).await?;
    // Many that are not published, so that the primary key is the wrong way.
    for status in ["PENDING", "PUBLISHED", "PENDING"] {
        let rows: Vec<String> = (0..2_000)
            .map(|_| format!("('a', 1, 't', '{{}}', UUID(), '{status}', NOW(6))"))
            .collect();
        conn.query_drop(format!(
            "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, idempotency_key, status, published_at) \
             VALUES {}",
            rows.join(", ")
        ))
        .await?;
    }
    conn.query_drop("ANALYZE TABLE outbox_events").await?;
    let variables = [
        ("RELAY_MYSQL_URL", url),
        ("RELAY_AMQP_URL", "amqp://localhost/%2f"),
    ];
    let variables = variables
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
    let config = Config::from_raw(&Raw::load(None, variables, std::iter::empty())?)?;
    let session = Session::connect(&config).await?;
    let mut pruner = Pruner::open(&config, session, Duration::from_secs(60), 500, true).await??;
    let plan = pruner.plan(2_100).await?;
    // MySQL 9 draws a tree, MariaDB a table.
    let by_index = plan.contains("Index range scan on outbox_events using idx_outbox_claim")
        || (plan.contains("type='range'") && plan.contains("key='idx_outbox_claim'"));
    ensure!(by_index, "not by the index: {plan}");
    let sorts = plan.contains("filesort") || plan.contains("Sort");
    ensure!(!sorts, "it sorts: {plan}");
    Ok(())
}
