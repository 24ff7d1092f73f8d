//! Idempotency keys of a database: settings, counts, errors, the way to the server.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use super::ticket::{Holder, Ticket};
use super::{Answer, Fingerprint, Key};
use crate::mysql::{ConnectError, Database, Loan, server_code};

/// Whether refusals are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Refusals {
    /// A 4xx of the work is its answer for good.
    #[default]
    Store,
    /// A 4xx of the work is rolled back, and the next request may try again.
    Release,
}

/// How keys are kept.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a claim stands whose worker gives no sign. Longer than any work takes.
    pub lease: Duration,
    /// How long an answer is kept, from its claim and again from its completion. Longer than any client repeats.
    pub keep: Duration,
    /// What a client is told to wait when its request is in progress.
    pub retry_after: Duration,
    /// What happens to a 4xx of the work.
    pub refusals: Refusals,
    /// Names of the headers that are stored with an answer, in lower case.
    pub headers: Vec<String>,
    /// Longest body of an answer, in bytes. Below the server's `max_allowed_packet`.
    pub body_max: usize,
}

impl Default for Settings {
    /// A lease of 5 minutes, answers for 24 hours, 1 s to wait; refusals are stored; the headers `content-type`,
    /// `content-language`, `etag`, `link` and `location`; bodies of up to 1 MiB.
    fn default() -> Self {
        let headers = [
            "content-type",
            "content-language",
            "etag",
            "link",
            "location",
        ];
        Self {
            lease: Duration::from_secs(300),
            keep: Duration::from_secs(24 * 3600),
            retry_after: Duration::from_secs(1),
            refusals: Refusals::Store,
            headers: headers.map(str::to_owned).to_vec(),
            body_max: 1024 * 1024,
        }
    }
}

/// What a claim found.
#[derive(Debug)]
pub enum Claim {
    /// The key is the caller's: do the work.
    New(Ticket),
    /// The work is done; this was its answer.
    Replay(Answer),
    /// Another request with this key is being worked on.
    InProgress {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The key belongs to another request.
    Mismatch,
}

/// Why a key was not claimed, completed or released.
#[derive(Debug, Error)]
pub enum IdempotencyError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// MySQL failed.
    #[error("cannot {doing} idempotency key {key}")]
    Mysql {
        /// What was tried.
        doing: &'static str,
        /// Scope and key.
        key: String,
        /// What happened.
        #[source]
        source: mysql_async::Error,
    },
    /// MySQL did not answer.
    #[error("cannot {doing} idempotency key {key}: no answer within {after:?}")]
    Timeout {
        /// What was tried.
        doing: &'static str,
        /// Scope and key.
        key: String,
        /// How long it waited.
        after: Duration,
    },
    /// The row changed at every look.
    #[error("cannot claim idempotency key {key}: too many others do at this moment; try again")]
    Contended {
        /// Scope and key.
        key: String,
    },
    /// A row is not as this library writes it.
    #[error("the stored answer of idempotency key {key} can't be read: {what}")]
    Unreadable {
        /// Scope and key.
        key: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The claim is over: another request took the key over, or it was released. Roll back.
    #[error("the claim on idempotency key {key} was lost; the transaction must be rolled back")]
    Fenced {
        /// Scope and key.
        key: String,
    },
    /// The answer does not fit.
    #[error(
        "the answer for idempotency key {key} has {length} bytes; Settings::body_max allows {bound}"
    )]
    TooLarge {
        /// Scope and key.
        key: String,
        /// Its length.
        length: usize,
        /// What is allowed.
        bound: usize,
    },
    /// The task that claimed the key ended without a word.
    #[error("the claim of idempotency key {key} was cut off")]
    Aborted {
        /// Scope and key.
        key: String,
    },
}

/// What became of claims since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys claimed, the ones taken over among them.
    pub claimed: u64,
    /// Claimed from a worker whose lease was over.
    pub taken_over: u64,
    /// Requests answered with the stored answer.
    pub replayed: u64,
    /// Requests refused because one with their key was in progress.
    pub in_progress: u64,
    /// Requests refused because their key belongs to another request.
    pub mismatched: u64,
    /// Completions refused because the claim was lost.
    pub fenced: u64,
    /// Claims given back without an answer.
    pub released: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) claimed: AtomicU64,
    pub(super) taken_over: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) in_progress: AtomicU64,
    pub(super) mismatched: AtomicU64,
    pub(super) fenced: AtomicU64,
    pub(super) released: AtomicU64,
}

/// Idempotency keys of one database. Clones share it.
#[derive(Clone)]
pub struct Idempotency {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) database: Database,
    pub(super) settings: Settings,
    pub(super) counters: Counters,
    pub(super) tasks: TaskTracker,
}

impl fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("server", &self.shared.database.server())
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

impl Idempotency {
    /// Keys in `database`, which has the tables of [`migrate::RELIABILITY`](crate::migrate::RELIABILITY) and
    /// [`migrate::IDEMPOTENCY_KEYS`](crate::migrate::IDEMPOTENCY_KEYS).
    #[must_use]
    pub fn new(database: Database, settings: Settings) -> Self {
        let shared = Shared {
            database,
            settings,
            counters: Counters::default(),
            tasks: TaskTracker::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Claims a key for a request; committed when this returns.
    ///
    /// The claim is an INSERT, never a locking read, so that first requests do not wait for each other. A claim whose lease is over is
    /// taken over, if it was of the same request; a released or expired key is anybody's.
    ///
    /// # Cancel safety
    /// It runs in a task of its own; if nobody waits for it any more, the claim is released as soon as it is there.
    ///
    /// # Errors
    /// The database can't be used, or too many claim the same key at once. The claim may have happened all the same if the
    /// connection was lost; it is released then, or else free when its lease is over.
    pub async fn claim(&self, key: &Key, request: &Fingerprint) -> Result<Claim, IdempotencyError> {
        let (idempotency, key, request) = (self.clone(), key.clone(), request.clone());
        let name = Name(&key).to_string();
        let task = self.shared.tasks.spawn(async move {
            let holder = Holder::new(idempotency, key);
            holder.claim(request).await
        });
        match task.await {
            Ok(claim) => claim,
            Err(_) => Err(IdempotencyError::Aborted { key: name }),
        }
    }

    /// What became of claims since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        Counts {
            claimed: read(&counters.claimed),
            taken_over: read(&counters.taken_over),
            replayed: read(&counters.replayed),
            in_progress: read(&counters.in_progress),
            mismatched: read(&counters.mismatched),
            fenced: read(&counters.fenced),
            released: read(&counters.released),
        }
    }

    /// How keys are kept.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The database that the keys are in.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.shared.database
    }

    /// Waits until claims, releases and work in tasks of their own are done. Call it before the pool is closed.
    ///
    /// # Cancel safety
    /// It can be asked again.
    pub async fn idle(&self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        self.shared.tasks.reopen();
    }

    /// Runs statements that commit by themselves, again after a deadlock or lock timeout, within the database's bounds.
    ///
    /// `run` gets the connection for good and owns the rest: with borrows, no task could run it.
    pub(super) async fn bounded<T, R>(
        &self,
        doing: &'static str,
        key: &Key,
        mut run: impl FnMut(Loan) -> R,
    ) -> Result<T, IdempotencyError>
    where
        R: Future<Output = mysql_async::Result<T>>,
    {
        let database = &self.shared.database;
        let name = || Name(key).to_string();
        let bound = database.settings().attempt_timeout;
        let mut attempt = 1;
        loop {
            let conn = database.connection().await?;
            let source = match timeout(bound, run(conn)).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(source)) => source,
                Err(_) => {
                    return Err(IdempotencyError::Timeout {
                        doing,
                        key: name(),
                        after: bound,
                    });
                }
            };
            if !database.is_contention(server_code(&source))
                || attempt >= database.settings().attempts
            {
                return Err(IdempotencyError::Mysql {
                    doing,
                    key: name(),
                    source,
                });
            }
            attempt += 1;
            sleep(database.settings().backoff.delay(attempt)).await;
        }
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    // A century: beyond it, the sum leaves the range of DATETIME.
    const MOST: u64 = 100 * 365 * 86_400 * 1_000_000;
    u64::try_from(time.as_micros()).map_or(MOST, |micros| micros.min(MOST))
}

/// A key, for people.
pub(super) struct Name<'a>(pub(super) &'a Key);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.scope() {
            "" => f.write_str(self.0.as_str()),
            scope => write!(f, "{scope}/{}", self.0.as_str()),
        }
    }
}
