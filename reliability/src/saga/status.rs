//! The words of the tables.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// As the tables have it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Reads the word of a table.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}

words! {
    /// Where a saga is.
    SagaStatus {
        /// Going forward.
        Running = "RUNNING",
        /// All steps are done.
        Completed = "COMPLETED",
        /// Ended by somebody else: no engine sets it, and none touches such a saga.
        Failed = "FAILED",
        /// Undoing what was done.
        Compensating = "COMPENSATING",
        /// All that was done is undone.
        Compensated = "COMPENSATED",
        /// An undo failed as often as it may; it is tried again at growing intervals. A person should look.
        CompensationFailed = "COMPENSATION_FAILED",
    }
}

words! {
    /// Where a step is.
    StepStatus {
        /// Not done, for sure: to be tried, or tried again.
        Pending = "PENDING",
        /// An attempt has begun: it may be done.
        Running = "RUNNING",
        /// Done and recorded.
        Completed = "COMPLETED",
        /// Not done, for sure, and not tried again.
        Failed = "FAILED",
        /// An undo has begun.
        Compensating = "COMPENSATING",
        /// Undone.
        Compensated = "COMPENSATED",
        /// Its undo failed as often as it may.
        CompensationFailed = "COMPENSATION_FAILED",
    }
}
