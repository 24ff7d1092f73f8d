//! Attempts, and when another one makes sense.

use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, sleep};

use super::Backoff;

/// What an error says about the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Surely not done, and the next attempt may succeed: a refused connection, a 429, a 503 before any effect.
    Retryable {
        /// How long the other side asks to wait (`Retry-After`); the delay is never shorter.
        after: Option<Duration>,
    },
    /// Another attempt would end the same way: a refusal, a wrong request.
    Terminal,
    /// Done or not: a timeout after sending, a connection that was lost, most of the 5xx.
    Unknown {
        /// How long the other side asks to wait; the delay is never shorter.
        after: Option<Duration>,
    },
}

/// How often and how long an operation is tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Most attempts. At least 1.
    pub attempts: u32,
    /// The delay before each further attempt.
    pub backoff: Backoff,
    /// From the first attempt on: no attempt begins later, and no delay is begun that would end later. An attempt that is
    /// under way is not cut off, because that would leave its outcome unknown: bound it by [`Attempt::remaining`].
    pub deadline: Option<Duration>,
    /// Whether an attempt whose outcome is unknown may be repeated: only where the other side knows it by its idempotency
    /// key.
    pub repeat_unknown: bool,
}

impl Default for RetryPolicy {
    /// 5 attempts, 0.5, 1, 2 and 4 s apart; no deadline; what is unknown is not repeated.
    fn default() -> Self {
        Self {
            attempts: 5,
            backoff: Backoff::default(),
            deadline: None,
            repeat_unknown: false,
        }
    }
}

/// One run of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// 1 is the first.
    pub number: u32,
    /// What is left until the deadline, if there is one.
    pub remaining: Option<Duration>,
}

/// Why there was no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GaveUp {
    /// It would end the same way.
    Terminal,
    /// The outcome is unknown, and the operation must not be repeated.
    Unknown,
    /// There were enough.
    Attempts,
    /// The next would have begun after the deadline.
    Deadline,
}

/// An operation that did not succeed.
#[derive(Debug, Error)]
#[error("gave up after {attempts} attempts ({})", match .reason {
    GaveUp::Terminal => "another would fail too",
    GaveUp::Unknown => "the outcome is unknown, and it must not be repeated",
    GaveUp::Attempts => "as many as are allowed",
    GaveUp::Deadline => "no time is left",
})]
pub struct RetryError<E> {
    /// How often it was tried.
    pub attempts: u32,
    /// Why not more often.
    pub reason: GaveUp,
    /// Whether any attempt may have taken effect. After [`GaveUp::Terminal`] a server that answers by idempotency key has
    /// settled that with its last answer.
    pub outcome_unknown: bool,
    /// How the last attempt ended.
    #[source]
    pub last: E,
}

/// Runs `operation` until it succeeds, `classify` calls its error terminal, or the policy ends it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use reliability::resilience::{Backoff, RetryPolicy, Verdict, retry};
/// use std::time::Duration;
///
/// let policy = RetryPolicy {
///     backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(5)),
///     ..RetryPolicy::default()
/// };
/// let fetched = retry(
///     &policy,
///     |_: &u16| Verdict::Retryable { after: None },
///     |attempt| async move { if attempt.number < 3 { Err(503) } else { Ok("value") } },
/// )
/// .await;
/// assert_eq!(fetched.unwrap(), "value");
/// # }
/// ```
///
/// # Cancel safety
/// Dropped, it drops the attempt under way, whose outcome is then unknown.
///
/// # Errors
/// See [`RetryError`].
pub async fn retry<T, E, F, R>(
    policy: &RetryPolicy,
    classify: impl Fn(&E) -> Verdict,
    mut operation: F,
) -> Result<T, RetryError<E>>
where
    F: FnMut(Attempt) -> R,
    R: Future<Output = Result<T, E>>,
{
    let deadline = policy
        .deadline
        .and_then(|deadline| Instant::now().checked_add(deadline));
    let remaining = || deadline.map(|at| at.saturating_duration_since(Instant::now()));
    let mut number = 1;
    let mut outcome_unknown = false;
    loop {
        let attempt = Attempt {
            number,
            remaining: remaining(),
        };
        let last = match operation(attempt).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let verdict = classify(&last);
        outcome_unknown |= matches!(verdict, Verdict::Unknown { .. });
        let delay = match verdict {
            Verdict::Terminal => Err(GaveUp::Terminal),
            Verdict::Unknown { .. } if !policy.repeat_unknown => Err(GaveUp::Unknown),
            Verdict::Retryable { .. } | Verdict::Unknown { .. } if number >= policy.attempts => {
                Err(GaveUp::Attempts)
            }
            Verdict::Retryable { after } | Verdict::Unknown { after } => {
                let delay = policy.backoff.delay(number + 1);
                let delay = delay.max(after.unwrap_or_default());
                match remaining() {
                    Some(left) if delay >= left => Err(GaveUp::Deadline),
                    Some(_) | None => Ok(delay),
                }
            }
        };
        match delay {
            Ok(delay) => sleep(delay).await,
            Err(reason) => {
                return Err(RetryError {
                    attempts: number,
                    reason,
                    outcome_unknown,
                    last,
                });
            }
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const AGAIN: Verdict = Verdict::Retryable { after: None };
    const UNKNOWN: Verdict = Verdict::Unknown { after: None };

    /// Runs an operation whose attempts end so, and then succeed; when each began.
    async fn run(
        policy: &RetryPolicy,
        script: &[Verdict],
    ) -> (Result<u32, RetryError<Verdict>>, Vec<Duration>) {
        let (started, mut begun) = (Instant::now(), Vec::new());
        let result = retry(
            policy,
            |verdict| *verdict,
            |attempt| {
                begun.push(started.elapsed());
                let index = usize::try_from(attempt.number - 1).unwrap();
                let outcome = script.get(index).copied().map_or(Ok(attempt.number), Err);
                async move { outcome }
            },
        )
        .await;
        (result, begun)
    }

    #[tokio::test(start_paused = true)]
    async fn each_class_has_its_way() {
        let policy = RetryPolicy::default();
        assert_eq!(run(&policy, &[AGAIN, AGAIN]).await.0.unwrap(), 3);
        let repeating = RetryPolicy {
            repeat_unknown: true,
            ..policy.clone()
        };
        assert_eq!(run(&repeating, &[UNKNOWN, AGAIN]).await.0.unwrap(), 3);
        for (policy, script, attempts, reason, unknown) in [
            (&policy, vec![Verdict::Terminal], 1, GaveUp::Terminal, false),
            (&policy, vec![AGAIN, UNKNOWN], 2, GaveUp::Unknown, true),
            (&policy, vec![AGAIN; 9], 5, GaveUp::Attempts, false),
            (
                &repeating,
                vec![UNKNOWN, AGAIN, AGAIN, AGAIN, AGAIN],
                5,
                GaveUp::Attempts,
                true,
            ),
            (
                &repeating,
                vec![UNKNOWN, Verdict::Terminal],
                2,
                GaveUp::Terminal,
                true,
            ),
        ] {
            let error = run(policy, &script).await.0.unwrap_err();
            assert_eq!(
                (error.attempts, error.reason, error.outcome_unknown),
                (attempts, reason, unknown),
                "{script:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_other_side_may_ask_for_more_time() {
        let slow = Verdict::Retryable { after: Some(s(60)) };
        let (result, begun) = run(&RetryPolicy::default(), &[slow]).await;
        assert_eq!((result.unwrap(), begun), (2, vec![s(0), s(60)]));
        // No delay is begun that the deadline would cut.
        let hasty = RetryPolicy {
            deadline: Some(s(60)),
            ..RetryPolicy::default()
        };
        let (result, begun) = run(&hasty, &[slow]).await;
        assert_eq!(
            (result.unwrap_err().reason, begun),
            (GaveUp::Deadline, vec![s(0)])
        );
    }

    proptest! {
        /// No attempt after the deadline, none too many, and each delay within the backoff's bounds.
        #[test]
        fn bounds_hold(attempts in 1_u32..8, deadline in 0_u64..40, fails in 0_usize..10) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let policy = RetryPolicy { attempts, deadline: Some(s(deadline)), ..RetryPolicy::default() };
                let (result, begun) = run(&policy, &vec![AGAIN; fails]).await;
                assert!(begun.len() <= usize::try_from(attempts).unwrap());
                assert!(begun.iter().skip(1).all(|at| *at < s(deadline)));
                for (number, pair) in (2_u32..).zip(begun.windows(2)) {
                    let delay = pair[1] - pair[0];
                    assert!(delay >= policy.backoff.delay_jittered(number, 0.0));
                    // The clock ticks in milliseconds.
                    assert!(delay <= policy.backoff.delay_jittered(number, 1.0) + Duration::from_millis(1));
                }
                assert_eq!(result.is_ok(), begun.len() == fails + 1);
            });
        }
    }
}
