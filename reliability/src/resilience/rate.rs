//! A bound on how often something happens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout_at};

/// It is too early. Nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("rate limited for another {retry_after:?}")]
pub struct RateLimited {
    /// When a token may be free, as far as is known now.
    pub retry_after: Duration,
}

/// A token bucket: `burst` tokens, refilled at a steady rate; first come, first served. Clones share the bucket.
///
/// Those who wait stand in a queue; only its head looks at the clock, and nobody sleeps with the bucket locked.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use reliability::resilience::RateLimiter;
/// use std::time::Duration;
///
/// let limiter = RateLimiter::per_second(100.0, 2);
/// assert!(limiter.try_acquire().is_ok() && limiter.try_acquire().is_ok());
/// assert!(limiter.try_acquire().is_err());
/// limiter.acquire(Duration::from_secs(1)).await.unwrap();
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RateLimiter {
    bucket: Arc<Mutex<Bucket>>,
    /// One permit: the turn of the queue's head.
    turn: Arc<Semaphore>,
}

#[derive(Debug)]
struct Bucket {
    /// Between two tokens.
    interval: Duration,
    /// How far the bucket can be ahead of the clock: the time that `burst - 1` tokens take.
    tolerance: Duration,
    /// When the bucket will be full but for one interval's worth (the "theoretical arrival time" of GCRA).
    full_at: Instant,
    waiting: u32,
}

impl RateLimiter {
    /// `rate` a second on average, `burst` at once. A rate that is not above zero lets one pass a day.
    #[must_use]
    pub fn per_second(rate: f64, burst: u32) -> Self {
        const DAY: Duration = Duration::from_secs(86_400);
        let interval = Duration::try_from_secs_f64(rate.recip()).map_or(DAY, |time| time.min(DAY));
        let bucket = Bucket {
            interval,
            tolerance: interval.saturating_mul(burst.max(1) - 1),
            full_at: Instant::now(),
            waiting: 0,
        };
        Self {
            bucket: Arc::new(Mutex::new(bucket)),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// A token, if there is one and nobody waits for it.
    ///
    /// # Errors
    /// There is none.
    pub fn try_acquire(&self) -> Result<(), RateLimited> {
        let Ok(_turn) = self.turn.try_acquire() else {
            let bucket = self.lock();
            return Err(limited(bucket.due(Instant::now(), bucket.waiting)));
        };
        self.lock().take().map_err(limited)
    }

    /// A token, waiting for it up to `wait`; at once an error if that can't be enough.
    ///
    /// # Cancel safety
    /// Dropped, it gives up its place in the queue, and takes no token.
    ///
    /// # Errors
    /// No token within `wait`.
    pub async fn acquire(&self, wait: Duration) -> Result<(), RateLimited> {
        let now = Instant::now();
        let deadline = now + wait;
        let _waiter = {
            let mut bucket = self.lock();
            let due = bucket.due(now, bucket.waiting);
            if due > deadline {
                return Err(limited(due));
            }
            bucket.waiting += 1;
            Waiter(&self.bucket)
        };
        let Ok(Ok(_turn)) = timeout_at(deadline, self.turn.acquire()).await else {
            return Err(limited(self.lock().due(Instant::now(), 0)));
        };
        loop {
            let due = match self.lock().take() {
                Ok(()) => return Ok(()),
                Err(due) => due,
            };
            // A pause may have come in between.
            if due > deadline {
                return Err(limited(due));
            }
            sleep_until(due).await;
        }
    }

    /// Gives out no token before `until`, and one at a time after it: what a 429 with `Retry-After` asks for.
    /// A pause never ends an earlier one.
    pub fn pause_until(&self, until: Instant) {
        let mut bucket = self.lock();
        // As if all tokens but the one of that moment were taken: no burst follows.
        bucket.full_at = bucket.full_at.max(until + bucket.tolerance);
    }

    /// How many wait for a token.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.lock().waiting
    }

    fn lock(&self) -> MutexGuard<'_, Bucket> {
        lock(&self.bucket)
    }
}

fn lock(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    // Nothing in here panics half way.
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

fn limited(due: Instant) -> RateLimited {
    RateLimited {
        retry_after: due.saturating_duration_since(Instant::now()),
    }
}

impl Bucket {
    /// When a token is there for one who has so many before him.
    fn due(&self, now: Instant, before: u32) -> Instant {
        let tokens = self.full_at.max(now) + self.interval.saturating_mul(before);
        let due = tokens.checked_sub(self.tolerance).unwrap_or(now);
        due.max(now)
    }

    /// Takes a token, or says when there is one.
    fn take(&mut self) -> Result<(), Instant> {
        let now = Instant::now();
        let due = self.due(now, 0);
        if due > now {
            return Err(due);
        }
        self.full_at = self.full_at.max(now) + self.interval;
        Ok(())
    }
}

struct Waiter<'a>(&'a Mutex<Bucket>);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(self.0).waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::task::{JoinSet, yield_now};
    use tokio::time::advance;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Ten a second.
    fn limiter(burst: u32) -> RateLimiter {
        RateLimiter::per_second(10.0, burst)
    }

    #[tokio::test]
    async fn a_running_clock_gives_tokens_too() {
        let limiter = RateLimiter::per_second(1000.0, 2);
        limiter.try_acquire().unwrap();
        for _ in 0..3 {
            limiter.acquire(LONG).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_a_steady_rate() {
        let limiter = limiter(3);
        for _ in 0..3 {
            limiter.try_acquire().unwrap();
        }
        assert_eq!(limiter.try_acquire().unwrap_err().retry_after, ms(100));
        advance(ms(100)).await;
        limiter.try_acquire().unwrap();
        limiter.try_acquire().unwrap_err();
        // Full again, and not fuller.
        advance(LONG).await;
        assert_eq!((0..10).filter(|_| limiter.try_acquire().is_ok()).count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_are_served_in_order_and_not_overtaken() {
        let (limiter, started) = (limiter(1), Instant::now());
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for number in 0..20_u64 {
            let (limiter, served) = (limiter.clone(), served.clone());
            tasks.spawn(async move {
                limiter.acquire(LONG).await.unwrap();
                served
                    .lock()
                    .unwrap()
                    .push((number, started.elapsed().as_millis() / 100));
            });
            yield_now().await;
        }
        assert_eq!(limiter.waiting(), 19);
        // Whenever it asks, those who wait go first.
        while !tasks.is_empty() {
            assert!(limiter.waiting() == 0 || limiter.try_acquire().is_err());
            if tasks.try_join_next().is_none() {
                tokio::time::sleep(ms(10)).await;
            }
        }
        let expected: Vec<(u64, u128)> = (0..20).map(|n| (n, u128::from(n))).collect();
        assert_eq!(*served.lock().unwrap(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bound_that_cannot_be_kept_is_an_error_at_once() {
        let limiter = limiter(1);
        limiter.try_acquire().unwrap();
        let started = Instant::now();
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.acquire(LONG).await })
            })
            .collect();
        yield_now().await;
        let refused = limiter.acquire(ms(350)).await.unwrap_err();
        assert_eq!((refused.retry_after, started.elapsed()), (ms(400), ms(0)));
        // Those who go away leave their tokens to the next.
        for waiter in waiters {
            waiter.abort();
            waiter.await.unwrap_err();
        }
        assert_eq!(limiter.waiting(), 0);
        limiter.acquire(ms(350)).await.unwrap();
        assert_eq!(started.elapsed(), ms(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_holds_back_those_who_wait_already() {
        let (limiter, started) = (limiter(5), Instant::now());
        for _ in 0..5 {
            limiter.try_acquire().unwrap();
        }
        let patient = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire(LONG).await.map(|()| started.elapsed()) }
        });
        yield_now().await;
        limiter.pause_until(started + ms(5000));
        limiter.pause_until(started + ms(2000));
        assert_eq!(
            limiter.acquire(ms(4000)).await.unwrap_err().retry_after,
            ms(5100)
        );
        assert_eq!(patient.await.unwrap().unwrap(), ms(5000));
        // No burst after it.
        assert_eq!(limiter.try_acquire().unwrap_err().retry_after, ms(100));
        limiter.pause_until(started + ms(7000));
        advance(ms(1999)).await;
        limiter.try_acquire().unwrap_err();
        advance(ms(1)).await;
        limiter.try_acquire().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_turn_is_too_late_gives_up() {
        let (limiter, started) = (limiter(1), Instant::now());
        limiter.try_acquire().unwrap();
        let brief = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire(ms(500)).await }
        });
        yield_now().await;
        limiter.pause_until(started + ms(2000));
        assert!(brief.await.unwrap().is_err());
        assert!(started.elapsed() <= ms(500));
    }

    #[tokio::test(start_paused = true)]
    async fn senseless_rates_are_slow_not_endless() {
        for rate in [0.0, -1.0, f64::NAN, f64::MIN_POSITIVE] {
            let limiter = RateLimiter::per_second(rate, 0);
            limiter.try_acquire().unwrap();
            assert!(limiter.try_acquire().unwrap_err().retry_after <= Duration::from_secs(86_400));
        }
        let fast = RateLimiter::per_second(f64::INFINITY, 1);
        assert!((0..1000).all(|_| fast.try_acquire().is_ok()));
    }

    proptest! {
        /// In any stretch of time, at most `burst` and what the rate refills.
        #[test]
        fn never_more_than_the_bucket_holds(burst in 1_u32..8, waits in prop::collection::vec(0_u64..300, 1..200)) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let (limiter, started) = (limiter(burst), Instant::now());
                let mut grants: Vec<u64> = Vec::new();
                for wait in waits {
                    advance(ms(wait)).await;
                    let at = u64::try_from(started.elapsed().as_millis()).unwrap();
                    while limiter.try_acquire().is_ok() {
                        grants.push(at);
                    }
                }
                for (first, from) in grants.iter().enumerate() {
                    for (last, to) in grants.iter().enumerate().skip(first) {
                        let count = u64::try_from(last - first + 1).unwrap();
                        assert!(count <= u64::from(burst) + (to - from) / 100, "{grants:?}");
                    }
                }
            });
        }
    }
}
