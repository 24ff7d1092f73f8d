//! A bound on how much happens at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// No place was free. Nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BulkheadFull {
    /// Too many wait already.
    #[error("all {limit} places are taken, and {waiting} wait for one already")]
    Queue {
        /// How many may be busy at once.
        limit: usize,
        /// How many waited.
        waiting: usize,
    },
    /// None became free in time.
    #[error("all {limit} places stayed taken for {after:?}")]
    Waited {
        /// How many may be busy at once.
        limit: usize,
        /// How long this call waited.
        after: Duration,
    },
}

/// At most so many at once, and so many that wait for a place; first come, first served. Clones share the places.
///
/// One slow service then can't take every worker with it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use reliability::resilience::Bulkhead;
/// use std::time::Duration;
///
/// let bulkhead = Bulkhead::new(2, 10);
/// let (_one, _two) = (bulkhead.try_acquire().unwrap(), bulkhead.try_acquire().unwrap());
/// assert!(bulkhead.acquire(Duration::from_millis(5)).await.is_err());
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Bulkhead {
    places: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    limit: usize,
    queue: usize,
}

/// A place; free again when dropped.
#[derive(Debug)]
#[must_use = "dropped, the place is free again"]
pub struct BulkheadPermit {
    _permit: OwnedSemaphorePermit,
}

impl Bulkhead {
    /// `limit` places, at least one; at most `queue` wait for one.
    #[must_use]
    pub fn new(limit: usize, queue: usize) -> Self {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(limit)),
            waiting: Arc::default(),
            limit,
            queue,
        }
    }

    /// A place, if one is free and nobody waits for it.
    ///
    /// # Errors
    /// None is.
    pub fn try_acquire(&self) -> Result<BulkheadPermit, BulkheadFull> {
        match self.places.clone().try_acquire_owned() {
            Ok(permit) => Ok(BulkheadPermit { _permit: permit }),
            Err(_) => Err(BulkheadFull::Queue {
                limit: self.limit,
                waiting: self.waiting(),
            }),
        }
    }

    /// A place, waiting for it if there are not too many who do.
    ///
    /// # Cancel safety
    /// Dropped, it gives up its place in the queue.
    ///
    /// # Errors
    /// The queue is full, or no place became free within `wait`.
    pub async fn acquire(&self, wait: Duration) -> Result<BulkheadPermit, BulkheadFull> {
        let full = match self.try_acquire() {
            Ok(permit) => return Ok(permit),
            Err(full) => full,
        };
        let queue = self.queue;
        let place = self
            .waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
                (waiting < queue).then_some(waiting + 1)
            });
        if place.is_err() {
            return Err(full);
        }
        let _waiter = Waiter(&self.waiting);
        match timeout(wait, self.places.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(BulkheadPermit { _permit: permit }),
            // It is never closed.
            Ok(Err(_)) | Err(_) => Err(BulkheadFull::Waited {
                limit: self.limit,
                after: wait,
            }),
        }
    }

    /// How many wait for a place.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many places are taken.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.limit.saturating_sub(self.places.available_permits())
    }
}

struct Waiter<'a>(&'a AtomicUsize);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::task::{JoinSet, yield_now};
    use tokio::time::sleep;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn never_more_than_the_limit_and_in_order() {
        let bulkhead = Bulkhead::new(3, 100);
        let (busy, order) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for number in 0..50 {
            let (bulkhead, busy, order) = (bulkhead.clone(), busy.clone(), order.clone());
            tasks.spawn(async move {
                let _permit = bulkhead.acquire(LONG).await.unwrap();
                assert!(busy.fetch_add(1, Ordering::Relaxed) < 3);
                assert_eq!(order.fetch_add(1, Ordering::Relaxed), number);
                sleep(Duration::from_millis(10)).await;
                busy.fetch_sub(1, Ordering::Relaxed);
            });
            yield_now().await;
        }
        assert_eq!((bulkhead.busy(), bulkhead.waiting()), (3, 47));
        tasks.join_all().await;
        assert_eq!((bulkhead.busy(), bulkhead.waiting()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_and_a_long_wait_are_errors() {
        let bulkhead = Bulkhead::new(1, 1);
        let held = bulkhead.acquire(LONG).await.unwrap();
        let first = bulkhead.acquire(Duration::from_secs(2));
        let second = async {
            yield_now().await;
            bulkhead.acquire(LONG).await
        };
        let (first, second) = tokio::join!(first, second);
        let after = Duration::from_secs(2);
        assert_eq!(first.unwrap_err(), BulkheadFull::Waited { limit: 1, after });
        assert_eq!(
            second.unwrap_err(),
            BulkheadFull::Queue {
                limit: 1,
                waiting: 1
            }
        );
        // One that gave up is no longer counted.
        let dropped = tokio::time::timeout(Duration::from_secs(1), bulkhead.acquire(LONG));
        assert!(dropped.await.is_err());
        assert_eq!((bulkhead.waiting(), bulkhead.busy()), (0, 1));
        drop(held);
        assert!(bulkhead.try_acquire().is_ok());
    }
}
