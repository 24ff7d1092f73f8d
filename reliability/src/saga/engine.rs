//! The worker: claims due sagas, and works on many at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{Id, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::definition::{Definition, DefinitionError};
use super::drive::{self, Driven};
use super::store::{Lease, Store};
use super::{End, FailureKind, SagaError};
use crate::chain;
use crate::claim::Form;
use crate::mysql::Database;
use crate::resilience::Backoff;

/// How an engine behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of this worker in `locked_by`, for people; at most 64 characters of it are used.
    pub worker: String,
    /// How long a saga stays with a worker that says nothing more. Longer than one and a half transactions take at most
    /// ([`attempt_timeout`](crate::mysql::Settings::attempt_timeout)): the lease is renewed at thirds of it, and not within
    /// a transaction.
    pub lease: Duration,
    /// Sagas worked on at once. At least 1. Each uses one connection of the pool, and sometimes two.
    pub concurrency: usize,
    /// Longest time between two looks for due sagas.
    pub poll_interval: Duration,
    /// Longest delay that a worker waits for in place, holding the saga; a longer one is left to whoever is free then.
    pub wait_in_place: Duration,
    /// The delays of a saga whose compensation has failed, or whose end has.
    pub stuck_backoff: Backoff,
    /// How long a saga is left alone whose definition is not known here, or which can't be read.
    pub refusal_delay: Duration,
    /// How long [`Engine::run`] waits for steps in hand when it is told to stop.
    pub stop_timeout: Duration,
    /// How sagas are claimed.
    pub form: Form,
}

impl Default for Settings {
    /// 60 s of lease, 8 sagas at once, a look each 0.5 s, 0.25 s in place, 1 s to 5 min when stuck, 30 s when refused,
    /// 20 s to stop.
    fn default() -> Self {
        Self {
            worker: "worker".to_owned(),
            lease: Duration::from_secs(60),
            concurrency: 8,
            poll_interval: Duration::from_millis(500),
            wait_in_place: Duration::from_millis(250),
            stuck_backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(300)),
            refusal_delay: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(20),
            form: Form::Auto,
        }
    }
}

/// What an engine did since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sagas whose first step was begun.
    pub started: u64,
    /// Sagas set COMPLETED.
    pub completed: u64,
    /// Sagas set COMPENSATED.
    pub compensated: u64,
    /// Failures that left a saga stuck: COMPENSATION_FAILED, or at its end. Each retry that fails counts.
    pub compensation_failures: u64,
    /// Sagas taken over from a worker whose lease was over.
    pub takeovers: u64,
    /// Sagas left alone: no definition of that type and version here, or a row that can't be read.
    pub refused_definitions: u64,
    /// Steps and undos that were refused.
    pub refused: u64,
    /// Steps and undos that failed, with nothing done.
    pub technical: u64,
    /// Steps and undos with an unknown outcome.
    pub unknown: u64,
    /// Panics of steps, undos and hooks.
    pub panics: u64,
    /// Sagas given up because another worker had them, or the database did not answer.
    pub lost: u64,
}

#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) started: Count,
    completed: Count,
    compensated: Count,
    pub(super) stuck: Count,
    takeovers: Count,
    pub(super) refused: Count,
    failures: [Count; 3],
    pub(super) panics: Count,
    pub(super) lost: Count,
}

impl Tally {
    pub(super) fn failure(&self, kind: FailureKind) {
        let [refused, technical, unknown] = &self.failures;
        match kind {
            FailureKind::Refused => refused.add(1),
            FailureKind::Technical => technical.add(1),
            FailureKind::Unknown => unknown.add(1),
        }
    }

    pub(super) fn end(&self, end: End) {
        match end {
            End::Completed => self.completed.add(1),
            End::Compensated => self.compensated.add(1),
        }
    }
}

pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) settings: Settings,
    pub(super) tally: Tally,
    definitions: Vec<Definition>,
    wake: Notify,
}

impl Inner {
    pub(super) fn definition(&self, saga_type: &str, version: u32) -> Option<&Definition> {
        self.definitions
            .iter()
            .find(|definition| definition.saga_type == saga_type && definition.version == version)
    }
}

/// A worker for sagas of some kinds. Clones share everything; many workers may share a database.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

impl Engine {
    /// A worker that knows these definitions; it connects when used.
    ///
    /// # Errors
    /// Two definitions have one type and version.
    pub fn new(
        database: Database,
        definitions: Vec<Definition>,
        settings: Settings,
    ) -> Result<Self, DefinitionError> {
        let mut known = HashSet::new();
        for definition in &definitions {
            let (saga_type, version) = (definition.saga_type, definition.version);
            if !known.insert((saga_type, version)) {
                return Err(DefinitionError::Twice {
                    saga_type: saga_type.to_owned(),
                    version,
                });
            }
        }
        Ok(Self {
            inner: Arc::new(Inner {
                store: Store::new(database, &settings.worker, settings.lease, settings.form),
                settings,
                tally: Tally::default(),
                definitions,
                wake: Notify::new(),
            }),
        })
    }

    /// Lets [`Engine::run`] look for due sagas now: call it after the commit of a [`start`](super::start).
    pub fn wake(&self) {
        self.inner.wake.notify_one();
    }

    /// What this engine did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let tally = &self.inner.tally;
        let [refused, technical, unknown] = &tally.failures;
        Counters {
            started: tally.started.get(),
            completed: tally.completed.get(),
            compensated: tally.compensated.get(),
            compensation_failures: tally.stuck.get(),
            takeovers: tally.takeovers.get(),
            refused_definitions: tally.refused.get(),
            refused: refused.get(),
            technical: technical.get(),
            unknown: unknown.get(),
            panics: tally.panics.get(),
            lost: tally.lost.get(),
        }
    }

    /// Works on due sagas until `stop` is cancelled; then finishes the steps in hand, up to
    /// [`Settings::stop_timeout`], and gives every lease back.
    ///
    /// # Cancel safety
    /// Dropped, it drops its steps where they are, as a crash would; their sagas are due again when the leases are over.
    pub async fn run(&self, stop: CancellationToken) {
        let inner = &self.inner;
        let mut running = Running::default();
        let mut failures: u32 = 0;
        while !stop.is_cancelled() {
            let wanted = inner.settings.concurrency.max(1);
            let free = wanted.saturating_sub(running.tasks.len());
            match inner.store.claim(free).await {
                Ok((leases, taken_over, full)) => {
                    failures = 0;
                    inner.tally.takeovers.add(taken_over);
                    let taken = leases.len();
                    for lease in leases {
                        running.add(inner.clone(), lease, stop.clone());
                    }
                    // There are more, or other workers were quicker.
                    if full && taken < free {
                        running.reap();
                        continue;
                    }
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let error = chain::text(&error);
                    warn!(error, "cannot claim sagas; trying again");
                }
            }
            let pause = match failures {
                0 => inner.settings.poll_interval,
                failures => Backoff::default().delay(failures.saturating_add(1)),
            };
            let busy = free == 0;
            // Stop; a place that got free; a wake-up and the clock, if there is a place.
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = running.next(), if !running.tasks.is_empty() => {}
                () = inner.wake.notified(), if !busy => {}
                () = sleep(pause), if !busy => {}
            }
            running.reap();
        }
        running.stop(inner).await;
    }

    /// Works on that saga now, due or not, in a task of its own: it goes on if the caller's future is dropped. Nothing
    /// where it has ended, or is another worker's.
    ///
    /// # Errors
    /// The saga could not be claimed.
    pub async fn drive(&self, id: &str) -> Result<Option<Driven>, SagaError> {
        let Some(lease) = self.inner.store.claim_one(id).await? else {
            return Ok(None);
        };
        let work = drive::drive(self.inner.clone(), lease, CancellationToken::new());
        // Of a drive, all that may panic is caught: what remains is the end of the runtime.
        Ok(Some(tokio::spawn(work).await.unwrap_or(Driven::Lost)))
    }

    /// What EXPLAIN says of the statement that looks for due sagas, one `column=value` after the other: is its index used,
    /// does it sort?
    ///
    /// # Errors
    /// The server or the connection failed.
    pub async fn claim_plan(&self) -> Result<String, SagaError> {
        self.inner.store.plan().await
    }
}

/// Sagas at work.
#[derive(Default)]
struct Running {
    tasks: JoinSet<Driven>,
    leases: HashMap<Id, Lease>,
}

impl Running {
    fn add(&mut self, inner: Arc<Inner>, lease: Lease, stop: CancellationToken) {
        let work = drive::drive(inner, lease.clone(), stop);
        let task = self.tasks.spawn(work).id();
        self.leases.insert(task, lease);
    }

    /// Until one has come to a stop. Cancel safe.
    async fn next(&mut self) {
        if let Some(ended) = self.tasks.join_next_with_id().await {
            self.remove(ended);
        }
    }

    fn reap(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.remove(ended);
        }
    }

    fn remove(&mut self, ended: Result<(Id, Driven), tokio::task::JoinError>) {
        let id = match ended {
            Ok((id, _)) => id,
            Err(error) => {
                error!(%error, "the work on a saga ended before its time; its lease will end");
                error.id()
            }
        };
        self.leases.remove(&id);
    }

    /// Waits for the steps in hand; then drops what is left, and gives its leases back.
    async fn stop(mut self, inner: &Inner) {
        let all = async {
            while !self.tasks.is_empty() {
                self.next().await;
            }
        };
        if timeout(inner.settings.stop_timeout, all).await.is_ok() {
            return;
        }
        self.tasks.shutdown().await;
        for lease in self.leases.values() {
            drive::let_go(inner, lease, Duration::ZERO, None).await;
        }
    }
}
