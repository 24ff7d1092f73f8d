//! Requests that take effect once, however often a client repeats them.
//!
//! The client names its request with a key. The first request with that key claims it; its answer is stored in the
//! transaction of the business change; a repetition gets the stored answer.
//!
//! ```text
//!  claim ── commits first, so that everybody sees PROCESSING, with a lease and a fence
//!    │ New                │ Replay           │ InProgress        │ Mismatch
//!    ▼                    ▼                  ▼                   ▼
//!  one transaction:     the stored         409, Retry-After    422: the key was used
//!  business change +    answer                                 for another request
//!  COMPLETED + answer
//! ```
//!
//! **The guarantee.** Of all requests with one key, at most one has its business change committed, whatever is killed, dropped or
//! slow: the change commits only together with the key's completion, and the completion only while the claim stands. A claim
//! whose worker died is taken over when its lease is over, and a worker that wakes up late is fenced off: its transaction
//! is rolled back.
//!
//! # What is stored
//! - Any answer below 500 that the work gives: successes, and refusals that only the business could decide (out of
//!   stock, declined). [`Refusals::Release`] leaves 4xx out.
//! - Not a 5xx, an error or dropped work: rolled back, and the key is free: the next request may try again.
//! - Not a request that is invalid in itself: check it before the claim.
//!
//! ```no_run
//! # async fn example(database: reliability::mysql::Database) -> Result<(), Box<dyn std::error::Error>> {
//! use mysql_async::prelude::Queryable as _;
//! use reliability::idempotency::{Answer, Claim, Fingerprint, Idempotency, Key, Settings};
//!
//! let idempotency = Idempotency::new(database, Settings::default());
//! let key = Key::new("8d2a5d8f-9a3a")?;
//! let request = Fingerprint::of("POST", "/invoices", br#"{"number":17}"#);
//! let answer = match idempotency.claim(&key, &request).await? {
//!     Claim::New(ticket) => {
//!         ticket
//!             .run(async move |tx| {
//!                 tx.query_drop("INSERT INTO invoices (number) VALUES (17)").await?;
//!                 Ok::<_, mysql_async::Error>(Answer::new(201, "created"))
//!             })
//!             .await?
//!     }
//!     Claim::Replay(stored) => stored,
//!     Claim::InProgress { .. } => Answer::new(409, "in progress"),
//!     Claim::Mismatch => Answer::new(422, "another request had this key"),
//! };
//! # let _ = answer; Ok(()) }
//! ```

mod answer;
mod canonical;
mod claim;
mod cleaner;
mod fingerprint;
#[cfg(feature = "axum")]
pub mod http;
mod key;
mod store;
mod ticket;

pub use answer::Answer;
pub use fingerprint::Fingerprint;
pub use key::{Key, KeyError};
pub use store::{Claim, Counts, Idempotency, IdempotencyError, Refusals, Settings};
pub use ticket::{Completion, Ticket, WorkError};
