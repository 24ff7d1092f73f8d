//! A bound on a call that says whether the request may have been sent.

use std::time::Duration;

use thiserror::Error;

/// How long the two parts of a call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the request can be sent: a place, a token, a connection.
    pub ready: Duration,
    /// From the first byte sent to the whole answer.
    pub answer: Duration,
}

impl Default for Timeouts {
    /// 2 s and 5 s.
    fn default() -> Self {
        Self {
            ready: Duration::from_secs(2),
            answer: Duration::from_secs(5),
        }
    }
}

/// Why a call has no answer.
#[derive(Debug, Error)]
pub enum TimeoutError<P, E> {
    /// It was not ready to be sent in time: surely nothing happened.
    #[error("nothing was sent within {after:?}")]
    NotSent {
        /// The bound.
        after: Duration,
    },
    /// No answer in time: what was asked for may have happened or not.
    #[error("sent, and not answered within {after:?}")]
    NotAnswered {
        /// The bound.
        after: Duration,
    },
    /// It could not be sent: surely nothing happened.
    #[error(transparent)]
    Ready(P),
    /// It failed on its way or at the other side.
    #[error(transparent)]
    Answer(E),
}

impl<P, E> TimeoutError<P, E> {
    /// Whether the request, or a part of it, may have reached the other side.
    #[must_use]
    pub fn may_have_been_sent(&self) -> bool {
        match self {
            TimeoutError::NotSent { .. } | TimeoutError::Ready(_) => false,
            TimeoutError::NotAnswered { .. } | TimeoutError::Answer(_) => true,
        }
    }
}

/// Gets `ready`, then hands what it gave to `send`, each within its bound.
///
/// What is in `ready` must send nothing that has an effect; whatever may is in `send`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use reliability::resilience::{TimeoutError, Timeouts, timeout};
/// use std::convert::Infallible;
/// use std::time::Duration;
///
/// let bounds = Timeouts { answer: Duration::from_millis(1), ..Timeouts::default() };
/// let connect = async { Ok::<_, Infallible>("connection") };
/// let hangs = |_connection| std::future::pending::<Result<(), Infallible>>();
/// let error = timeout(bounds, connect, hangs).await.unwrap_err();
/// assert!(matches!(error, TimeoutError::NotAnswered { .. }) && error.may_have_been_sent());
/// # }
/// ```
///
/// # Errors
/// See [`TimeoutError`].
pub async fn timeout<C, T, P, E, F, R>(
    bounds: Timeouts,
    ready: F,
    send: impl FnOnce(C) -> R,
) -> Result<T, TimeoutError<P, E>>
where
    F: Future<Output = Result<C, P>>,
    R: Future<Output = Result<T, E>>,
{
    let prepared = tokio::time::timeout(bounds.ready, ready)
        .await
        .map_err(|_| TimeoutError::NotSent {
            after: bounds.ready,
        })?
        .map_err(TimeoutError::Ready)?;
    tokio::time::timeout(bounds.answer, send(prepared))
        .await
        .map_err(|_| TimeoutError::NotAnswered {
            after: bounds.answer,
        })?
        .map_err(TimeoutError::Answer)
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_part_has_a_bound_of_its_own() {
        for (ready, answer, after, sent) in [
            (1, 1, 2, None),
            (3, 1, 2, Some(false)),
            (1, 6, 6, Some(true)),
        ] {
            let started = Instant::now();
            let outcome = timeout(
                Timeouts::default(),
                async {
                    sleep(Duration::from_secs(ready)).await;
                    Ok::<_, &str>(7)
                },
                |seven| async move {
                    sleep(Duration::from_secs(answer)).await;
                    Ok::<_, &str>(seven)
                },
            )
            .await;
            assert_eq!(outcome.err().map(|error| error.may_have_been_sent()), sent);
            assert_eq!(started.elapsed(), Duration::from_secs(after));
        }
    }

    #[tokio::test]
    async fn an_error_says_on_which_side_of_the_sending_it_was() {
        let bounds = Timeouts::default();
        let unready = timeout(bounds, async { Err::<(), _>("full") }, |()| async {
            Ok::<_, &str>(())
        });
        assert!(!unready.await.unwrap_err().may_have_been_sent());
        let lost = timeout(bounds, async { Ok::<_, &str>(()) }, |()| async {
            Err::<(), _>("lost")
        });
        assert!(lost.await.unwrap_err().may_have_been_sent());
    }
}
