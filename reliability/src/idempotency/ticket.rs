//! A claim on a key, from its commit to its end.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mysql_async::IsolationLevel::ReadCommitted;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Transaction, Value};
use thiserror::Error;
use tokio::runtime::Handle;
use tracing::{debug, warn};

use super::store::{Name, micros};
use super::{Answer, Idempotency, IdempotencyError, Key, Refusals};
use crate::mysql::TransactionError;
use crate::resilience::{RetryPolicy, Verdict, retry};

const COMPLETE: &str = "UPDATE idempotency_keys SET status = 'COMPLETED', response_status = ?, response_headers = ?, \
    response_body = ?, locked_by = NULL, locked_until = NULL, expires_at = NOW(6) + INTERVAL ? MICROSECOND \
    WHERE idempotency_key = ? AND scope = ? AND status = 'PROCESSING' AND locked_by = ?";

const RELEASE: &str = "UPDATE idempotency_keys SET status = 'FAILED', locked_by = NULL, locked_until = NULL \
    WHERE idempotency_key = ? AND scope = ? AND status = 'PROCESSING' AND locked_by = ?";

/// Who holds, or may hold, a key. Dropped while armed, it gives the key back.
pub(super) struct Holder {
    pub(super) idempotency: Idempotency,
    pub(super) key: Key,
    /// Unique: a fence alone would begin again after the cleaner.
    pub(super) token: Arc<str>,
    pub(super) fence: i64,
    pub(super) armed: bool,
}

/// The caller's claim on a key.
///
/// [`Ticket::run`] does the work and completes the key in one transaction. Dropped without that, the key is released in the
/// background, and the next request may try again. That is safe at any moment, also while a commit is on its way: the
/// release finds either a claim that never completes any more, or a completed key, which it leaves alone.
#[must_use = "dropped, the key is released"]
pub struct Ticket {
    holder: Holder,
}

/// Why the work of a request has no answer. The key is free again.
#[derive(Debug, Error)]
pub enum WorkError<E: StdError + 'static> {
    /// The work failed; what it did is rolled back.
    #[error(transparent)]
    Work(E),
    /// The key was not completed; what the work did is rolled back.
    #[error(transparent)]
    Key(#[from] IdempotencyError),
    /// The work has answered with a 5xx, or with a 4xx that is not to be stored; what it did is rolled back.
    #[error("the work answered with {}; its transaction is rolled back", .0.status())]
    Unstored(Answer),
}

impl Holder {
    pub(super) fn new(idempotency: Idempotency, key: Key) -> Self {
        let token = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        Self {
            idempotency,
            key,
            token: token.into(),
            fence: 0,
            armed: false,
        }
    }

    pub(super) fn name(&self) -> String {
        Name(&self.key).to_string()
    }
}

/// Gives a key back; whether it was still held.
async fn release(
    idempotency: &Idempotency,
    key: &Key,
    token: &Arc<str>,
) -> Result<bool, IdempotencyError> {
    let released = idempotency
        .bounded("release", key, |mut conn| {
            let (key, token) = (key.clone(), token.clone());
            async move {
                let values = (key.as_str(), key.scope(), token.as_ref());
                conn.exec_drop(RELEASE, values).await?;
                Ok(conn.affected_rows() > 0)
            }
        })
        .await?;
    let counter = &idempotency.shared.counters.released;
    counter.fetch_add(u64::from(released), Ordering::Relaxed);
    Ok(released)
}

impl Drop for Holder {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        // Outside a runtime nothing can be sent; the lease will end.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let (idempotency, key, token) = (
            self.idempotency.clone(),
            self.key.clone(),
            self.token.clone(),
        );
        let tasks = idempotency.shared.tasks.clone();
        tasks.spawn_on(
            async move {
                // 0.5 to 10 s apart: about half a minute of an outage is outlasted.
                let policy = RetryPolicy { attempts: 8, ..RetryPolicy::default() };
                let again = |_: &IdempotencyError| Verdict::Retryable { after: None };
                let released = retry(&policy, again, |_| release(&idempotency, &key, &token)).await;
                if let Err(error) = released {
                    let error: &dyn StdError = &error;
                    warn!(key = %Name(&key), error, "idempotency key not released; it is free when its lease is over");
                }
            },
            &runtime,
        );
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("key", &self.holder.key)
            .field("fence", &self.holder.fence)
            .finish_non_exhaustive()
    }
}

impl Ticket {
    pub(super) fn new(holder: Holder) -> Self {
        Self { holder }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.holder.key
    }

    /// How often the key was claimed, this time included: it rises with each take-over.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.holder.fence
    }

    /// Does the work and completes the key in one transaction (`READ COMMITTED`, run again as a whole after a deadlock).
    ///
    /// `work` changes the business rows and gives the answer; it must decide on a refusal before it changes anything, for a refusal
    /// that is stored is committed. Let it own what it uses, as for [`Database::transaction`](crate::mysql::Database::transaction).
    ///
    /// # Cancel safety
    /// Dropped, either all is committed, the answer with it, or nothing is, and the key is released. Which of them, the next request with the
    /// key finds out.
    ///
    /// # Errors
    /// Nothing was committed, unless the error is [`TransactionError::CommitUnknown`]: then the next request with the key
    /// finds the answer or a free key.
    pub async fn run<E, F>(mut self, work: F) -> Result<Answer, TransactionError<WorkError<E>>>
    where
        E: StdError + 'static,
        F: AsyncFnMut(&mut Transaction<'_>) -> Result<Answer, E>,
    {
        let completion = self.completion();
        let database = self.holder.idempotency.database().clone();
        let mut work = work;
        let done = database
            .transaction(ReadCommitted, async move |tx| {
                let answer = work(tx).await.map_err(WorkError::Work)?;
                if !completion.is_stored(answer.status()) {
                    return Err(WorkError::Unstored(answer));
                }
                completion.complete(tx, &answer).await?;
                Ok(answer)
            })
            .await;
        match &done {
            Ok(_) => self.holder.armed = false,
            // The server may still be at it, and the release would wait for its row: leave that to the background.
            Err(error) if error.outcome_unknown() => {}
            Err(_) => self.give_back().await,
        }
        done
    }

    /// What completes the key in a transaction that the caller opens. Then tell the ticket: [`Ticket::committed`].
    #[must_use]
    pub fn completion(&self) -> Completion {
        Completion {
            idempotency: self.holder.idempotency.clone(),
            key: self.holder.key.clone(),
            token: self.holder.token.clone(),
        }
    }

    /// The transaction with the completion is committed: there is nothing to release.
    pub fn committed(mut self) {
        self.holder.armed = false;
    }

    /// Gives the key back, so that the next request may try again; it waits until that is done, so that the client may repeat at once.
    ///
    /// # Errors
    /// The database can't be used; it is tried again in the background, and the key is free when its lease is over.
    pub async fn release(mut self) -> Result<(), IdempotencyError> {
        let holder = &self.holder;
        release(&holder.idempotency, &holder.key, &holder.token).await?;
        self.holder.armed = false;
        Ok(())
    }

    async fn give_back(self) {
        let key = self.holder.name();
        if let Err(error) = self.release().await {
            debug!(key, %error, "idempotency key not released yet");
        }
    }
}

/// Completes a claimed key in the transaction of the business change.
#[derive(Debug, Clone)]
pub struct Completion {
    idempotency: Idempotency,
    key: Key,
    token: Arc<str>,
}

impl Completion {
    /// Whether an answer of that status is to be stored: below 500, and not a refusal if those are released.
    #[must_use]
    pub fn is_stored(&self, status: u16) -> bool {
        match self.idempotency.settings().refusals {
            Refusals::Store => status < 500,
            Refusals::Release => status < 400,
        }
    }

    /// Stores the answer in the caller's transaction. Do it last: until the commit, repetitions wait for the row.
    ///
    /// # Errors
    /// The claim was lost, the answer is too large, or the server failed: roll back.
    pub async fn complete(
        &self,
        tx: &mut Transaction<'_>,
        answer: &Answer,
    ) -> Result<(), IdempotencyError> {
        let settings = self.idempotency.settings();
        let name = || Name(&self.key).to_string();
        if answer.body().len() > settings.body_max {
            return Err(IdempotencyError::TooLarge {
                key: name(),
                length: answer.body().len(),
                bound: settings.body_max,
            });
        }
        let kept = |(name, _): &&(String, String)| {
            settings
                .headers
                .iter()
                .any(|header| header.eq_ignore_ascii_case(name))
        };
        let headers: Vec<&(String, String)> = answer.headers().iter().filter(kept).collect();
        let headers = serde_json::json!(headers).to_string();
        let values: [Value; 7] = [
            answer.status().into(),
            headers.into(),
            answer.body().into(),
            micros(settings.keep).into(),
            self.key.as_str().into(),
            self.key.scope().into(),
            self.token.as_ref().into(),
        ];
        tx.exec_drop(COMPLETE, Params::Positional(values.into()))
            .await
            .map_err(|source| IdempotencyError::Mysql {
                doing: "complete",
                key: name(),
                source,
            })?;
        if tx.affected_rows() == 0 {
            self.idempotency
                .shared
                .counters
                .fenced
                .fetch_add(1, Ordering::Relaxed);
            return Err(IdempotencyError::Fenced { key: name() });
        }
        Ok(())
    }
}
