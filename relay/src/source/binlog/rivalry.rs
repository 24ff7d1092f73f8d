//! Two replicas with one server id: each connection of one ends the other's stream.

use std::time::Duration;

use reliability::resilience::Backoff;

/// The first wait after another replica took this relay's server id; doubled each time.
const DISPLACED_BASE: Duration = Duration::from_secs(5);
/// The longest such wait, give or take: as long as that one of two relays with one id works undisturbed.
const DISPLACED_CAP: Duration = Duration::from_secs(300);

/// How often in a row another replica with the same id has ended the stream.
#[derive(Debug, Default)]
pub(super) struct Rivalry {
    rounds: u32,
}

impl Rivalry {
    /// How long to wait after another round, in which the stream lasted that long. Each wait is longer than the one
    /// before, up to the cap.
    pub(super) fn pause(&mut self, lasted: Duration) -> Duration {
        // A rival waits up to one and a half times the cap: a longer peace means that there was none any more.
        if lasted > 2 * DISPLACED_CAP {
            self.rounds = 0;
        }
        self.rounds = self.rounds.saturating_add(1);
        let backoff = Backoff::new(DISPLACED_BASE, DISPLACED_CAP);
        // At random, lest two relays stay in step; upwards only, lest a wait be shorter than the last.
        backoff.delay_jittered(self.rounds.saturating_add(1), 0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_a_rival_grow_and_start_anew_after_a_long_peace() {
        let mut rivalry = Rivalry::default();
        let waits: Vec<Duration> = (0..6).map(|_| rivalry.pause(Duration::ZERO)).collect();
        assert!(waits.is_sorted_by(|a, b| a < b), "{waits:?}");
        for _ in 0..100 {
            let wait = rivalry.pause(2 * DISPLACED_CAP);
            assert!(
                (DISPLACED_CAP..=DISPLACED_CAP * 3 / 2).contains(&wait),
                "{wait:?}"
            );
        }
        assert!(rivalry.pause(3 * DISPLACED_CAP) < 2 * DISPLACED_BASE);
    }
}
