//! A dry run: what would be published is logged, and counts as confirmed.

use std::pin::Pin;
use std::task::{Context, Poll};

use tracing::info;

use super::{Outcome, PublishError, Publisher, Refused, Signal};
use crate::route::Publication;

/// Publishes to the log. Payloads are not shown.
#[derive(Debug, Default)]
pub struct LogPublisher {
    published: u64,
    confirmed: u64,
}

impl Publisher for LogPublisher {
    fn publish(&mut self, publication: &Publication) -> Result<u64, Refused> {
        info!(
            exchange = %publication.exchange, routing_key = %publication.routing_key,
            message_id = %publication.message_id, bytes = publication.body.len(), "would publish"
        );
        self.published += 1;
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
        _: &mut Context<'_>,
        out: &mut Vec<Signal>,
    ) -> Poll<Result<(), PublishError>> {
        // No waker is kept: a publication is always followed by a poll of the one that published it.
        if self.confirmed == self.published {
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
