//! One saga under one lease, from where it is to its end, its next wait, or the loss of the lease.

mod call;
mod open;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::definition::Definition;
use super::engine::Inner;
use super::erased::Bound;
use super::machine::{Next, Progress, Stage};
use super::step::Facts;
use super::store::{Change, Lease, Then};
use super::{End, Failure, SagaStatus};
use crate::chain;
use open::Opened;
use write::{Body, WriteError};

/// Between the reason of a compensation and the failure of the hook at its end.
const AT_ITS_END: &str = "at its end: ";

/// Why the work on a saga came to a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driven {
    /// It has ended.
    Ended(SagaStatus),
    /// It is to be tried again later, by any worker.
    Waiting,
    /// Its type or version is not known here, or it can't be read: left alone for a while.
    Refused,
    /// The lease was given back, because the engine is to stop.
    LetGo,
    /// Another worker has it, or the database did not answer for the time of a lease.
    Lost,
}

/// Works on a saga.
pub(super) async fn drive(inner: Arc<Inner>, lease: Lease, stop: CancellationToken) -> Driven {
    match Drive::open(inner.clone(), lease.clone(), stop).await {
        Ok(Opened::Ready(mut drive)) => drive.run().await,
        Ok(Opened::Refused(why)) => {
            inner.tally.refused.add(1);
            error!(
                saga = lease.id,
                why, "saga left alone: run a worker that knows its definition, or mend the row"
            );
            let delay = inner.settings.refusal_delay;
            let_go(&inner, &lease, delay, Some(&why)).await;
            Driven::Refused
        }
        Ok(Opened::Lost) => Driven::Lost,
        Err(error) => {
            warn!(
                saga = lease.id,
                error = chain::text(&error),
                "saga not read; it will be tried again"
            );
            let_go(&inner, &lease, inner.settings.stuck_backoff.delay(2), None).await;
            Driven::Lost
        }
    }
}

/// Gives a lease back, if the database answers; else it ends by itself.
pub(super) async fn let_go(inner: &Inner, lease: &Lease, delay: Duration, why: Option<&str>) {
    if let Err(error) = inner.store.release(lease, delay, why).await {
        let error = chain::text(&error);
        warn!(saga = lease.id, error, "lease not given back; it will end");
    }
}

struct Drive {
    inner: Arc<Inner>,
    lease: Lease,
    stop: CancellationToken,
    definition: Definition,
    bound: Arc<dyn Bound>,
    correlation_id: String,
    progress: Progress,
    outputs: BTreeMap<String, Value>,
    error: Option<String>,
}

/// What the loop does after an action.
enum Flow {
    Go,
    /// Wait here, holding the lease.
    Pause(Duration),
    Leave(Driven),
}

impl Drive {
    async fn run(&mut self) -> Driven {
        loop {
            if self.stop.is_cancelled() {
                let_go(&self.inner, &self.lease, Duration::ZERO, None).await;
                return Driven::LetGo;
            }
            let flow = match self.progress.next(&self.definition.shape) {
                Next::Do(step) => self.attempt(step).await,
                Next::Undo(step) => self.undo(step).await,
                Next::GiveUp(step) => self.give_up(step).await,
                Next::Stuck(step) => {
                    let cut = Failure::unknown("the last attempt was cut short");
                    self.undo_failed(step, &cut).await
                }
                Next::End(end) => self.end(end).await,
                Next::Nothing => Ok(Flow::Leave(Driven::Ended(self.progress.status))),
                Next::Illegal(step) => Ok(self.illegal(step).await),
            };
            match flow {
                Ok(Flow::Go) => {}
                Ok(Flow::Pause(delay)) => {
                    tokio::select! {
                        () = sleep(delay) => {}
                        () = self.stop.cancelled() => {}
                    }
                }
                Ok(Flow::Leave(driven)) => return driven,
                Err(lost) => return self.lost(&lost).await,
            }
        }
    }

    /// One attempt of a step: mark, call, record.
    async fn attempt(&mut self, step: usize) -> Result<Flow, WriteError> {
        let in_doubt = self.progress.in_doubt(step);
        if step == 0 && self.progress.marks.iter().all(|mark| mark.attempts == 0) {
            self.inner.tally.started.add(1);
        }
        let begun = self.change(self.progress.begin(step), step, None);
        self.write(begun, Body::Nothing).await?;
        let facts = self.facts(step, false);
        let called = if self.is_remote(step) {
            let bound = self.bound.clone();
            self.call(step, bound.call(step, &facts)).await?
        } else {
            Ok(Value::Null)
        };
        let (failure, stage) = match called {
            Err(failure) => (failure, Stage::Call),
            Ok(output) => {
                let done = self.change(self.progress.succeed(step), step, None);
                let body = Body::Record(step, facts, output);
                match self.write(done, body).await {
                    Ok(()) => return Ok(Flow::Go),
                    Err(WriteError::Own(failure)) => (failure, Stage::Record),
                    Err(lost) => return Err(lost),
                }
            }
        };
        self.failed(step, &failure, stage, in_doubt).await
    }

    async fn failed(
        &mut self,
        step: usize,
        failure: &Failure,
        stage: Stage,
        in_doubt: bool,
    ) -> Result<Flow, WriteError> {
        let text = chain::text(failure);
        let (saga, name) = (&self.lease.id, self.name(step));
        warn!(saga, step = name, error = text, "step failed");
        self.inner.tally.failure(failure.kind());
        let shape = &self.definition.shape;
        let new = self
            .progress
            .fail(shape, step, (failure.kind(), stage), in_doubt);
        let wait = if new.status == SagaStatus::Running {
            let attempts = new.marks.get(step).map_or(1, |mark| mark.attempts);
            Some(self.backoff(step, attempts))
        } else {
            None
        };
        self.put_off(new, step, text.clone(), Some(text), wait)
            .await
    }

    async fn give_up(&mut self, step: usize) -> Result<Flow, WriteError> {
        let why = "gave up: the last attempt was cut short".to_owned();
        let new = self.progress.give_up(&self.definition.shape, step);
        self.put_off(
            new,
            step,
            why.clone(),
            Some(format!("{}: {why}", self.name(step))),
            None,
        )
        .await
    }

    /// One attempt to undo a step: mark, call, record.
    async fn undo(&mut self, step: usize) -> Result<Flow, WriteError> {
        let begun = self.change(self.progress.begin_undo(step), step, None);
        self.write(begun, Body::Nothing).await?;
        let facts = self.facts(step, true);
        if self.is_remote(step) {
            let bound = self.bound.clone();
            if let Err(failure) = self.call(step, bound.undo_call(step, &facts)).await? {
                return self.undo_failed(step, &failure).await;
            }
        }
        let undone = self.change(self.progress.undone(step), step, None);
        match self.write(undone, Body::UndoRecord(step, facts)).await {
            Ok(()) => Ok(Flow::Go),
            Err(WriteError::Own(failure)) => self.undo_failed(step, &failure).await,
            Err(lost) => Err(lost),
        }
    }

    async fn undo_failed(&mut self, step: usize, failure: &Failure) -> Result<Flow, WriteError> {
        let text = chain::text(failure);
        self.inner.tally.failure(failure.kind());
        let new = self.progress.undo_failed(&self.definition.shape, step);
        let delay = if new.status == SagaStatus::CompensationFailed {
            self.stuck(&new, self.name(step), &text)
        } else {
            warn!(
                saga = self.lease.id,
                step = self.name(step),
                error = text,
                "undo failed"
            );
            let attempts = new.marks.get(step).map_or(1, |mark| mark.undo_attempts);
            self.backoff(step, attempts)
        };
        let text = format!("undo: {text}");
        self.put_off(new, step, text, None, Some(delay)).await
    }

    /// Counts and tells that a saga is stuck; the delay before it is tried again.
    fn stuck(&self, new: &Progress, at: &str, error: &str) -> Duration {
        let delay = self
            .inner
            .settings
            .stuck_backoff
            .delay(new.rounds.saturating_add(1));
        self.inner.tally.stuck.add(1);
        error!(
            saga = self.lease.id,
            at,
            error,
            ?delay,
            "compensation failed; it will be tried again: mend the cause, then retry the saga by hand"
        );
        delay
    }

    async fn end(&mut self, end: End) -> Result<Flow, WriteError> {
        let change = Change {
            progress: self.progress.end(end),
            step: None,
            step_error: None,
            saga_error: None,
            then: Then::End,
        };
        let facts = self.facts(usize::MAX, end == End::Compensated);
        match self.write(change, Body::End(end, facts)).await {
            Ok(()) => {
                let status = self.progress.status;
                info!(saga = self.lease.id, %status, "saga ended");
                self.inner.tally.end(end);
                Ok(Flow::Leave(Driven::Ended(status)))
            }
            Err(WriteError::Own(failure)) => {
                let text = chain::text(&failure);
                self.inner.tally.failure(failure.kind());
                let new = self.progress.end_failed(end);
                let delay = self.stuck(&new, "end", &text);
                let change = Change {
                    progress: new,
                    step: None,
                    step_error: None,
                    saga_error: Some(match self.reason() {
                        Some(reason) => format!("{reason}; {AT_ITS_END}{text}"),
                        None => format!("{AT_ITS_END}{text}"),
                    }),
                    then: Then::Wait(delay),
                };
                self.write(change, Body::Nothing).await?;
                Ok(Flow::Leave(Driven::Waiting))
            }
            Err(lost) => Err(lost),
        }
    }

    async fn illegal(&self, step: usize) -> Flow {
        let why = format!(
            "its step {} has a status that no engine gives it",
            self.name(step)
        );
        self.inner.tally.refused.add(1);
        error!(saga = self.lease.id, why, "saga left alone: mend the row");
        let delay = self.inner.settings.refusal_delay;
        let_go(&self.inner, &self.lease, delay, Some(&why)).await;
        Flow::Leave(Driven::Refused)
    }

    async fn lost(&self, lost: &WriteError) -> Driven {
        self.inner.tally.lost.add(1);
        let error = chain::text(lost);
        warn!(
            saga = self.lease.id,
            error, "saga not carried on by this worker"
        );
        if !matches!(lost, WriteError::Fenced) {
            let delay = self.inner.settings.stuck_backoff.delay(2);
            let_go(&self.inner, &self.lease, delay, None).await;
        }
        Driven::Lost
    }

    /// Writes a failure, and waits: here if it is short, else without the lease.
    async fn put_off(
        &mut self,
        new: Progress,
        step: usize,
        step_error: String,
        saga_error: Option<String>,
        wait: Option<Duration>,
    ) -> Result<Flow, WriteError> {
        let stuck = new.status == SagaStatus::CompensationFailed;
        let (then, flow) = match wait {
            None => (Then::Keep, Flow::Go),
            Some(delay) if delay <= self.inner.settings.wait_in_place && !stuck => {
                (Then::Keep, Flow::Pause(delay))
            }
            Some(delay) => (Then::Wait(delay), Flow::Leave(Driven::Waiting)),
        };
        let change = Change {
            saga_error,
            then,
            ..self.change(new, step, Some(step_error))
        };
        self.write(change, Body::Nothing).await?;
        Ok(flow)
    }

    fn change(&self, progress: Progress, step: usize, step_error: Option<String>) -> Change {
        Change {
            progress,
            step: Some((step, self.name(step).to_owned())),
            step_error,
            saga_error: None,
            then: Then::Keep,
        }
    }

    fn name(&self, step: usize) -> &str {
        self.definition.names.get(step).map_or("", String::as_str)
    }

    fn is_remote(&self, step: usize) -> bool {
        self.definition
            .shape
            .get(step)
            .is_some_and(|shape| shape.remote)
    }

    fn backoff(&self, step: usize, attempts: u32) -> Duration {
        let policy = self.definition.policies.get(step);
        policy.map_or(Duration::ZERO, |policy| {
            policy.backoff.delay(attempts.saturating_add(1))
        })
    }

    fn facts(&self, step: usize, undoing: bool) -> Arc<Facts> {
        let mark = self.progress.marks.get(step).copied().unwrap_or_default();
        Arc::new(Facts {
            saga_id: self.lease.id.clone(),
            correlation_id: self.correlation_id.clone(),
            step: self.name(step).to_owned(),
            undoing,
            attempt: if undoing {
                mark.undo_attempts
            } else {
                mark.attempts
            },
            recorded: mark.recorded,
            outputs: self.outputs.clone(),
            error: self.reason().map(str::to_owned),
        })
    }

    /// Why the saga compensates, without what its hook has failed with since.
    fn reason(&self) -> Option<&str> {
        let error = self.error.as_deref()?;
        let reason = error.split(AT_ITS_END).next()?.trim_end_matches("; ");
        (!reason.is_empty()).then_some(reason)
    }
}
