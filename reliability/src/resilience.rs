//! Patterns against failure; each can be used alone, none needs a database.
//!
//! Time is tokio's, so that tests can pause it. For a call to another service they go round each other in this order:
//!
//! ```text
//! retry( circuit breaker( bulkhead( rate limiter( timeout( the call )))))
//! ```
//!
//! The timeout is inside the breaker: a call that is dropped from outside says nothing about the service, so a service that
//! hangs opens the circuit only where the hanging call ends with an error.

mod backoff;
mod bulkhead;
mod circuit;
mod rate;
mod retry;
mod timeout;

pub use backoff::Backoff;
pub use bulkhead::{Bulkhead, BulkheadFull, BulkheadPermit};
pub use circuit::{
    CallError, CircuitBreaker, CircuitOpen, CircuitPass, CircuitSettings, CircuitState,
};
pub use rate::{RateLimited, RateLimiter};
pub use retry::{Attempt, GaveUp, RetryError, RetryPolicy, Verdict, retry};
pub use timeout::{TimeoutError, Timeouts, timeout};
