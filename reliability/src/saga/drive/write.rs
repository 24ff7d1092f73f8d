//! A mark and the business change that belongs to it, in one transaction, until it is certain what became of it.

use std::sync::Arc;

use mysql_async::Transaction;
use serde_json::Value;
use thiserror::Error;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::Drive;
use super::open::read;
use crate::mysql::IsolationLevel::ReadCommitted;
use crate::mysql::{TransactionError, is_open};
use crate::resilience::Backoff;
use crate::saga::engine::Inner;
use crate::saga::erased::Bound;
use crate::saga::step::Facts;
use crate::saga::store::{self, Change, Lease, MarkError};
use crate::saga::{End, Failure};
use crate::{chain, guard};

/// Between two attempts to reach a database that does not answer.
const BACKOFF: Backoff = Backoff::new(
    std::time::Duration::from_millis(100),
    std::time::Duration::from_secs(2),
);

/// What the application does in the transaction.
#[derive(Clone)]
pub(super) enum Body {
    Nothing,
    Record(usize, Arc<Facts>, Value),
    UndoRecord(usize, Arc<Facts>),
    End(End, Arc<Facts>),
}

/// Why a change is not committed.
#[derive(Debug, Error)]
pub(super) enum WriteError {
    /// The application's part failed; all is rolled back.
    #[error("the application's part failed")]
    Own(#[source] Failure),
    /// The saga is another worker's.
    #[error("another worker has taken the saga over")]
    Fenced,
    /// The marks could not be written for the time of a lease, or it is not certain whether they were.
    #[error("the database did not take the saga's marks: {0}")]
    Database(String),
}

/// How the transaction fails within.
#[derive(Debug, Error)]
enum Inside {
    #[error("the application's part failed")]
    Own(#[source] Failure),
    #[error(transparent)]
    Mark(#[from] MarkError),
}

/// What an unconfirmed commit has come to.
enum Settled {
    Committed,
    RolledBack,
}

impl Drive {
    /// Commits a change together with its body; afterwards it is this drive's progress.
    ///
    /// A database that does not answer is no failure of the step: the same transaction is tried for as long as a lease.
    pub(super) async fn write(&mut self, change: Change, body: Body) -> Result<(), WriteError> {
        let mut attempt = 1;
        let mut deadline = None;
        loop {
            let error = match self.transaction(&change, &body).await {
                Ok(output) => {
                    self.adopt(change, output);
                    return Ok(());
                }
                Err(TransactionError::Body(Inside::Own(failure))) => {
                    return Err(WriteError::Own(failure));
                }
                Err(TransactionError::Body(Inside::Mark(MarkError::Fenced))) => {
                    return Err(WriteError::Fenced);
                }
                Err(error @ TransactionError::Timeout { .. }) if !matches!(body, Body::Nothing) => {
                    return Err(WriteError::Own(Failure::technical(chain::text(&error))));
                }
                Err(error) => error,
            };
            let text = chain::text(&error);
            warn!(
                saga = self.lease.id,
                error = text,
                "mark not written; trying again"
            );
            if error.outcome_unknown() {
                match self.settle(&change).await {
                    Ok(Settled::Committed) => return Ok(()),
                    Ok(Settled::RolledBack) => {}
                    Err(lost) => return Err(lost),
                }
            }
            let lease = self.inner.store.lease_time();
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + lease);
            attempt += 1;
            let delay = BACKOFF.delay(attempt);
            if self.stop.is_cancelled() || Instant::now() + delay >= deadline {
                return Err(WriteError::Database(text));
            }
            sleep(delay).await;
        }
    }

    async fn transaction(
        &self,
        change: &Change,
        body: &Body,
    ) -> Result<Option<String>, TransactionError<Inside>> {
        let work = Arc::new(Work {
            inner: self.inner.clone(),
            lease: self.lease.clone(),
            bound: self.bound.clone(),
            change: change.clone(),
            body: body.clone(),
        });
        let database = self.inner.store.database.clone();
        database
            .transaction(ReadCommitted, async move |tx| work.clone().run(tx).await)
            .await
    }

    /// Finds out whether a commit that was not confirmed has happened, once it can't happen any more.
    async fn settle(&mut self, change: &Change) -> Result<Settled, WriteError> {
        let mut attempt = 1;
        let deadline = Instant::now() + self.inner.store.lease_time();
        let stored = loop {
            let error = match self.inner.store.load(&self.lease, true).await {
                Ok(Some(stored)) => break stored,
                Ok(None) => return Err(WriteError::Fenced),
                Err(error) => chain::text(&error),
            };
            attempt += 1;
            let delay = BACKOFF.delay(attempt);
            if self.stop.is_cancelled() || Instant::now() + delay >= deadline {
                return Err(WriteError::Database(error));
            }
            sleep(delay).await;
        };
        let (progress, outputs) = read(&self.definition, &stored).map_err(WriteError::Database)?;
        if progress == change.progress {
            self.progress = progress;
            self.outputs = outputs;
            self.error = stored.error;
            return Ok(Settled::Committed);
        }
        if progress == self.progress {
            return Ok(Settled::RolledBack);
        }
        Err(WriteError::Fenced)
    }

    fn adopt(&mut self, change: Change, output: Option<String>) {
        if let (Some((_, name)), Some(output)) = (&change.step, output) {
            // It was made from a value a moment ago.
            let output = serde_json::from_str(&output).unwrap_or_default();
            self.outputs.insert(name.clone(), output);
        }
        if change.saga_error.is_some() {
            self.error = change.saga_error;
        }
        self.progress = change.progress;
    }
}

/// What one transaction needs.
struct Work {
    inner: Arc<Inner>,
    lease: Lease,
    bound: Arc<dyn Bound>,
    change: Change,
    body: Body,
}

impl Work {
    /// The text of the step's output, for a record.
    async fn run(self: Arc<Self>, tx: &mut Transaction<'_>) -> Result<Option<String>, Inside> {
        let part = run(&*self.bound, tx, self.body.clone());
        let output = match guard::catch(part).await {
            Ok(outcome) => outcome.map_err(Inside::Own)?,
            Err(panic) => {
                self.inner.tally.panics.add(1);
                let panic = Failure::unknown(format!("panicked: {panic}"));
                return Err(Inside::Own(panic));
            }
        };
        // Else the mark would be committed without what came before it.
        if !matches!(self.body, Body::Nothing) && !is_open(tx).await {
            let ended =
                "it ignored an error that ended its transaction, or ran a statement that commits";
            return Err(Inside::Own(Failure::unknown(ended)));
        }
        let time = self.inner.store.lease_time();
        store::mark(tx, &self.lease, time, &self.change, output.as_deref()).await?;
        Ok(output)
    }
}

/// The application's part; the text of its output, for a record.
async fn run(
    bound: &dyn Bound,
    tx: &mut Transaction<'_>,
    body: Body,
) -> Result<Option<String>, Failure> {
    let missing = || Failure::technical("there is no such step");
    match body {
        Body::Nothing => Ok(None),
        Body::Record(step, facts, output) => {
            let record = bound.record(step, tx, &facts, output);
            Ok(Some(record.ok_or_else(missing)?.await?.to_string()))
        }
        Body::UndoRecord(step, facts) => {
            let undo = bound.undo_record(step, tx, &facts);
            undo.ok_or_else(missing)?.await?;
            Ok(None)
        }
        Body::End(end, facts) => {
            bound.end(end, tx, &facts).await?;
            Ok(None)
        }
    }
}
