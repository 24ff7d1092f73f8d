//! The consumer of order events.
//!
//! One loop: take what the broker has delivered, up to a hundred messages; record them in one transaction; commit; then
//! acknowledge all of them at once, on the channel that delivered them. A crash between commit and acknowledgement brings
//! them back, and the inbox tells them for duplicates.

mod batch;
mod message;
mod session;

use std::sync::Arc;

use anyhow::{Result, anyhow};
use reliability::mysql::Database;
use reliability::resilience::Backoff;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::cli::BrokerSettings;
use crate::fulfilment::Fulfilment;
use crate::http::Readiness;
use crate::metrics::Metrics;
use crate::telemetry::chain;
use session::Session;

pub(crate) use batch::Recorder;

/// A worker, ready to run.
pub(crate) struct Worker {
    broker: BrokerSettings,
    recorder: Recorder,
    readiness: Arc<Readiness>,
}

impl Worker {
    /// A worker on one queue.
    pub(crate) fn new(
        broker: BrokerSettings,
        database: Database,
        fulfilment: Fulfilment,
        metrics: Arc<Metrics>,
        readiness: Arc<Readiness>,
    ) -> Self {
        Self {
            broker,
            recorder: Recorder::new(database, fulfilment, metrics),
            readiness,
        }
    }

    /// Runs until `stop`, through outages of either server.
    ///
    /// What the broker refuses at the very start is an error; later, after it has worked once, it is waited for.
    pub(crate) async fn run(&self, stop: &CancellationToken) -> Result<()> {
        let backoff = Backoff::default();
        let mut attempt = 1;
        let mut has_worked = false;
        loop {
            let opened = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                opened = Session::open(&self.broker) => opened,
            };
            let failure = match opened {
                Ok(session) => {
                    (attempt, has_worked) = (1, true);
                    info!(broker = %self.broker.url, queue = self.broker.queue, "consuming");
                    self.readiness.set_consuming(true);
                    let ended = session.consume(&self.recorder, stop).await;
                    self.readiness.set_consuming(false);
                    match ended {
                        Ok(()) => return Ok(()),
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            let hint = failure.hint();
            let failure = chain(&failure);
            match hint {
                Some(hint) if !has_worked => return Err(anyhow!("{failure}; {hint}")),
                Some(hint) => error!(error = failure, hint, "broker refuses; trying again"),
                None => warn!(error = failure, "broker lost; trying again"),
            }
            attempt += 1;
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = sleep(backoff.delay(attempt)) => {}
            }
        }
    }
}
