//! Retention: published rows are deleted once they are old enough, a little at a time.
//!
//! Rows are looked at in the order of their keys, by the index of status and key, a batch at a time behind a cursor. Keys and
//! publication times grow together where keys are numbers, so a round ends at the first batch of which none is old
//! enough. Other keys (UUIDs) tell nothing of age: a round of the background then looks at so many batches, and the next goes
//! on where it ended.
//!
//! Only rows that are PUBLISHED and have a `published_at` are ever deleted. After each batch there is a pause as long as the batch took.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::{Params, Row, Value};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, info, warn};

use crate::catalogue::catalogue;
use crate::config::{Config, Mark};
use crate::marker;
use crate::metrics::Metrics;
use crate::mysql::{MysqlError, Remedy, Session, conflicts};
use crate::source::claim::claim_index;
use crate::table::Table;

/// Rows a batch: their deletion takes milliseconds, and locks that short are in nobody's way.
pub const BATCH: usize = 500;
/// Rows a batch at the most.
pub const LARGEST_BATCH: usize = 10_000;
/// Batches that a round of the background looks at where keys tell nothing of age.
const BATCHES_A_ROUND: u32 = 20;
/// How often a busy pipeline is asked whether it still is.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Whether the pipeline has enough to do without a cleaner.
pub type Busy = Arc<dyn Fn() -> bool + Send + Sync>;

/// Why a table can't be cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unprunable {
    /// No status.
    #[error(
        "the outbox table has no status column, so published rows can't be told from others; add one (see migrations/0001_outbox.sql), or name it with RELAY_COLUMN_STATUS"
    )]
    NoStatus,
    /// No time.
    #[error(
        "the outbox table has no column published_at, so the age of published rows can't be told; run: ALTER TABLE … ADD COLUMN published_at DATETIME(6) NULL"
    )]
    NoPublishedAt,
}

/// What a batch came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Rows deleted, or that would be.
    pub rows: u64,
    /// Whether there may be more.
    pub more: bool,
}

/// Deletes batch by batch.
pub struct Pruner {
    session: Session,
    table: Table,
    statements: Statements,
    cutoff: String,
    batch: usize,
    dry: bool,
    /// Whether keys grow with time.
    ordered: bool,
    cursor: Option<Value>,
}

#[derive(Debug)]
struct Statements {
    first: String,
    next: String,
    delete: String,
}

impl Statements {
    fn new(table: &Table, index: Option<&str>, batch: usize) -> Self {
        let (name, id, status) = (&table.name, &table.id, &table.status);
        // As for claims: the optimizer would walk the primary key, over all that is not published.
        let hint = index.map_or_else(String::new, |index| {
            format!(" FORCE INDEX (`{}`)", index.replace('`', "``"))
        });
        let select = |cursor: &str| {
            format!(
                "SELECT {id}, published_at IS NOT NULL, COALESCE(published_at < ?, FALSE) FROM {name}{hint} \
                 WHERE {status} = 'PUBLISHED'{cursor} ORDER BY {id} LIMIT {batch}"
            )
        };
        Self {
            first: select(""),
            next: select(&format!(" AND {id} > ?")),
            // What was looked at a moment ago may have changed: the conditions stand again.
            delete: format!(
                "DELETE FROM {name} WHERE {status} = 'PUBLISHED' AND published_at < ? AND {}",
                table.id_in(batch)
            ),
        }
    }
}

impl Pruner {
    /// Looks at the table as it is now. Rows go that were published longer than `age` ago; none if `dry`.
    ///
    /// # Errors
    /// MySQL said no; inside, why the table can't be cleaned.
    pub async fn open(
        config: &Config,
        mut session: Session,
        age: Duration,
        batch: usize,
        dry: bool,
    ) -> Result<Result<Self, Unprunable>, MysqlError> {
        let catalogue = catalogue(config, &mut session).await?;
        let table = Table::new(config, &catalogue);
        if !table.kept.status {
            return Ok(Err(Unprunable::NoStatus));
        }
        if !table.kept.published_at {
            return Ok(Err(Unprunable::NoPublishedAt));
        }
        let definition = catalogue
            .column(config.columns.id().as_str())
            .map(|column| column.definition.to_ascii_lowercase())
            .unwrap_or_default();
        let ordered = definition
            .split(['(', ' '])
            .next()
            .is_some_and(|word| word.ends_with("int"));
        let index = claim_index(config, &mut session).await?;
        marker::prepare(&mut session).await?;
        session.limit_lock_waits().await?;
        let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let cutoff: Vec<(String,)> = session
            .rows(
                "ask for the time",
                "SELECT CAST(NOW(6) - INTERVAL ? MICROSECOND AS CHAR)",
                (age,),
            )
            .await?;
        let cutoff = cutoff
            .into_iter()
            .next()
            .map(|(cutoff,)| cutoff)
            .unwrap_or_default();
        Ok(Ok(Self {
            statements: Statements::new(&table, index.as_deref(), batch),
            session,
            table,
            cutoff,
            batch,
            dry,
            ordered,
            cursor: None,
        }))
    }

    /// Before when a row must have been published, UTC.
    pub fn cutoff(&self) -> &str {
        &self.cutoff
    }

    /// Looks at the next batch, and deletes what is old enough of it.
    ///
    /// # Errors
    /// MySQL said no. After a deadlock or a lock wait nothing is deleted, and it can be done again.
    pub async fn batch(&mut self) -> Result<Batch, MysqlError> {
        let mut values = vec![Value::from(&self.cutoff)];
        let select = match &self.cursor {
            None => self.statements.first.clone(),
            Some(cursor) => {
                values.push(cursor.clone());
                self.statements.next.clone()
            }
        };
        let rows: Vec<Row> = self
            .session
            .rows("look for old rows", select, Params::Positional(values))
            .await?;
        let full = rows.len() == self.batch;
        let mut old = Vec::new();
        let (mut last, mut young) = (None, false);
        for mut row in rows {
            let (Some(id), Some(dated), Some(is_old)) = (
                row.take::<Value, _>(0),
                row.take::<bool, _>(1),
                row.take::<bool, _>(2),
            ) else {
                continue;
            };
            last = Some(id.clone());
            if is_old {
                old.push(id);
            } else if dated {
                young = true;
            }
        }
        let rows = if self.dry {
            old.len() as u64
        } else {
            self.delete(&old).await?
        };
        if last.is_some() {
            self.cursor = last;
        }
        let young = self.ordered && young && old.is_empty();
        Ok(Batch {
            rows,
            more: full && !young,
        })
    }

    async fn delete(&mut self, keys: &[Value]) -> Result<u64, MysqlError> {
        if keys.is_empty() {
            return Ok(0);
        }
        // Padded with its last key, so that one statement stays prepared.
        let padded = keys.iter().chain(keys.last().into_iter().cycle());
        let values = std::iter::once(Value::from(&self.cutoff))
            .chain(padded.take(self.batch).cloned())
            .collect();
        let statement = self.statements.delete.clone();
        self.session
            .execute("delete old rows", statement, Params::Positional(values))
            .await
    }

    /// What EXPLAIN says of the statement that looks for old rows behind that key, for tests: `column=value` of each.
    ///
    /// # Errors
    /// MySQL said no.
    pub async fn plan(&mut self, key: i64) -> Result<String, MysqlError> {
        let explain = format!("EXPLAIN {}", self.statements.next);
        let rows: Vec<Row> = self
            .session
            .rows("explain the cleaning", explain, (&self.cutoff, key))
            .await?;
        let mut parts = Vec::new();
        for row in rows {
            let columns = row.columns();
            for (column, value) in columns.iter().zip(row.unwrap_raw()) {
                let value = value.map_or_else(String::new, |value| value.as_sql(true));
                parts.push(format!("{}={value}", column.name_str()));
            }
        }
        Ok(parts.join(" "))
    }

    /// Quoted name of the table.
    pub fn table(&self) -> &str {
        &self.table.name
    }
}

/// Deletes old rows in the background, as long as this relay leads.
pub struct Cleaner {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    busy: Busy,
    /// Where keys tell nothing of age: where the last round ended.
    cursor: Option<Value>,
}

/// How a round ended.
enum Round {
    Done,
    Off,
}

impl Cleaner {
    /// A cleaner that stands aside while `busy` says so.
    pub fn new(config: Arc<Config>, metrics: Arc<Metrics>, busy: Busy) -> Self {
        Self {
            config,
            metrics,
            busy,
            cursor: None,
        }
    }

    /// Starts it; it ends once the guard is dropped, or `stop` is cancelled.
    pub fn start(self, stop: &CancellationToken) -> DropGuard {
        let stop = stop.child_token();
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = self.run() => {}
            }
        });
        stop.drop_guard()
    }

    /// Runs until it turns out that there is nothing that it could do.
    ///
    /// # Cancel safety
    /// Safe: a batch is one statement.
    async fn run(mut self) {
        let Some(age) = self.config.retention else {
            return;
        };
        if self.config.mark != Mark::Update {
            debug!("rows are not marked PUBLISHED, so there are none to clean up");
            return;
        }
        loop {
            tokio::time::sleep(self.config.retention_interval).await;
            match self.round(age).await {
                Ok(Round::Done) => {}
                Ok(Round::Off) => return,
                Err(error) => {
                    let diagnosis = error.diagnosis();
                    let why = crate::error::chain(&error);
                    if diagnosis.remedy == Remedy::Stop {
                        warn!(error = %why, hint = diagnosis.hint, "published rows are not cleaned up; RELAY_RETENTION=off stops the trying");
                        return;
                    }
                    warn!(error = %why, hint = diagnosis.hint, "cleaning up published rows is interrupted");
                }
            }
        }
    }

    async fn round(&mut self, age: Duration) -> Result<Round, MysqlError> {
        self.idle().await;
        let session = Session::connect(&self.config).await?;
        let opened = Pruner::open(&self.config, session, age, BATCH, false).await?;
        let mut pruner = match opened {
            Ok(pruner) => pruner,
            Err(why) => {
                warn!(%why, "published rows are not cleaned up");
                return Ok(Round::Off);
            }
        };
        if !pruner.ordered {
            pruner.cursor = self.cursor.take();
        }
        let metrics = self.metrics.clone();
        let (mut rows, mut batches) = (0, 0);
        loop {
            let began = Instant::now();
            let batch = conflicts!(metrics, pruner.batch())?;
            metrics.pruned.inc_by(batch.rows);
            rows += batch.rows;
            batches += 1;
            let enough = !pruner.ordered && batches >= BATCHES_A_ROUND;
            if !batch.more || enough {
                if batch.more {
                    self.cursor = pruner.cursor.take();
                }
                break;
            }
            tokio::time::sleep(began.elapsed()).await;
            self.idle().await;
        }
        if rows > 0 {
            info!(rows, published_before = %pruner.cutoff(), "old published rows are deleted");
        }
        Ok(Round::Done)
    }

    /// Waits until the pipeline has time to spare.
    async fn idle(&self) {
        while (self.busy)() {
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Bookkeeping;

    #[test]
    fn only_published_rows_are_named() {
        let table = Table {
            name: "`t`".to_owned(),
            id: "`k`".to_owned(),
            status: "`s`".to_owned(),
            kept: Bookkeeping::default(),
            error_chars: 0,
            mark: Mark::Update,
        };
        let statements = Statements::new(&table, Some("i"), 2);
        assert_eq!(
            statements.delete,
            "DELETE FROM `t` WHERE `s` = 'PUBLISHED' AND published_at < ? AND `k` IN (?,?)"
        );
        for select in [&statements.first, &statements.next] {
            assert!(
                select.contains("FORCE INDEX (`i`) WHERE `s` = 'PUBLISHED'"),
                "{select}"
            );
        }
    }
}
