//! The polling source: claims rows and hands them to the pipeline, for as long as it is told to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reliability::resilience::Backoff;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::binlog::SourceError;
use super::claim::{Claimed, Claimer, Pick, RENEWALS_A_LEASE, keys_of};
use super::{Batch, Item};
use crate::config::Config;
use crate::event::OutboxEvent;
use crate::health::{Health, Part};
use crate::ledger::Claim;
use crate::metrics::Metrics;
use crate::mysql::conflicts;

/// How often leases of others are looked for that are over.
const EXPIRY_CHECK: Duration = Duration::from_secs(1);
/// Claims rows for as long as it is told to.
pub struct Poller {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    stop: CancellationToken,
    batches: mpsc::Sender<Batch>,
    claim: Claim,
}

impl Poller {
    /// A poller that leases rows under that claim and hands them there. The channel should hold one batch: a batch that
    /// waits in it is renewed here.
    pub fn new(
        config: Arc<Config>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
        stop: CancellationToken,
        batches: mpsc::Sender<Batch>,
        claim: Claim,
    ) -> Self {
        Self {
            config,
            metrics,
            health,
            stop,
            batches,
            claim,
        }
    }

    /// Runs until told to stop.
    ///
    /// # Errors
    /// What a connection that has claimed nothing yet can't mend; and any failure after a claim, since rows may have been
    /// leased that nobody heard of. A new leader of this name frees them.
    pub async fn run(self) -> Result<(), SourceError> {
        let backoff = Backoff::default();
        let mut attempt = 1;
        let mut claimer = loop {
            let opened = tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                opened = self.open() => opened,
            };
            match opened {
                Ok(claimer) => break claimer,
                Err(failure) if failure.remedy() == crate::mysql::Remedy::Stop => {
                    return Err(failure);
                }
                Err(failure) => {
                    attempt += 1;
                    let why = format!("{}; {}", crate::error::chain(&failure), failure.hint());
                    warn!(error = %why, attempt, "polling can't begin; connecting again");
                    self.health.bad(Part::Source, why);
                    self.metrics.reconnects.inc();
                    tokio::select! {
                        () = self.stop.cancelled() => return Ok(()),
                        () = tokio::time::sleep(backoff.delay(attempt)) => {}
                    }
                }
            }
        };
        self.health.good(Part::Source);
        self.metrics.source_up.set(1);
        let outcome = self.poll(&mut claimer).await;
        self.metrics.source_up.set(0);
        outcome
    }

    async fn open(&self) -> Result<Claimer, SourceError> {
        let mut claimer = Claimer::open(&self.config, self.claim.clone()).await?;
        let freed = conflicts!(self.metrics, claimer.free(&self.config.name))?;
        info!(
            form = claimer.form_name(),
            freed, "claiming rows by polling"
        );
        Ok(claimer)
    }

    async fn poll(&self, claimer: &mut Claimer) -> Result<(), SourceError> {
        let mut expired_at = Instant::now();
        loop {
            let now = Instant::now();
            let mut claimed = Claimed::default();
            if now >= expired_at {
                expired_at = now + EXPIRY_CHECK;
                claimed = conflicts!(self.metrics, claimer.claim(Pick::Expired))?;
            }
            if claimed.events.is_empty() {
                claimed = conflicts!(self.metrics, claimer.claim(Pick::Free))?;
            } else {
                warn!(
                    rows = claimed.events.len(),
                    "took over rows whose lease was over: another worker was too slow, or died"
                );
            }
            let Claimed { events, is_full } = claimed;
            if !events.is_empty() {
                self.metrics.claimed.inc_by(events.len() as u64);
                if !self.hand_over(claimer, events).await? {
                    return Ok(());
                }
            }
            if self.stop.is_cancelled() {
                return Ok(());
            }
            if !is_full {
                tokio::select! {
                    () = self.stop.cancelled() => return Ok(()),
                    () = tokio::time::sleep(self.config.poll_interval) => {}
                }
            }
        }
    }

    /// Hands rows over and waits until they are taken in, renewing their leases meanwhile. Whether there is anybody who
    /// takes more.
    async fn hand_over(
        &self,
        claimer: &mut Claimer,
        events: Vec<OutboxEvent>,
    ) -> Result<bool, SourceError> {
        let keys = keys_of(&events);
        let batch = events.into_iter().map(Item::Event).collect();
        if self.batches.send(batch).await.is_err() {
            return Ok(false);
        }
        loop {
            tokio::select! {
                taken = self.batches.reserve() => return Ok(taken.is_ok()),
                () = tokio::time::sleep(self.claim.lease / RENEWALS_A_LEASE) => {
                    conflicts!(
                        self.metrics,
                        claimer.renew(&keys)
                    )?;
                }
            }
        }
    }
}
