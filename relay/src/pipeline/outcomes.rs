//! What becomes of an event once the broker has spoken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::missing::culprit;
use super::{Pipeline, micros_now};
use crate::config::Mark;
use crate::dead_letter::DeadLetter;
use crate::event::OutboxEvent;
use crate::ledger::FailureNote;
use crate::publish::Outcome;
use crate::window::{Failure, Slot, Verdict};

impl Pipeline {
    /// The broker has closed the channel over a publication. If it can be told which exchange it means, and that is not
    /// the one that every connection checks, then the events for it have failed, and nothing else is wrong.
    pub(super) fn refused(&mut self, code: u16, text: &str) -> bool {
        let now = Instant::now();
        let sent: Vec<(u64, Arc<str>)> = self
            .window
            .sent_events()
            .map(|(tag, event)| (tag, self.router.exchange(event)))
            .filter(|(_, exchange)| !self.router.is_checked(exchange))
            .collect();
        let mut candidates: Vec<Arc<str>> = sent.iter().map(|(_, name)| name.clone()).collect();
        candidates.sort_unstable();
        candidates.dedup();
        let Some(exchange) = culprit(text, &candidates) else {
            return false;
        };
        let why = format!("the broker refuses exchange {exchange}: {code} {text}");
        warn!(error = %why, "rows ask for an exchange that can't be published to; create it, or permit the user to write to it");
        for (tag, name) in sent {
            if name == exchange
                && let Ok(verdict) = self.window.failed(tag, now)
            {
                self.decided(verdict, why.clone());
            }
        }
        self.missing.note(exchange, &why, now);
        self.metrics.reconnects.inc();
        self.broker.channel_lost(now);
        self.window.disconnected();
        self.signals.clear();
        true
    }

    pub(super) fn landed(&mut self, tag: u64, outcome: Outcome, now: Instant) {
        let failure = match outcome {
            Outcome::Confirmed => None,
            Outcome::Returned { code, text } => {
                self.metrics.returned.inc();
                Some(Failure::Returned { code, text })
            }
            Outcome::Nacked => {
                self.metrics.nacked.inc();
                Some(Failure::Nacked)
            }
        };
        let verdict = match failure {
            None => self.window.confirmed(tag),
            Some(_) => self.window.failed(tag, now),
        };
        let why = failure
            .map(|failure| failure.to_string())
            .unwrap_or_default();
        self.broker.outcome();
        match verdict {
            Ok(verdict) => self.decided(verdict, why),
            // After a lost connection its last signals may still name tags that are no longer in flight.
            Err(unknown) => debug!(%unknown, "a late word from a lost connection"),
        }
    }

    pub(super) fn decided(&mut self, verdict: Verdict, why: String) {
        match verdict {
            Verdict::Confirmed(event) => self.confirmed(*event),
            Verdict::Retry { slot, attempts } => self.retry(slot, attempts, why),
            Verdict::DeadLetter { slot, attempts } => self.bury(slot, attempts, why),
        }
    }

    fn confirmed(&mut self, event: OutboxEvent) {
        self.metrics.confirmed.inc();
        if let Some(committed) = event.committed_at {
            let waited = micros_now().saturating_sub(committed);
            // Clocks of two machines may disagree by more than the latency.
            self.metrics
                .commit_to_confirm
                .observe(Duration::from_micros(u64::try_from(waited).unwrap_or(0)).as_secs_f64());
        }
        if self.config.mark != Mark::None {
            self.settling.mark(event.id);
        }
    }

    fn retry(&mut self, slot: Slot, attempts: u32, error: String) {
        let Some(event) = self.window.event(slot) else {
            return;
        };
        debug!(event = %event.id, attempts, %error, "an event failed and will be tried again");
        if attempts == 1 {
            warn!(event = %event.id, event_type = %event.event_type, %error, "an event failed; it is tried again with a growing delay, and its aggregate waits for it");
        }
        self.settling.fail(FailureNote {
            id: event.id.clone(),
            attempts,
            error,
        });
    }

    pub(super) fn bury(&mut self, slot: Slot, attempts: u32, error: String) {
        let Some(event) = self.window.event(slot) else {
            return;
        };
        warn!(event = %event.id, event_type = %event.event_type, attempts, %error, "an event is given up and becomes a dead letter");
        let letter = DeadLetter::of(event, attempts, error);
        self.settling.bury(slot, letter);
    }
}
