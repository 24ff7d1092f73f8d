//! Patterns that let an application on MySQL keep its promises: a transactional outbox and inbox, migrations that many
//! processes may run, transactions that survive deadlocks, idempotent requests, circuit breakers and their companions.
//!
//! ```text
//!  producer:  one transaction: business rows + outbox row ──▶ relay ──▶ broker
//!  consumer:  broker ──▶ one transaction: inbox row + business rows ──▶ commit ──▶ ack
//! ```
//!
//! **The guarantee.** An event is published if, and only if, the transaction that wrote its outbox row was committed;
//! it may be delivered more than once, and takes effect once where the consumer claims it in its [`inbox`].
//!
//! # What is where
//!
//! - [`outbox`]: events written inside the caller's transaction.
//! - [`idempotency`]: requests that take effect once, however often a client repeats them.
//! - [`inbox`]: events processed once, inside the consumer's transaction.
//! - [`saga`]: a sequence of local transactions and remote calls, each of which can be undone.
//! - [`commands`]: work that is written with its cause and done later, in a transaction of its own.
//! - [`mysql`]: a pool, and transactions that are run again as a whole after a deadlock or lock timeout.
//! - [`migrate`]: the tables of this library and of its users.
//! - [`resilience`]: patterns against failure that need no database.
//!
//! # Glossary
//!
//! **event** something that happened to one aggregate · **idempotency key** names an event for good, whoever writes or
//! delivers it · **claim** the first to insert the inbox row owns the event · **attempt** one run of a transaction's
//! closure, from its first statement.

pub mod claim;
pub mod commands;
pub mod idempotency;
pub mod inbox;
pub mod migrate;
pub mod mysql;
pub mod outbox;
pub mod resilience;
pub mod saga;

mod chain;
mod field;
mod guard;
