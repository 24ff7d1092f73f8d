//! What the pipeline writes to MySQL: dead letters, then marks, then the checkpoint, in that order.
//!
//! One task with one session writes one [`Settlement`] at a time, so the pipeline never waits for MySQL. A
//! settlement is written again whole after a lost connection: each part of it may be done twice. The checkpoint
//! comes last, so whatever it covers is marked too.

use std::sync::Arc;

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
use crate::mysql::{MysqlError, Remedy, Session};
use crate::position::Position;
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
    /// Where to resume.
    pub checkpoint: Option<Position>,
}

impl Settlement {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.failures.is_empty()
            && self.dead_letters.is_empty()
            && self.marks.is_empty()
            && self.checkpoint.is_none()
    }
}

/// A settlement that is durable.
#[derive(Debug)]
pub struct Receipt {
    /// Events whose dead letter is written.
    pub buried: Vec<Slot>,
    /// How many rows were marked.
    pub marks: usize,
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

/// The task's side.
pub struct Ledger {
    config: Arc<Config>,
    health: Arc<Health>,
    epoch: u64,
    session: Option<Session>,
}

impl Ledger {
    /// A ledger that writes under that epoch.
    pub fn new(config: Arc<Config>, health: Arc<Health>, epoch: u64) -> Self {
        Self {
            config,
            health,
            epoch,
            session: None,
        }
    }

    /// Writes what comes in until nothing more comes.
    ///
    /// # Errors
    /// What can't pass by itself: a missing grant, or another relay of this name.
    pub async fn run(
        mut self,
        mut settlements: mpsc::Receiver<Settlement>,
        receipts: mpsc::Sender<Receipt>,
    ) -> Result<(), LedgerError> {
        self.health.good(Part::Ledger);
        while let Some(settlement) = settlements.recv().await {
            let receipt = self.settle_with_retries(settlement).await?;
            if receipts.send(receipt).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn settle_with_retries(
        &mut self,
        settlement: Settlement,
    ) -> Result<Receipt, LedgerError> {
        let backoff = Backoff::default();
        let mut attempt = 1;
        loop {
            match self.settle(&settlement).await {
                Ok(()) => break,
                Err(error) => {
                    // Whatever state the session was in, it is not trusted again.
                    self.session = None;
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
        }
        if attempt > 1 {
            info!("marks and checkpoints are written again");
        }
        self.health.good(Part::Ledger);
        Ok(Receipt {
            buried: settlement
                .dead_letters
                .into_iter()
                .map(|(slot, _)| slot)
                .collect(),
            marks: if self.config.mark == Mark::None {
                0
            } else {
                settlement.marks.len()
            },
            checkpoint: settlement.checkpoint.is_some(),
        })
    }

    async fn settle(&mut self, settlement: &Settlement) -> Result<(), LedgerError> {
        let session = match &mut self.session {
            Some(session) => session,
            absent @ None => {
                let mut session = Session::connect(&self.config).await?;
                if !marker::prepare(&mut session).await? {
                    info!(
                        "the account may not set binlog_row_image: marks write whole rows to the binlog; \
                         GRANT SESSION_VARIABLES_ADMIN (BINLOG ADMIN on MariaDB) would make them small"
                    );
                }
                absent.insert(session)
            }
        };
        let config = &self.config;
        for note in &settlement.failures {
            dead_letter::note_failure(config, session, &note.id, note.attempts, &note.error)
                .await?;
        }
        for (_, letter) in &settlement.dead_letters {
            dead_letter::bury(config, session, letter).await?;
        }
        marker::mark(config, session, &settlement.marks).await?;
        if let Some(position) = &settlement.checkpoint {
            checkpoint::save(config, session, self.epoch, position).await?;
        }
        Ok(())
    }
}
