//! Transactions that are run again as a whole.

use std::error::Error as StdError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable as _;
use mysql_async::{IsolationLevel, Transaction, TxOpts};
use thiserror::Error;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::{ConnectError, DEADLOCK, Database, LOCK_WAIT_TIMEOUT, server_code};

/// How a transaction failed.
#[derive(Debug, Error)]
pub enum TransactionError<E: StdError + 'static> {
    /// There was no connection; nothing was done.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It could not be opened; nothing was done.
    #[error("cannot begin a transaction")]
    Begin(#[source] mysql_async::Error),
    /// The closure failed; what it did is rolled back.
    #[error(transparent)]
    Body(E),
    /// Every attempt ended in a deadlock or a lock timeout; all is rolled back.
    #[error(
        "gave up after {attempts} attempts, the last of which waited for other transactions' locks"
    )]
    Contended {
        /// How often it was tried.
        attempts: u32,
        /// How the last attempt ended.
        #[source]
        source: E,
    },
    /// The server rolled it back instead of committing it, at every attempt.
    #[error(
        "gave up after {attempts} attempts: the server rolls the transaction back when it commits"
    )]
    Refused {
        /// How often it was tried.
        attempts: u32,
        /// The server's words.
        #[source]
        source: mysql_async::Error,
    },
    /// The closure did not finish in time; what it did is rolled back.
    #[error("transaction rolled back: it did not finish within {after:?}")]
    Timeout {
        /// The bound.
        after: Duration,
    },
    /// The closure went on after the server had ended the transaction: it ignored a deadlock, or ran a statement that
    /// commits by itself (DDL). What it did after that is committed; what it did before is rolled back or, for DDL, committed.
    #[error(
        "the transaction ended within its closure, which ignored a deadlock or ran a statement that commits"
    )]
    Ended,
    /// COMMIT was sent and not confirmed: it may have happened or not. Find out, or make the operation idempotent, before
    /// it is tried again.
    #[error("the server did not confirm the commit: the transaction may have happened or not")]
    CommitUnknown {
        /// What happened; nothing if no answer came in time.
        #[source]
        source: Option<mysql_async::Error>,
    },
}

impl<E: StdError + 'static> TransactionError<E> {
    /// Whether the transaction, or a part of it, may have been committed all the same.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        matches!(
            self,
            TransactionError::CommitUnknown { .. } | TransactionError::Ended
        )
    }
}

/// How one attempt ended, if not well.
enum Failure<E: StdError + 'static> {
    /// Nobody else's fault: the caller is told.
    Final(TransactionError<E>),
    /// In the way of others, and certainly rolled back.
    Body(E),
    /// The same, at the commit.
    Commit(mysql_async::Error),
}

impl Database {
    /// Runs `body` in a transaction and commits it; after a deadlock (1213) or lock timeout (1205) all of `body` runs
    /// again in a new transaction, up to [`Settings::attempts`](super::Settings::attempts) times.
    ///
    /// `body` must not have effects outside the transaction that can't be repeated. It must hand on the errors of its
    /// statements: after a deadlock the server has closed the transaction, and what comes next commits by itself; that is
    /// noticed at the end, and is [`TransactionError::Ended`]. The code is looked for in the whole chain of causes of
    /// `body`'s error, see [`server_code`].
    ///
    /// In a task that may change threads (a spawned one, a handler of a web server), write `async move` and let the closure
    /// own what it uses: for borrowed captures the compiler can't yet see that the future is `Send`.
    ///
    /// ```no_run
    /// # fn example(database: reliability::mysql::Database) {
    /// use mysql_async::prelude::Queryable as _;
    /// use reliability::mysql::IsolationLevel::ReadCommitted;
    ///
    /// tokio::spawn(async move {
    ///     let name = String::from("night");
    ///     database
    ///         .transaction(ReadCommitted, async move |tx| {
    ///             tx.exec_drop("UPDATE shifts SET open = 1 WHERE name = ?", (&name,)).await?;
    ///             tx.query_drop("UPDATE totals SET open = open + 1").await
    ///         })
    ///         .await
    /// });
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// A future that is dropped leaves no open transaction in the pool: the driver closes a connection that was dropped
    /// within a command and rolls back one dropped between two, before anyone else gets it. A statement that the server is
    /// running at that moment runs to its end there, and holds its locks until then. Dropped while COMMIT is on its way,
    /// the outcome is unknown.
    ///
    /// # Errors
    /// See [`TransactionError`]. Where [`TransactionError::outcome_unknown`] is false, nothing was committed.
    pub async fn transaction<T, E, F>(
        &self,
        isolation: IsolationLevel,
        mut body: F,
    ) -> Result<T, TransactionError<E>>
    where
        E: StdError + 'static,
        F: AsyncFnMut(&mut Transaction<'_>) -> Result<T, E>,
    {
        let attempts = self.settings.attempts.max(1);
        let mut attempt = 1;
        loop {
            let failure = match self.attempt(isolation, &mut body).await {
                Ok(value) => return Ok(value),
                Err(Failure::Final(error)) => return Err(error),
                Err(failure) => failure,
            };
            if attempt == attempts {
                return Err(match failure {
                    Failure::Final(error) => error,
                    Failure::Body(source) => TransactionError::Contended { attempts, source },
                    Failure::Commit(source) => TransactionError::Refused { attempts, source },
                });
            }
            attempt += 1;
            sleep(self.settings.backoff.delay(attempt)).await;
        }
    }

    async fn attempt<T, E, F>(
        &self,
        isolation: IsolationLevel,
        body: &mut F,
    ) -> Result<T, Failure<E>>
    where
        E: StdError + 'static,
        F: AsyncFnMut(&mut Transaction<'_>) -> Result<T, E>,
    {
        let bound = self.settings.attempt_timeout;
        let timed_out = || Failure::Final(TransactionError::Timeout { after: bound });
        let mut conn = self
            .connection()
            .await
            .map_err(|error| Failure::Final(TransactionError::Connect(error)))?;
        let mut options = TxOpts::new();
        options.with_isolation_level(isolation);
        let mut tx = timeout(bound, conn.start_transaction(options))
            .await
            .map_err(|_| timed_out())?
            .map_err(|error| Failure::Final(TransactionError::Begin(error)))?;
        match timeout(bound, body(&mut tx)).await {
            Err(_) => Err(timed_out()),
            Ok(Ok(value)) => {
                if !timeout(bound, is_open(&mut tx))
                    .await
                    .map_err(|_| timed_out())?
                {
                    return Err(Failure::Final(TransactionError::Ended));
                }
                self.commit(tx).await?;
                Ok(value)
            }
            Ok(Err(error)) => {
                if let Ok(Err(error)) | Err(error) = timeout(bound, tx.rollback())
                    .await
                    .map_err(|_| mysql_async::DriverError::ConnectionClosed.into())
                {
                    // The connection is lost, and the transaction with it.
                    debug!(%error, "rollback not confirmed");
                }
                Err(if self.is_contention(server_code(&error)) {
                    Failure::Body(error)
                } else {
                    Failure::Final(TransactionError::Body(error))
                })
            }
        }
    }

    async fn commit<E: StdError + 'static>(&self, tx: Transaction<'_>) -> Result<(), Failure<E>> {
        let source = match timeout(self.settings.attempt_timeout, tx.commit()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(source)) => Some(source),
            Err(_) => None,
        };
        match source {
            // Servers that certify at commit (Group Replication, Galera) say so there, having rolled back.
            Some(source) if self.is_contention(server_code(&source)) => {
                Err(Failure::Commit(source))
            }
            source => Err(Failure::Final(TransactionError::CommitUnknown { source })),
        }
    }

    /// Whether the transaction stood in the way of others; counted.
    pub(crate) fn is_contention(&self, code: Option<u16>) -> bool {
        let counter = match code {
            Some(DEADLOCK) => &self.contention.deadlocks,
            Some(LOCK_WAIT_TIMEOUT) => &self.contention.lock_timeouts,
            Some(_) | None => return false,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Whether the server still has the transaction open, as its last answer says (`SERVER_STATUS_IN_TRANS`).
pub(crate) async fn is_open(tx: &mut Transaction<'_>) -> bool {
    // An error says nothing, so one that the closure ignored as its last is followed by a question.
    if tx.last_ok_packet().is_none() && tx.query_drop("DO 0").await.is_err() {
        // The connection is lost; the commit will tell.
        return true;
    }
    tx.last_ok_packet().is_none_or(|answer| {
        answer
            .status_flags()
            .contains(StatusFlags::SERVER_STATUS_IN_TRANS)
    })
}
