//! Steps and hooks of any payload behind one type, so that one engine runs many kinds of saga.

use std::pin::Pin;
use std::sync::Arc;

use mysql_async::Transaction;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::step::{Context, Ending, Facts, Hooks, Step};
use super::{End, Failure};

/// What a part of a step gives.
pub(super) type Part<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// The code of a definition, which reads payloads.
pub(super) trait Code: Send + Sync {
    fn bind(self: Arc<Self>, payload: &str) -> Result<Arc<dyn Bound>, serde_json::Error>;
}

/// The code of a definition together with the payload of one saga. A `None` is a step that is not there.
pub(super) trait Bound: Send + Sync {
    fn call<'a>(&'a self, step: usize, facts: &'a Facts) -> Option<Part<'a, Value>>;
    fn record<'a>(
        &'a self,
        step: usize,
        tx: &'a mut Transaction<'_>,
        facts: &'a Facts,
        output: Value,
    ) -> Option<Part<'a, Value>>;
    fn undo_call<'a>(&'a self, step: usize, facts: &'a Facts) -> Option<Part<'a, ()>>;
    fn undo_record<'a>(
        &'a self,
        step: usize,
        tx: &'a mut Transaction<'_>,
        facts: &'a Facts,
    ) -> Option<Part<'a, ()>>;
    fn end<'a>(&'a self, end: End, tx: &'a mut Transaction<'_>, facts: &'a Facts) -> Part<'a, ()>;
}

/// The same for a known payload.
pub(super) struct Typed<P> {
    pub(super) steps: Vec<Box<dyn AnyStep<P>>>,
    pub(super) hooks: Box<dyn AnyHooks<P>>,
}

struct Loaded<P> {
    code: Arc<Typed<P>>,
    payload: P,
}

impl<P: DeserializeOwned + Send + Sync + 'static> Code for Typed<P> {
    fn bind(self: Arc<Self>, payload: &str) -> Result<Arc<dyn Bound>, serde_json::Error> {
        let payload = serde_json::from_str(payload)?;
        Ok(Arc::new(Loaded {
            code: self,
            payload,
        }))
    }
}

impl<P> Loaded<P> {
    fn step(&self, step: usize) -> Option<&dyn AnyStep<P>> {
        self.code.steps.get(step).map(AsRef::as_ref)
    }

    fn context<'a>(&'a self, facts: &'a Facts) -> Context<'a, P> {
        Context {
            facts,
            payload: &self.payload,
        }
    }
}

impl<P: Send + Sync + 'static> Bound for Loaded<P> {
    fn call<'a>(&'a self, step: usize, facts: &'a Facts) -> Option<Part<'a, Value>> {
        Some(self.step(step)?.call(self.context(facts)))
    }

    fn record<'a>(
        &'a self,
        step: usize,
        tx: &'a mut Transaction<'_>,
        facts: &'a Facts,
        output: Value,
    ) -> Option<Part<'a, Value>> {
        Some(self.step(step)?.record(tx, self.context(facts), output))
    }

    fn undo_call<'a>(&'a self, step: usize, facts: &'a Facts) -> Option<Part<'a, ()>> {
        Some(self.step(step)?.undo_call(self.context(facts)))
    }

    fn undo_record<'a>(
        &'a self,
        step: usize,
        tx: &'a mut Transaction<'_>,
        facts: &'a Facts,
    ) -> Option<Part<'a, ()>> {
        Some(self.step(step)?.undo_record(tx, self.context(facts)))
    }

    fn end<'a>(&'a self, end: End, tx: &'a mut Transaction<'_>, facts: &'a Facts) -> Part<'a, ()> {
        let ending = Ending {
            facts,
            payload: &self.payload,
        };
        self.code.hooks.end(end, tx, ending)
    }
}

/// [`Step`], as an object.
pub(super) trait AnyStep<P>: Send + Sync {
    fn call<'a>(&'a self, cx: Context<'a, P>) -> Part<'a, Value>;
    fn record<'a>(
        &'a self,
        tx: &'a mut Transaction<'_>,
        cx: Context<'a, P>,
        output: Value,
    ) -> Part<'a, Value>;
    fn undo_call<'a>(&'a self, cx: Context<'a, P>) -> Part<'a, ()>;
    fn undo_record<'a>(&'a self, tx: &'a mut Transaction<'_>, cx: Context<'a, P>) -> Part<'a, ()>;
}

impl<P: Sync, S: Step<P>> AnyStep<P> for S {
    fn call<'a>(&'a self, cx: Context<'a, P>) -> Part<'a, Value> {
        Box::pin(async move { Step::call(self, &cx).await })
    }

    fn record<'a>(
        &'a self,
        tx: &'a mut Transaction<'_>,
        cx: Context<'a, P>,
        output: Value,
    ) -> Part<'a, Value> {
        Box::pin(async move { Step::record(self, tx, &cx, output).await })
    }

    fn undo_call<'a>(&'a self, cx: Context<'a, P>) -> Part<'a, ()> {
        Box::pin(async move { Step::undo_call(self, &cx).await })
    }

    fn undo_record<'a>(&'a self, tx: &'a mut Transaction<'_>, cx: Context<'a, P>) -> Part<'a, ()> {
        Box::pin(async move { Step::undo_record(self, tx, &cx).await })
    }
}

/// [`Hooks`], as an object.
pub(super) trait AnyHooks<P>: Send + Sync {
    fn end<'a>(
        &'a self,
        end: End,
        tx: &'a mut Transaction<'_>,
        ending: Ending<'a, P>,
    ) -> Part<'a, ()>;
}

impl<P: Sync, H: Hooks<P>> AnyHooks<P> for H {
    fn end<'a>(
        &'a self,
        end: End,
        tx: &'a mut Transaction<'_>,
        ending: Ending<'a, P>,
    ) -> Part<'a, ()> {
        Box::pin(async move {
            match end {
                End::Completed => self.on_completed(tx, &ending).await,
                End::Compensated => self.on_compensated(tx, &ending).await,
            }
        })
    }
}
