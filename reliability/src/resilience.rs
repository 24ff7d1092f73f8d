//! Patterns against failure; each can be used alone, none needs a database.

mod backoff;

pub use backoff::Backoff;
