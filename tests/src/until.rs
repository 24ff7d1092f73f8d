//! Waiting for a condition, with a deadline.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// Deadline for what is sure to happen: long, because two cores may run everything at once.
/// It bounds a hang and says nothing about speed.
pub const PATIENCE: Duration = Duration::from_secs(180);

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// What a condition saw.
#[derive(Debug)]
pub enum Seen<T> {
    /// It holds.
    Yes(T),
    /// Not yet, and what was found instead: told when the deadline passes.
    NotYet(String),
}

impl Seen<()> {
    /// `Yes` if it holds; else what was found.
    pub fn when(holds: bool, found: impl FnOnce() -> String) -> Self {
        if holds {
            Seen::Yes(())
        } else {
            Seen::NotYet(found())
        }
    }
}

/// Asks again, at growing pauses, until the condition holds.
///
/// # Errors
/// The condition failed, or [`PATIENCE`] ran out.
pub async fn until<T>(what: &str, condition: impl AsyncFnMut() -> Result<Seen<T>>) -> Result<T> {
    within(PATIENCE, what, condition).await
}

/// [`until`] with a deadline of its own.
///
/// # Errors
/// The condition failed, or the deadline passed.
pub async fn within<T>(
    deadline: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Result<Seen<T>>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    loop {
        match condition().await? {
            Seen::Yes(value) => return Ok(value),
            Seen::NotYet(found) if Instant::now() >= end => {
                bail!(
                    "waited {} s for: {what}; found: {found}",
                    deadline.as_secs()
                );
            }
            Seen::NotYet(_) => sleep(pause).await,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_waits_and_then_gives_up_with_what_it_found() {
        let mut calls = 0;
        until("three calls", async || {
            calls += 1;
            Ok(Seen::when(calls == 3, || format!("{calls}")))
        })
        .await
        .unwrap();
        let never = async || -> Result<Seen<()>> { Ok(Seen::NotYet("nothing".to_owned())) };
        let error = within(Duration::ZERO, "rain", never)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("rain") && error.contains("nothing"),
            "{error}"
        );
    }
}
