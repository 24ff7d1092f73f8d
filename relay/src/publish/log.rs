//! A dry run: what would be published is logged, and counts as confirmed.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tracing::info;

use super::{Outcome, PublishError, Publisher, Refused, Signal};
use crate::route::Publication;

/// Publishes to the log. Payloads are not shown.
#[derive(Debug, Default)]
pub struct LogPublisher {
    published: u64,
    confirmed: u64,
    waiting: Option<Waker>,
}

impl Publisher for LogPublisher {
    fn publish(&mut self, publication: &Publication) -> Result<u64, Refused> {
        info!(
            exchange = %publication.exchange, routing_key = %publication.routing_key,
            message_id = %publication.message_id, bytes = publication.body.len(), "would publish"
        );
        self.published += 1;
        if let Some(waiting) = self.waiting.take() {
            waiting.wake();
        }
        Ok(self.published)
    }

    fn buffered(&self) -> usize {
        0
    }

    fn in_flight(&self) -> usize {
        usize::try_from(self.published - self.confirmed).unwrap_or(usize::MAX)
    }

    fn poll_signals(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<Signal>,
    ) -> Poll<Result<(), PublishError>> {
        if self.confirmed == self.published {
            self.waiting = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let tags = self.confirmed + 1..=self.published;
        out.extend(tags.map(|tag| Signal::Settled {
            tag,
            outcome: Outcome::Confirmed,
        }));
        self.confirmed = self.published;
        Poll::Ready(Ok(()))
    }

    fn close(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn whoever_waits_is_woken_and_told_once() {
        let publication = Publication {
            exchange: "e".into(),
            routing_key: String::new(),
            message_id: String::new(),
            kind: String::new(),
            content_type: "application/json",
            app_id: "a".into(),
            timestamp: None,
            headers: Vec::new(),
            body: Vec::new(),
        };
        let (mut publisher, mut out) = (LogPublisher::default(), Vec::new());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(publisher.poll_signals(&mut cx, &mut out).is_pending());
        assert_eq!(publisher.publish(&publication), Ok(1));
        assert_eq!(publisher.publish(&publication), Ok(2));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(publisher.in_flight(), 2);
        assert!(publisher.poll_signals(&mut cx, &mut out).is_ready());
        assert_eq!((out.len(), publisher.in_flight()), (2, 0));
        assert!(publisher.poll_signals(&mut cx, &mut out).is_pending());
    }
}
