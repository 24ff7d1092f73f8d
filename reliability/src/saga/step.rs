//! What an application writes: steps, and what happens at a saga's end.

use std::collections::BTreeMap;

use mysql_async::Transaction;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Failure;

/// One step of a saga whose payload is a `P`: up to four parts, each of which may run more than once.
///
/// | | forward | undo |
/// |---|---|---|
/// | outside any transaction | [`call`](Step::call) | [`undo_call`](Step::undo_call) |
/// | in a transaction, with the step's mark | [`record`](Step::record) | [`undo_record`](Step::undo_record) |
///
/// A step without a remote side sets [`REMOTE`](Step::REMOTE) to false, and has only the second row.
///
/// ```
/// use mysql_async::Transaction;
/// use mysql_async::prelude::Queryable as _;
/// use reliability::saga::{Context, Failure, Step};
/// use serde_json::Value;
///
/// struct BookRoom;
///
/// impl Step<u32> for BookRoom {
///     const REMOTE: bool = false;
///
///     async fn record(&self, tx: &mut Transaction<'_>, cx: &Context<'_, u32>, _: Value) -> Result<Value, Failure> {
///         tx.exec_drop("UPDATE rooms SET booked = 1 WHERE id = ? AND booked = 0", (cx.payload(),)).await?;
///         match tx.affected_rows() {
///             0 => Err(Failure::refused("the room is taken")),
///             _ => Ok(Value::Null),
///         }
///     }
///
///     async fn undo_record(&self, tx: &mut Transaction<'_>, cx: &Context<'_, u32>) -> Result<(), Failure> {
///         Ok(tx.exec_drop("UPDATE rooms SET booked = 0 WHERE id = ?", (cx.payload(),)).await?)
///     }
/// }
/// ```
pub trait Step<P: Sync>: Send + Sync + 'static {
    /// Whether the step calls anybody. If not, a failure of `record` leaves nothing behind, and such a step is not undone.
    const REMOTE: bool = true;

    /// The remote call. [`Context::key`] goes with it, and makes a repetition harmless: the other side does the work once
    /// for a key, and answers the same each time.
    ///
    /// The future is dropped when the step's timeout is over: the outcome is then unknown.
    ///
    /// # Errors
    /// See [`FailureKind`](super::FailureKind): when in doubt, unknown. A panic is unknown too.
    fn call(&self, _cx: &Context<'_, P>) -> impl Future<Output = Result<Value, Failure>> + Send {
        async { Ok(Value::Null) }
    }

    /// The local change, in the transaction that sets the step COMPLETED: rows, events, commands. Gives the step's output,
    /// which later steps and the undo see; `output` is what the call gave.
    ///
    /// It runs again from its start after a deadlock; hand the server's errors on.
    ///
    /// # Errors
    /// All is rolled back. After a call, a refusal makes the saga undo that call.
    fn record(
        &self,
        _tx: &mut Transaction<'_>,
        _cx: &Context<'_, P>,
        output: Value,
    ) -> impl Future<Output = Result<Value, Failure>> + Send {
        async { Ok(output) }
    }

    /// Undoes the call: idempotent, under its own [`Context::key`]. The call of [`Context::do_key`] may have been done, or
    /// not, or may still arrive: the other side must remember the undo and refuse a call that comes after it.
    ///
    /// # Errors
    /// Any kind is tried again: first within the step's policy, then for ever, and slowly.
    fn undo_call(&self, _cx: &Context<'_, P>) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Undoes the record, in the transaction that sets the step COMPENSATED. [`Context::recorded`] tells whether there is
    /// anything to undo: `record` has not been committed where the call's outcome was never known.
    ///
    /// # Errors
    /// All is rolled back, and tried again as for [`undo_call`](Step::undo_call), which then runs again as well.
    fn undo_record(
        &self,
        _tx: &mut Transaction<'_>,
        _cx: &Context<'_, P>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
}

/// What happens at the end of a saga, in the transaction that sets its final status.
///
/// `()` does nothing.
pub trait Hooks<P: Sync>: Send + Sync + 'static {
    /// All steps are done.
    ///
    /// # Errors
    /// All is rolled back; the saga stays RUNNING, and this is tried again, at growing intervals.
    fn on_completed(
        &self,
        _tx: &mut Transaction<'_>,
        _end: &Ending<'_, P>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// All that was done is undone.
    ///
    /// # Errors
    /// All is rolled back; the saga is COMPENSATION_FAILED, and this is tried again, at growing intervals.
    fn on_compensated(
        &self,
        _tx: &mut Transaction<'_>,
        _end: &Ending<'_, P>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
}

impl<P: Sync> Hooks<P> for () {}

/// What one part of a step, or a hook, is told; without the payload.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) saga_id: String,
    pub(super) correlation_id: String,
    pub(super) step: String,
    pub(super) undoing: bool,
    pub(super) attempt: u32,
    pub(super) recorded: bool,
    pub(super) outputs: BTreeMap<String, Value>,
    pub(super) error: Option<String>,
}

impl Facts {
    fn output<T: DeserializeOwned>(&self, step: &str) -> Result<Option<T>, Failure> {
        let Some(output) = self.outputs.get(step) else {
            return Ok(None);
        };
        Ok(Some(T::deserialize(output)?))
    }
}

/// What a part of a step is told.
#[derive(Debug)]
pub struct Context<'a, P> {
    pub(super) facts: &'a Facts,
    pub(super) payload: &'a P,
}

impl<P> Context<'_, P> {
    /// The saga.
    #[must_use]
    pub fn saga_id(&self) -> &str {
        &self.facts.saga_id
    }

    /// What the saga is about: as given to [`start`](super::start).
    #[must_use]
    pub fn correlation_id(&self) -> &str {
        &self.facts.correlation_id
    }

    /// What the saga was started with.
    #[must_use]
    pub fn payload(&self) -> &P {
        self.payload
    }

    /// The step's name.
    #[must_use]
    pub fn step(&self) -> &str {
        &self.facts.step
    }

    /// The idempotency key of the call: `{saga}:{step}:do`, and `{saga}:{step}:undo` while undoing. The same each time.
    #[must_use]
    pub fn key(&self) -> String {
        let what = if self.facts.undoing { "undo" } else { "do" };
        format!("{}:{}:{what}", self.facts.saga_id, self.facts.step)
    }

    /// The key of the forward call, also while undoing.
    #[must_use]
    pub fn do_key(&self) -> String {
        format!("{}:{}:do", self.facts.saga_id, self.facts.step)
    }

    /// Which attempt this is, from 1; those of the undo count by themselves.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.facts.attempt
    }

    /// While undoing: whether the step's `record` was ever committed.
    #[must_use]
    pub fn recorded(&self) -> bool {
        self.facts.recorded
    }

    /// The output of a step that was recorded, this one or an earlier one; nothing if there is no such step.
    ///
    /// # Errors
    /// It is no `T`.
    pub fn output<T: DeserializeOwned>(&self, step: &str) -> Result<Option<T>, Failure> {
        self.facts.output(step)
    }
}

/// What a hook is told.
#[derive(Debug)]
pub struct Ending<'a, P> {
    pub(super) facts: &'a Facts,
    pub(super) payload: &'a P,
}

impl<P> Ending<'_, P> {
    /// The saga.
    #[must_use]
    pub fn saga_id(&self) -> &str {
        &self.facts.saga_id
    }

    /// What the saga is about: as given to [`start`](super::start).
    #[must_use]
    pub fn correlation_id(&self) -> &str {
        &self.facts.correlation_id
    }

    /// What the saga was started with.
    #[must_use]
    pub fn payload(&self) -> &P {
        self.payload
    }

    /// Why a saga was compensated; after retries, also the last failure of one that completed.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.facts.error.as_deref()
    }

    /// The output of a step that was recorded.
    ///
    /// # Errors
    /// It is no `T`.
    pub fn output<T: DeserializeOwned>(&self, step: &str) -> Result<Option<T>, Failure> {
        self.facts.output(step)
    }
}
