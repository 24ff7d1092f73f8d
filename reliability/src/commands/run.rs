//! The loop of a worker.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mysql_async::Transaction;
use thiserror::Error;
use tokio::task::{Id, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::queue::mark_done;
use super::{Command, CommandError, Failed, Queue};
use crate::mysql::IsolationLevel::ReadCommitted;
use crate::mysql::{TransactionError, is_open};
use crate::{chain, guard};

/// Any error of a handler.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// What a queue's commands ask for.
pub trait Handler: Send + Sync + 'static {
    /// Makes the change that `command` asks for, in `tx`, which the caller commits together with the command's DONE.
    ///
    /// It runs again from its start after a deadlock: hand the server's errors on (`?`), and have no effect outside `tx`
    /// that can't be repeated. An error or a panic rolls back, and is a failed attempt.
    ///
    /// # Errors
    /// Any: the command is tried again later, up to [`Settings::attempts`](super::Settings::attempts) times.
    fn handle(
        &self,
        tx: &mut Transaction<'_>,
        command: &Command,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Told after the commit, in this process alone: a place to wake whoever waits for the change, and for nothing that has
    /// to happen. Must not block.
    fn committed(&self, _command: &Command) {}
}

/// What a queue's clones did since they were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands leased.
    pub claimed: u64,
    /// Commands set DONE.
    pub done: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// Commands set FAILED.
    pub given_up: u64,
    /// Results thrown away because the lease was over.
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
    pub(super) claimed: Count,
    done: Count,
    failed_attempts: Count,
    pub(super) given_up: Count,
    lost: Count,
}

/// How a handler's transaction fails.
#[derive(Debug, Error)]
enum Attempt {
    #[error("the handler failed")]
    Handler(#[source] BoxError),
    #[error("the handler panicked: {0}")]
    Panic(String),
    #[error(
        "the handler ignored an error that ended its transaction, or ran a statement that commits"
    )]
    Ended,
    #[error(transparent)]
    Command(#[from] CommandError),
}

impl Queue {
    /// What this queue did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let tally = &self.tally;
        Counters {
            claimed: tally.claimed.get(),
            done: tally.done.get(),
            failed_attempts: tally.failed_attempts.get(),
            given_up: tally.given_up.get(),
            lost: tally.lost.get(),
        }
    }

    /// Claims and handles commands until `stop` is cancelled; then waits for running handlers, up to
    /// [`Settings::stop_timeout`](super::Settings::stop_timeout), and puts back what is not done.
    ///
    /// # Cancel safety
    /// Dropped, it drops its handlers; their commands are due again when the lease is over.
    pub async fn run<H: Handler>(&self, stop: CancellationToken, handler: H) {
        let handler = Arc::new(handler);
        let mut running = Running::default();
        let mut failures = 0;
        while !stop.is_cancelled() {
            let free = self
                .settings
                .concurrency
                .max(1)
                .saturating_sub(running.tasks.len());
            let busy = free == 0;
            match self.look(free).await {
                Ok((commands, full)) => {
                    failures = 0;
                    let taken = commands.len();
                    for command in commands {
                        let work = self.clone().attempt(handler.clone(), command.clone());
                        let task = running.tasks.spawn(work).id();
                        running.commands.insert(task, command);
                    }
                    // There are more, or other workers were quicker.
                    if full {
                        running.reap();
                        if taken < free {
                            continue;
                        }
                    }
                }
                Err(error) => {
                    failures += 1;
                    warn!(
                        error = chain::text(&error),
                        "cannot claim commands; trying again"
                    );
                }
            }
            let pause = if failures == 0 {
                self.settings.poll_interval
            } else {
                self.settings.backoff.delay(failures + 1)
            };
            // Stop; a place that got free; a wake-up and the clock, if there is a place.
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = running.next(), if !running.tasks.is_empty() => {}
                () = self.wake.notified(), if !busy => {}
                () = sleep(pause), if !busy => {}
            }
            running.reap();
        }
        let bound = self.settings.stop_timeout;
        if timeout(bound, running.all()).await.is_ok() {
            return;
        }
        running.tasks.shutdown().await;
        for command in running.commands.values() {
            if let Err(error) = self.release(command).await {
                let error = chain::text(&error);
                warn!(
                    id = command.id,
                    error, "command not put back; its lease will end"
                );
            }
        }
    }

    /// One attempt, to its end: done, failed, or left to its lease.
    async fn attempt<H: Handler>(self, handler: Arc<H>, command: Command) {
        let command = Arc::new(command);
        let outcome = self
            .database
            .transaction(ReadCommitted, {
                let (command, handler) = (command.clone(), handler.clone());
                async move |tx| {
                    guard::catch(handler.handle(tx, &command))
                        .await
                        .map_err(Attempt::Panic)?
                        .map_err(Attempt::Handler)?;
                    // Else DONE would be committed without what came before.
                    if !is_open(tx).await {
                        return Err(Attempt::Ended);
                    }
                    Ok(mark_done(tx, &command).await?)
                }
            })
            .await;
        let id = command.id;
        let settled = match outcome {
            Ok(()) => {
                self.tally.done.add(1);
                handler.committed(&command);
                return;
            }
            Err(TransactionError::Body(Attempt::Command(error @ CommandError::Lost { .. }))) => {
                Err(error)
            }
            Err(error) if error.outcome_unknown() => {
                let error = chain::text(&error);
                warn!(
                    id,
                    error, "command may be done; its lease will end if it is not"
                );
                return;
            }
            // Not the command's fault.
            Err(TransactionError::Connect(error)) => {
                warn!(
                    id,
                    error = chain::text(&error),
                    "command not handled; putting it back"
                );
                self.release(&command).await
            }
            Err(error) => self.settle(&command, &error).await,
        };
        match settled {
            Ok(()) => {}
            Err(error) => {
                if matches!(error, CommandError::Lost { .. }) {
                    self.tally.lost.add(1);
                }
                warn!(id, error = chain::text(&error), "command left to its lease");
            }
        }
    }

    async fn settle(
        &self,
        command: &Command,
        failure: &TransactionError<Attempt>,
    ) -> Result<(), CommandError> {
        self.tally.failed_attempts.add(1);
        let text = chain::text(failure);
        let failed = self.failed(command, &text).await?;
        let (id, kind, attempt) = (command.id, &command.command_type, command.attempt);
        match failed {
            Failed::Again(delay) => {
                warn!(
                    id,
                    kind,
                    attempt,
                    ?delay,
                    error = text,
                    "command failed; it will be tried again"
                );
            }
            Failed::GivenUp => error!(
                id,
                kind,
                attempt,
                error = text,
                "command FAILED: mend the cause, then set it to PENDING, with attempts = 0 and available_at = NOW(6)"
            ),
        }
        Ok(())
    }
}

/// Handlers at work, and their commands.
#[derive(Default)]
struct Running {
    tasks: JoinSet<()>,
    commands: HashMap<Id, Command>,
}

impl Running {
    /// Until one has ended. Cancel safe.
    async fn next(&mut self) {
        match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => {
                self.commands.remove(&id);
            }
            // Of an attempt, all that may panic is caught.
            Some(Err(error)) => {
                self.commands.remove(&error.id());
            }
            None => {}
        }
    }

    fn reap(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            let id = match ended {
                Ok((id, ())) => id,
                Err(error) => error.id(),
            };
            self.commands.remove(&id);
        }
    }

    async fn all(&mut self) {
        while !self.tasks.is_empty() {
            self.next().await;
        }
    }
}
