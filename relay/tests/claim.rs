//! The claimer's statements on real servers: what they lock, and what they cost.
//!
//! Needs `MYSQL_URL` and `MARIADB_URL`: `eval "$(scripts/services env)"`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts};
use relay::config::{Config, Raw};
use relay::ledger::Claim;
use relay::source::claim::{Claimer, Pick, token};

const OUTBOX_SQL: &str = include_str!("../../migrations/0001_outbox.sql");
/// Rows published long ago, among which the others are to be found.
const PUBLISHED: usize = 20_000;

struct Scratch {
    conn: Conn,
    url: String,
}

/// Runs a test on both servers, in a database of its own with the outbox table in it.
async fn on_both(test: impl AsyncFn(&mut Scratch) -> Result<()>) -> Result<()> {
    for variable in ["MYSQL_URL", "MARIADB_URL"] {
        let server = std::env::var(variable)
            .with_context(|| format!("{variable} is not set: eval \"$(scripts/services env)\""))?;
        let name = format!("claim_{}_{:08x}", std::process::id(), fastrand::u32(..));
        let mut conn = Conn::new(Opts::from_url(&server)?).await?;
        conn.query_drop(format!("CREATE DATABASE {name}")).await?;
        conn.query_drop(format!("USE {name}")).await?;
        let statements = OUTBOX_SQL.split(";\n").filter(|sql| sql.contains("CREATE"));
        for statement in statements {
            conn.query_drop(statement).await?;
        }
        let url = format!("{}/{name}", server.trim_end_matches('/'));
        let mut scratch = Scratch { conn, url };
        let outcome = test(&mut scratch).await.context(variable);
        let drop = format!("DROP DATABASE {name}");
        scratch.conn.query_drop(drop).await?;
        outcome?;
    }
    Ok(())
}

impl Scratch {
    async fn insert(&mut self, count: usize, status: &str) -> Result<()> {
        let tag = fastrand::u32(..);
        let rows: Vec<String> = (0..count)
            .map(|n| format!("('order', {n}, 'Made', '{{}}', '{tag}-{n}', '{status}')"))
            .collect();
        for rows in rows.chunks(5_000) {
            let insert = format!(
                "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, idempotency_key, status) VALUES {}",
                rows.join(",")
            );
            self.conn.query_drop(insert).await?;
        }
        Ok(self.conn.query_drop("ANALYZE TABLE outbox_events").await?)
    }

    async fn claimer(&self, form: &str, batch: usize) -> Result<Claimer> {
        let variables = [
            ("RELAY_MYSQL_URL", self.url.clone()),
            ("RELAY_AMQP_URL", "amqp://u:p@127.0.0.1/%2f".to_owned()),
            ("RELAY_CLAIM", form.to_owned()),
            ("RELAY_CLAIM_BATCH", batch.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        let raw = Raw::load(None, variables.into_iter(), std::iter::empty())?;
        let claim = Claim {
            token: token("relay-a", 1),
            lease: Duration::from_secs(600),
        };
        Ok(Claimer::open(&Config::from_raw(&raw)?, claim).await?)
    }
}

/// By the index on status and id, without a sort, whether many rows are unpublished or hardly any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_read_the_index_in_its_order() -> Result<()> {
    on_both(async |scratch| {
        scratch.insert(PUBLISHED, "PUBLISHED").await?;
        for pending in [0, 1, PUBLISHED / 2] {
            scratch.insert(pending, "PENDING").await?;
            for form in ["skip_locked", "token"] {
                let plan = scratch.claimer(form, 100).await?.plan().await?;
                let is_served =
                    plan.contains("key='idx_outbox_claim'") && !plan.contains("filesort");
                ensure!(is_served, "{form} with {pending} more: {plan}");
            }
        }
        Ok(())
    })
    .await
}

/// Claimers at once, of both forms, take disjoint rows, in the order of their keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_do_not_overlap() -> Result<()> {
    on_both(async |scratch| {
        scratch.insert(400, "PENDING").await?;
        let mut claims = Vec::new();
        for form in ["skip_locked", "token", "skip_locked", "token"] {
            let mut claimer = scratch.claimer(form, 7).await?;
            claims.push(tokio::spawn(async move {
                let mut keys = Vec::new();
                loop {
                    let claimed = match claimer.claim(Pick::Free).await {
                        Ok(claimed) => claimed.events,
                        // The caller's part: a claim that was rolled back is done again.
                        Err(error) if matches!(error.code(), Some(1205 | 1213)) => continue,
                        Err(error) => return Err(error),
                    };
                    if claimed.is_empty() {
                        return Ok(keys);
                    }
                    assert!(claimed.is_sorted_by_key(|event| event.id.clone()));
                    keys.extend(claimed.into_iter().map(|event| event.id));
                }
            }));
        }
        let mut all = Vec::new();
        for claim in claims {
            all.extend(claim.await??);
        }
        let claimed = all.len();
        all.sort();
        all.dedup();
        ensure!(
            claimed == 400 && all.len() == 400,
            "{claimed} claims of {} rows",
            all.len()
        );
        Ok(())
    })
    .await
}

/// A row that another session has locked is passed over, and with it what comes later in its aggregate; nothing else is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_holds_its_aggregate() -> Result<()> {
    on_both(async |scratch| {
        let insert = "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, idempotency_key) VALUES \
                      ('order', 1, 'A', '{}', 'a'), ('order', 2, 'B', '{}', 'b'), ('order', 1, 'C', '{}', 'c')";
        scratch.conn.query_drop(insert).await?;
        let mut claimer = scratch.claimer("skip_locked", 10).await?;
        let lock = "SELECT id FROM outbox_events WHERE idempotency_key = 'a' FOR UPDATE";
        scratch.conn.query_drop("START TRANSACTION").await?;
        scratch.conn.query_drop(lock).await?;
        let types = async |claimer: &mut Claimer| -> Result<Vec<String>> {
            let claimed = claimer.claim(Pick::Free).await?;
            Ok(claimed.events.iter().map(|event| event.event_type.to_string()).collect())
        };
        ensure!(types(&mut claimer).await? == ["B"], "only the other aggregate");
        ensure!(types(&mut claimer).await?.is_empty());
        scratch.conn.query_drop("COMMIT").await?;
        ensure!(types(&mut claimer).await? == ["A", "C"]);
        Ok(())
    })
    .await
}
