//! Delays between attempts.

use std::time::Duration;

/// Exponential delays with jitter: none before the first attempt, then `base`, doubled each time up to `cap`, each
/// times a factor between 0.5 and 1.5.
///
/// The jitter keeps many clients of one failed server from coming back in step. It applies after the cap, so a
/// single delay may reach one and a half times `cap`.
///
/// ```
/// use reliability::resilience::Backoff;
/// use std::time::Duration;
///
/// let backoff = Backoff::default();
/// assert_eq!(backoff.delay(1), Duration::ZERO);
/// let third = backoff.delay(3); // 1 s, give or take half
/// assert!((Duration::from_millis(500)..=Duration::from_millis(1500)).contains(&third));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
}

impl Default for Backoff {
    /// 0, 0.5, 1, 2, 4 … 10 s.
    fn default() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(10))
    }
}

impl Backoff {
    /// Delays from `base` to `cap`.
    #[must_use]
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap }
    }

    /// The delay before that attempt (1 is the first), with random jitter.
    #[must_use]
    pub fn delay(&self, attempt: u32) -> Duration {
        self.delay_jittered(attempt, fastrand::f64())
    }

    /// The delay before that attempt, with jitter from `unit`: 0 halves it, 0.5 leaves it, 1 makes it half as long again.
    #[must_use]
    pub fn delay_jittered(&self, attempt: u32, unit: f64) -> Duration {
        let Some(doublings) = attempt.checked_sub(2) else {
            return Duration::ZERO;
        };
        let factor = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
        let delay = self.base.saturating_mul(factor).min(self.cap);
        let unit = if unit.is_nan() {
            0.5
        } else {
            unit.clamp(0.0, 1.0)
        };
        Duration::try_from_secs_f64(delay.as_secs_f64() * (0.5 + unit)).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_default_schedule() {
        let middle = |attempt| {
            Backoff::default()
                .delay_jittered(attempt, 0.5)
                .as_secs_f64()
        };
        let delays: Vec<f64> = (0..=8).map(middle).collect();
        assert_eq!(delays, [0.0, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]);
    }

    #[test]
    fn jitter_is_from_half_to_one_and_a_half() {
        let backoff = Backoff::default();
        assert_eq!(backoff.delay_jittered(4, 0.0), Duration::from_secs(1));
        assert_eq!(backoff.delay_jittered(4, 1.0), Duration::from_secs(3));
        assert_eq!(backoff.delay_jittered(4, f64::NAN), Duration::from_secs(2));
    }

    proptest! {
        #[test]
        fn any_delay_is_finite_and_bounded(
            base in 0_u64..=u64::MAX, cap in 0_u64..=u64::MAX, attempt: u32, unit: f64,
        ) {
            let backoff = Backoff::new(Duration::from_millis(base), Duration::from_millis(cap));
            let delay = backoff.delay_jittered(attempt, unit);
            // The float in between keeps 53 bits.
            let bound = Duration::from_millis(cap).as_secs_f64() * 1.5 * (1.0 + 1e-9);
            prop_assert!(delay.as_secs_f64() <= bound);
        }

        #[test]
        fn delays_never_shrink_at_equal_jitter(attempt in 0_u32..100, unit in 0.0_f64..=1.0) {
            let backoff = Backoff::default();
            prop_assert!(
                backoff.delay_jittered(attempt, unit) <= backoff.delay_jittered(attempt + 1, unit)
            );
        }
    }
}
