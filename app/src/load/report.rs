//! What the clients met.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Orders of one client, or of all. Four bytes an order: 40 MB for ten million.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Microseconds.
    latencies: Vec<u32>,
    errors: BTreeMap<String, u64>,
}

/// What is printed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Orders asked for.
    pub(super) orders: u64,
    /// Answered with 201.
    pub(super) placed: u64,
    /// Answered otherwise, or not.
    pub(super) failed: u64,
    seconds: f64,
    /// Placed orders a second.
    rate: f64,
    latency_ms: Latency,
    errors: BTreeMap<String, u64>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Tally {
    /// An order was placed.
    pub(super) fn placed(&mut self, latency: Duration) {
        self.latencies
            .push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
    }

    /// An order was not.
    pub(super) fn failed(&mut self, kind: String) {
        *self.errors.entry(kind).or_default() += 1;
    }

    /// Adds another client's.
    pub(super) fn add(&mut self, other: Tally) {
        self.latencies.extend(other.latencies);
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
    }

    /// The sum of it.
    pub(super) fn report(mut self, orders: u64, took: Duration) -> Report {
        self.latencies.sort_unstable();
        let placed = u64::try_from(self.latencies.len()).unwrap_or(u64::MAX);
        Report {
            orders,
            placed,
            failed: self.errors.values().sum(),
            seconds: took.as_secs_f64(),
            rate: rate(placed, took),
            latency_ms: Latency::of(&self.latencies),
            errors: self.errors,
        }
    }
}

impl Latency {
    fn of(sorted: &[u32]) -> Self {
        // Nearest rank: the smallest that at least so many thousandths don't exceed.
        let at = |thousandths: usize| {
            let rank = (sorted.len() * thousandths).div_ceil(1000).max(1);
            sorted
                .get(rank - 1)
                .map_or(0.0, |micros| f64::from(*micros) / 1000.0)
        };
        Self {
            p50: at(500),
            p90: at(900),
            p99: at(990),
            max: at(1000),
        }
    }
}

/// Orders a second.
pub(super) fn rate(orders: u64, took: Duration) -> f64 {
    // No run has as many orders as a float can't count.
    orders as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            orders,
            placed,
            failed,
            seconds,
            rate,
            latency_ms: l,
            errors,
        } = self;
        writeln!(
            f,
            "placed   {placed} of {orders} orders in {seconds:.2} s: {rate:.0}/s"
        )?;
        writeln!(
            f,
            "latency  p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
            l.p50, l.p90, l.p99, l.max
        )?;
        writeln!(f, "failed   {failed}")?;
        for (kind, count) in errors {
            writeln!(f, "         {count} × {kind}")?;
        }
        match orders - placed - failed {
            0 => Ok(()),
            left => writeln!(f, "stopped  {left} orders were not tried"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let thousand: Vec<u32> = (1..=1000).map(|ms| ms * 1000).collect();
        let expected = Latency {
            p50: 500.0,
            p90: 900.0,
            p99: 990.0,
            max: 1000.0,
        };
        assert_eq!(Latency::of(&thousand), expected);
        assert_eq!(
            Latency::of(&[2000]),
            Latency {
                p50: 2.0,
                p90: 2.0,
                p99: 2.0,
                max: 2.0
            }
        );
        assert_eq!(Latency::of(&[]), Latency::default());
    }

    #[test]
    fn clients_add_up() {
        let (mut one, mut two) = (Tally::default(), Tally::default());
        one.placed(Duration::from_millis(1));
        one.failed("timeout".to_owned());
        two.failed("timeout".to_owned());
        two.failed("HTTP 503".to_owned());
        one.add(two);
        let report = one.report(10, Duration::from_secs(2));
        assert_eq!((report.placed, report.failed), (1, 3));
        let text = report.to_string();
        assert!(
            text.contains("2 × timeout") && text.contains("6 orders were not tried"),
            "{text}"
        );
    }
}
