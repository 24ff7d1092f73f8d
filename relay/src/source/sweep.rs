//! The sweeper: publishes unpublished rows that the binlog did not bring.
//!
//! Dead letters sent again, rows reset by hand or restored from a backup are updates, or old inserts: no tail of the
//! binlog sees them. The sweeper looks for unpublished rows now and then. A row it sees may as well be on its way: so it
//! notes the end of the binlog after it has seen the row, waits until the pipeline has settled and marked everything up
//! to there, and looks again. What is still unpublished then, nobody has in hand.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Params, Row, Value};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};

use super::select::Select;
use crate::catalogue::catalogue;
use crate::config::{CheckpointStore, Config, Mark};
use crate::event::OutboxEvent;
use crate::metrics::Metrics;
use crate::mysql::{MysqlError, Server, Session};
use crate::position::Position;
use crate::table::{MOST_KEYS, Table};

/// Rows a sweep.
const ROWS: usize = MOST_KEYS;
/// How long the pipeline may take to get as far as the rows that were seen; a sweep after that begins anew.
const PATIENCE: Duration = Duration::from_secs(600);

/// Longer than any server takes from making a transaction visible to counting it as executed.
const SETTLING_TIME: Duration = Duration::from_secs(1);

/// What the sweeper asks of the pipeline.
#[derive(Debug)]
pub enum Sweep {
    /// Tell when everything up to there is settled, and its marks are written.
    Settle {
        /// A position.
        upto: Position,
        /// Told then.
        done: oneshot::Sender<()>,
    },
    /// Publish these.
    Publish(Vec<OutboxEvent>),
}

#[derive(Debug, Error)]
enum SweepError {
    #[error(transparent)]
    Mysql(#[from] MysqlError),
    #[error("the server's binlog position can't be told")]
    NoPosition(#[source] crate::mysql::Unfit),
    #[error("the outbox table {0}")]
    Table(#[from] crate::catalogue::MissingColumn),
}

/// Whether rows of that configuration can be swept: published ones are told from others.
pub fn can_sweep(config: &Config) -> bool {
    config.mark != Mark::None && config.columns.status().is_some()
}

/// Sweeps for as long as the pipeline listens.
pub struct Sweeper {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    pipeline: mpsc::Sender<Sweep>,
}

impl Sweeper {
    /// A sweeper that tells that pipeline.
    pub fn new(config: Arc<Config>, metrics: Arc<Metrics>, pipeline: mpsc::Sender<Sweep>) -> Self {
        Self {
            config,
            metrics,
            pipeline,
        }
    }

    /// Sweeps once an interval until the pipeline has ended.
    pub async fn run(self) {
        let mut failing = false;
        while !self.pipeline.is_closed() {
            tokio::time::sleep(self.config.sweep_interval).await;
            match self.sweep().await {
                Ok(()) => failing = false,
                Err(failure) => {
                    let why = crate::error::chain(&failure);
                    if failing {
                        debug!(error = %why, "a sweep failed again");
                    } else {
                        warn!(error = %why, "a sweep for unpublished rows failed; the next one comes after sweep_interval");
                    }
                    failing = true;
                }
            }
        }
    }

    async fn sweep(&self) -> Result<(), SweepError> {
        let mut session = Session::connect(&self.config).await?;
        let catalogue = catalogue(&self.config, &mut session).await?;
        let table = Table::new(&self.config, &catalogue);
        if table.mark == Mark::None || !table.kept.status {
            return Ok(());
        }
        let found = self.unpublished(&table, &mut session).await?;
        if found.is_empty() {
            return Ok(());
        }
        self.metrics.sweeps.inc();
        debug!(rows = found.len(), "a sweep looks into unpublished rows");
        let server = Server::inspect(&mut session).await?;
        // The end of the binlog must not lie before a row that was seen, and a row is seen a little before its
        // transaction counts as executed. What is committed before a write of our own lies before it; where we may not
        // write, time has to do.
        match &self.config.checkpoint {
            CheckpointStore::Mysql => crate::checkpoint::touch(&self.config).await?,
            CheckpointStore::File(_) => tokio::time::sleep(SETTLING_TIME).await,
        }
        let upto = server
            .head(&mut session)
            .await?
            .map_err(SweepError::NoPosition)?;
        // The wait may be long, and the server may end sessions that say nothing.
        drop(session);
        if !self.settled(upto).await {
            return Ok(());
        }
        let select = Select::new(&self.config, &catalogue)?;
        let mut session = Session::connect(&self.config).await?;
        let events = self
            .left_behind(&table, &select, &mut session, found)
            .await?;
        if events.is_empty() {
            return Ok(());
        }
        info!(
            rows = events.len(),
            "unpublished rows were found that the binlog had not brought (sent again, reset or restored); publishing them"
        );
        self.metrics.swept.inc_by(events.len() as u64);
        if self.pipeline.send(Sweep::Publish(events)).await.is_err() {
            debug!("the pipeline has ended; the next one sweeps again");
        }
        Ok(())
    }

    /// Keys of rows that are unpublished and that nobody leases, the lowest first.
    async fn unpublished(
        &self,
        table: &Table,
        session: &mut Session,
    ) -> Result<Vec<Value>, MysqlError> {
        let (name, id, status) = (&table.name, &table.id, &table.status);
        let free = if table.kept.locks {
            " AND (locked_until IS NULL OR locked_until <= NOW(6))"
        } else {
            ""
        };
        // One ordered read a status: each is served by the index on status and id, where `IN` of both would sort.
        let part = |which| {
            format!(
                "(SELECT {id} AS k FROM {name} WHERE {status} = '{which}'{free} ORDER BY {id} LIMIT {ROWS})"
            )
        };
        let query = format!(
            "{} UNION ALL {} ORDER BY k LIMIT {ROWS}",
            part("PENDING"),
            part("PROCESSING")
        );
        let rows: Vec<Row> = session.rows("look for unpublished rows", query, ()).await?;
        let keys = rows
            .into_iter()
            .filter_map(|row| row.unwrap_raw().into_iter().next().flatten());
        Ok(keys.collect())
    }

    /// Waits until everything up to there is settled. Whether it is.
    async fn settled(&self, upto: Position) -> bool {
        let (done, settled) = oneshot::channel();
        if self
            .pipeline
            .send(Sweep::Settle { upto, done })
            .await
            .is_err()
        {
            return false;
        }
        matches!(tokio::time::timeout(PATIENCE, settled).await, Ok(Ok(())))
    }

    /// Those of the rows that are unpublished still.
    async fn left_behind(
        &self,
        table: &Table,
        select: &Select,
        session: &mut Session,
        found: Vec<Value>,
    ) -> Result<Vec<OutboxEvent>, MysqlError> {
        let query = format!(
            "SELECT {} FROM {} WHERE {} AND {} IN ('PENDING', 'PROCESSING') ORDER BY {}",
            select.list,
            table.name,
            table.id_in(found.len()),
            table.status,
            table.id
        );
        let rows: Vec<Row> = session
            .rows("read unpublished rows", query, Params::Positional(found))
            .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| select.event(row))
            .collect())
    }
}
