//! What the pipeline writes to MySQL: dead letters, then marks, then the checkpoint, in that order.
//!
//! One task with one session writes one [`Settlement`] at a time, so the pipeline never waits for MySQL. A
//! settlement is written again whole after a lost connection: each part of it may be done twice. The checkpoint
//! comes last, so whatever it covers is marked too.

use std::sync::Arc;
use std::time::Duration;

use reliability::resilience::Backoff;
use thiserror::Error;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::checkpoint::{self, CheckpointError};
use crate::config::{Config, Mark};
use crate::dead_letter::{self, DeadLetter};
use crate::event::Key;
use crate::health::{Health, Part};
use crate::marker;
use crate::metrics::Metrics;
use crate::mysql::{MysqlError, Remedy, Session, conflicts};
use crate::position::Position;
use crate::source::claim;
use crate::table::Table;
use crate::window::Slot;

/// A failed attempt, to be noted on its row.
#[derive(Debug, Clone)]
pub struct FailureNote {
    /// Primary key of the row.
    pub id: Key,
    /// Failures so far.
    pub attempts: u32,
    /// Why.
    pub error: String,
}

/// What is to be written.
#[derive(Debug, Default)]
pub struct Settlement {
    /// Attempts that failed.
    pub failures: Vec<FailureNote>,
    /// Events given up, with their place in the window.
    pub dead_letters: Vec<(Slot, DeadLetter)>,
    /// Rows published.
    pub marks: Vec<Key>,
    /// Rows whose lease is to be renewed.
    pub renewals: Vec<Key>,
    /// Where to resume.
    pub checkpoint: Option<Position>,
}

impl Settlement {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.failures.is_empty()
            && self.dead_letters.is_empty()
            && self.marks.is_empty()
            && self.renewals.is_empty()
            && self.checkpoint.is_none()
    }
}

/// A settlement that is durable.
#[derive(Debug)]
pub struct Receipt {
    /// Events whose dead letter is written.
    pub buried: Vec<Slot>,
    /// How many rows were marked.
    pub marks: u64,
    /// Whether a checkpoint was written.
    pub checkpoint: bool,
}

/// Why the ledger can't go on.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// MySQL said no.
    #[error(transparent)]
    Mysql(#[from] MysqlError),
    /// The checkpoint can't be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl LedgerError {
    /// Whether it may pass by itself, and a word to the operator.
    pub fn diagnosis(&self) -> (Remedy, &'static str) {
        let mysql = match self {
            LedgerError::Mysql(error) | LedgerError::Checkpoint(CheckpointError::Mysql(error)) => {
                error
            }
            LedgerError::Checkpoint(CheckpointError::File { .. }) => {
                return (
                    Remedy::Retry,
                    "check the folder of RELAY_CHECKPOINT_FILE: space and permissions",
                );
            }
            LedgerError::Checkpoint(CheckpointError::Fenced { .. }) => {
                return (
                    Remedy::Stop,
                    "run one relay a name: give the other a RELAY_NAME of its own",
                );
            }
            LedgerError::Checkpoint(CheckpointError::Unreadable { .. }) => {
                return (
                    Remedy::Stop,
                    "delete the checkpoint to start with a snapshot of the unpublished rows",
                );
            }
        };
        let diagnosis = mysql.diagnosis();
        (diagnosis.remedy, diagnosis.hint)
    }
}

/// Under what the ledger writes.
#[derive(Debug, Clone)]
pub struct Fence {
    /// Fences the checkpoint.
    pub epoch: u64,
    /// Fences the rows, where they are claimed.
    pub claim: Option<Claim>,
}

/// What a claimed row is leased under.
#[derive(Debug, Clone)]
pub struct Claim {
    /// `locked_by` of the rows.
    pub token: Arc<str>,
    /// How long a lease lasts.
    pub lease: Duration,
}

/// The task's side.
pub struct Ledger {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    fence: Fence,
    open: Option<(Session, Table)>,
    /// Whether it was said that rows are not marked.
    warned: bool,
}

impl Ledger {
    /// A ledger that writes under that fence.
    pub fn new(
        config: Arc<Config>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
        fence: Fence,
    ) -> Self {
        Self {
            config,
            metrics,
            health,
            fence,
            open: None,
            warned: false,
        }
    }

    /// Writes what comes in until nothing more comes.
    ///
    /// # Errors
    /// What can't pass by itself: a missing grant, or another relay of this name.
    pub async fn run(
        mut self,
        mut settlements: mpsc::Receiver<Arc<Settlement>>,
        receipts: mpsc::Sender<Receipt>,
    ) -> Result<(), LedgerError> {
        self.health.good(Part::Ledger);
        while let Some(settlement) = settlements.recv().await {
            let receipt = self.settle_with_retries(&settlement).await?;
            if receipts.send(receipt).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn settle_with_retries(
        &mut self,
        settlement: &Settlement,
    ) -> Result<Receipt, LedgerError> {
        let backoff = Backoff::default();
        let mut attempt = 1;
        let marks = loop {
            match self.settle(settlement).await {
                Ok(marks) => break marks,
                Err(error) => {
                    // Whatever state the session was in, it is not trusted again.
                    self.open = None;
                    let (remedy, hint) = error.diagnosis();
                    if remedy == Remedy::Stop {
                        return Err(error);
                    }
                    attempt += 1;
                    let why = crate::error::chain(&error);
                    warn!(error = %why, hint, attempt, "marks and checkpoints wait");
                    self.health.bad(Part::Ledger, why);
                    tokio::time::sleep(backoff.delay(attempt)).await;
                }
            }
        };
        if attempt > 1 {
            info!("marks and checkpoints are written again");
        }
        self.health.good(Part::Ledger);
        Ok(Receipt {
            buried: settlement
                .dead_letters
                .iter()
                .map(|(slot, _)| *slot)
                .collect(),
            marks,
            checkpoint: settlement.checkpoint.is_some(),
        })
    }

    /// Writes a settlement; how many rows were marked. Each part is tried again by itself after a deadlock or a lock
    /// wait: that ends no more than the statement's own transaction.
    async fn settle(&mut self, settlement: &Settlement) -> Result<u64, LedgerError> {
        if self.open.is_none() {
            self.open = Some(self.connect().await?);
        }
        let Some((session, table)) = &mut self.open else {
            return Ok(0);
        };
        let (config, metrics, fence) = (&self.config, &self.metrics, &self.fence);
        let token = fence.claim.as_ref().map(|claim| &*claim.token);
        for note in &settlement.failures {
            conflicts!(
                metrics,
                dead_letter::note_failure(
                    table,
                    session,
                    &note.id,
                    note.attempts,
                    &note.error,
                    token
                )
            )?;
        }
        for (_, letter) in &settlement.dead_letters {
            conflicts!(
                metrics,
                dead_letter::bury(config, table, session, letter, token)
            )?;
        }
        let marks = conflicts!(
            metrics,
            marker::mark(table, session, &settlement.marks, token)
        )?;
        if let Some(claim) = &fence.claim {
            let wanted = settlement.marks.len() as u64;
            if marks < wanted && table.mark != Mark::None {
                let lost = wanted - marks;
                metrics.marks_fenced.inc_by(lost);
                warn!(
                    rows = lost,
                    "rows were taken over by another worker before they could be marked; they may be published twice"
                );
            }
            conflicts!(
                metrics,
                claim::renew(table, session, claim, &settlement.renewals)
            )?;
        }
        if let Some(position) = &settlement.checkpoint {
            checkpoint::save(config, session, fence.epoch, Some(position)).await?;
        }
        Ok(marks)
    }

    async fn connect(&mut self) -> Result<(Session, Table), LedgerError> {
        let mut session = Session::connect(&self.config).await?;
        if !marker::prepare(&mut session).await? {
            info!(
                "the account may not set binlog_row_image: marks write whole rows to the binlog; \
                 GRANT SESSION_VARIABLES_ADMIN (BINLOG ADMIN on MariaDB) would make them small"
            );
        }
        if self.fence.claim.is_some() {
            marker::lock_little(&mut session).await?;
        }
        let table = Table::inspect(&self.config, &mut session).await?;
        if self.config.mark == Mark::Update && table.mark == Mark::None && !self.warned {
            self.warned = true;
            warn!(
                table = %self.config.table.as_str(),
                "the outbox table has no status column, so published rows are not marked: they can't be swept, polled \
                 or cleaned up, and after a purged binlog every row in the table is published again; \
                 add the column (see migrations/0001_outbox.sql), name it with RELAY_COLUMN_STATUS, or take RELAY_MARK=delete"
            );
        }
        Ok((session, table))
    }
}
