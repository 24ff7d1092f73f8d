//! A kind of saga: its steps in order, and how each is retried.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use thiserror::Error;

use super::erased::{AnyHooks, AnyStep, Code, Typed};
use super::machine::Shape;
use super::step::{Hooks, Step};
use super::{Kind, SAGA_TYPE_MAX, STEP_NAME_MAX};
use crate::field::{self, FieldError};
use crate::resilience::Backoff;

/// How a step is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How often the step is tried before the saga compensates; one cut short by a crash counts. At least 1.
    /// After the pivot there is no such bound.
    pub attempts: u32,
    /// How often its undo is tried before the saga is COMPENSATION_FAILED. At least 1.
    pub undo_attempts: u32,
    /// Longest call, either way: what takes longer has an unknown outcome.
    pub timeout: Duration,
    /// The delay before each further attempt.
    pub backoff: Backoff,
}

impl Default for Policy {
    /// 3 attempts, and 3 to undo, of 10 s at most; 0.5, 1, 2 … 10 s apart.
    fn default() -> Self {
        Self {
            attempts: 3,
            undo_attempts: 3,
            timeout: Duration::from_secs(10),
            backoff: Backoff::default(),
        }
    }
}

/// What is wrong with a definition.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DefinitionError {
    /// A name does not fit its column.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// Nothing to do.
    #[error("saga {saga_type} has no steps")]
    Empty {
        /// The saga's type.
        saga_type: String,
    },
    /// Steps are told apart by their names.
    #[error("saga {saga_type} has two steps called {step}")]
    TwoSteps {
        /// The saga's type.
        saga_type: String,
        /// The name.
        step: String,
    },
    /// An engine got two definitions of one type and version.
    #[error("saga {saga_type} version {version} is defined twice")]
    Twice {
        /// The saga's type.
        saga_type: String,
        /// The version.
        version: u32,
    },
}

/// A kind of saga in code. Change its steps, their order or their names, and its version has to rise: sagas that were
/// started with the old version need the old definition until they have ended, so give an engine both.
///
/// ```
/// use reliability::saga::{Definition, Kind, Policy, Step};
///
/// const TRIP: Kind<u32> = Kind::new("trip", 1);
/// struct Flight;
/// struct Hotel;
/// impl Step<u32> for Flight {}
/// impl Step<u32> for Hotel {}
///
/// let trip = Definition::of(TRIP)
///     .step("flight", Policy::default(), Flight)
///     .step("hotel", Policy { attempts: 5, ..Policy::default() }, Hotel)
///     .build()?;
/// # let _ = trip;
/// # Ok::<(), reliability::saga::DefinitionError>(())
/// ```
#[derive(Clone)]
pub struct Definition {
    pub(super) saga_type: &'static str,
    pub(super) version: u32,
    pub(super) names: Arc<[String]>,
    pub(super) policies: Arc<[Policy]>,
    pub(super) shape: Arc<[Shape]>,
    pub(super) code: Arc<dyn Code>,
}

impl Definition {
    /// Starts the definition of a kind of saga.
    #[must_use]
    pub fn of<P: DeserializeOwned + Send + Sync + 'static>(kind: Kind<P>) -> Builder<P> {
        Builder {
            kind,
            names: Vec::new(),
            policies: Vec::new(),
            shape: Vec::new(),
            steps: Vec::new(),
            hooks: Box::new(()),
        }
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Definition")
            .field("saga_type", &self.saga_type)
            .field("version", &self.version)
            .field("steps", &self.names)
            .finish_non_exhaustive()
    }
}

/// A [`Definition`] in the making.
pub struct Builder<P> {
    kind: Kind<P>,
    names: Vec<String>,
    policies: Vec<Policy>,
    shape: Vec<Shape>,
    steps: Vec<Box<dyn AnyStep<P>>>,
    hooks: Box<dyn AnyHooks<P>>,
}

impl<P: DeserializeOwned + Send + Sync + 'static> Builder<P> {
    /// Adds a step. Its name is a part of its idempotency keys: 1 to 128 characters.
    #[must_use]
    pub fn step<S: Step<P>>(self, name: &str, policy: Policy, step: S) -> Self {
        self.add(name, policy, step, false)
    }

    /// Adds the step after which there is no way back: once it is COMPLETED nothing is compensated, and the steps after it
    /// are retried without end, whatever they fail with.
    #[must_use]
    pub fn pivot<S: Step<P>>(self, name: &str, policy: Policy, step: S) -> Self {
        self.add(name, policy, step, true)
    }

    fn add<S: Step<P>>(mut self, name: &str, policy: Policy, step: S, pivot: bool) -> Self {
        self.names.push(name.to_owned());
        self.shape.push(Shape {
            attempts: policy.attempts.max(1),
            undo_attempts: policy.undo_attempts.max(1),
            pivot,
            remote: S::REMOTE,
        });
        self.policies.push(policy);
        self.steps.push(Box::new(step));
        self
    }

    /// Sets what happens at the end.
    #[must_use]
    pub fn hooks<H: Hooks<P>>(mut self, hooks: H) -> Self {
        self.hooks = Box::new(hooks);
        self
    }

    /// Checks the definition.
    ///
    /// # Errors
    /// It has no steps, or two of one name; or a name does not fit its column.
    pub fn build(self) -> Result<Definition, DefinitionError> {
        let (saga_type, version) = (self.kind.saga_type(), self.kind.version());
        field::check("saga_type", saga_type, SAGA_TYPE_MAX)?;
        let named = || saga_type.to_owned();
        if self.names.is_empty() {
            return Err(DefinitionError::Empty { saga_type: named() });
        }
        let mut seen = HashSet::new();
        for name in &self.names {
            field::check("step_name", name, STEP_NAME_MAX)?;
            if !seen.insert(name) {
                return Err(DefinitionError::TwoSteps {
                    saga_type: named(),
                    step: name.clone(),
                });
            }
        }
        Ok(Definition {
            saga_type,
            version,
            names: self.names.into(),
            policies: self.policies.into(),
            shape: self.shape.into(),
            code: Arc::new(Typed {
                steps: self.steps,
                hooks: self.hooks,
            }),
        })
    }
}
