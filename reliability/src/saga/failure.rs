//! How a part of a step fails.

use std::fmt;

use thiserror::Error;

use crate::commands::CommandError;
use crate::inbox::InboxError;
use crate::outbox::OutboxError;

/// Any error, as the cause of a failure.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a failure says about the work: it decides what the engine does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The other side said no, and would say so again: nothing was done, and the saga compensates at once.
    Refused,
    /// Nothing was done, for sure, and the next attempt may succeed.
    Technical,
    /// It may be done or not: the answer did not come. Retried with the same key, and undone if the saga compensates.
    Unknown,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "refused",
            Self::Technical => "not done",
            Self::Unknown => "outcome unknown",
        })
    }
}

/// Why a call, a record or a hook failed.
///
/// Errors of MySQL, of the outbox, of the inbox, of commands and of JSON become technical failures by `?`: the
/// transaction that they happened in is rolled back. In a *call*, say which kind it is.
///
/// ```
/// use reliability::saga::{Failure, FailureKind};
///
/// fn read(status: u16) -> Result<(), Failure> {
///     match status {
///         200 => Ok(()),
///         402 => Err(Failure::refused("the card was declined")),
///         503 => Err(Failure::technical("the provider did not take the request")),
///         _ => Err(Failure::unknown("the provider failed on the way")),
///     }
/// }
/// assert_eq!(read(402).unwrap_err().kind(), FailureKind::Refused);
/// ```
#[derive(Debug, Error)]
#[error("{kind}")]
pub struct Failure {
    kind: FailureKind,
    source: BoxError,
}

impl Failure {
    /// The other side said no: see [`FailureKind::Refused`].
    pub fn refused(error: impl Into<BoxError>) -> Self {
        Self::new(FailureKind::Refused, error)
    }

    /// Not done, for sure: see [`FailureKind::Technical`].
    pub fn technical(error: impl Into<BoxError>) -> Self {
        Self::new(FailureKind::Technical, error)
    }

    /// Done or not: see [`FailureKind::Unknown`].
    pub fn unknown(error: impl Into<BoxError>) -> Self {
        Self::new(FailureKind::Unknown, error)
    }

    /// A failure of that kind.
    pub fn new(kind: FailureKind, error: impl Into<BoxError>) -> Self {
        Self {
            kind,
            source: error.into(),
        }
    }

    /// What it says about the work.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }
}

macro_rules! technical {
    ($($error:ty)*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::technical(error)
            }
        })*
    };
}

technical! { mysql_async::Error serde_json::Error OutboxError InboxError CommandError }
