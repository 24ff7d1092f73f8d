//! The broker's circuit breaker (pure): closed, open, half open with one probe.
//!
//! A connection that stands proves little: a broker in trouble takes connections and then no messages. So after a loss
//! one publication goes first, and the rest follow once the broker has had its say on it. Delays grow from loss to loss
//! until then.

/// What may be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Circuit {
    /// Everything.
    Closed,
    /// One publication, whose outcome decides.
    HalfOpen,
    /// Nothing: there is no connection.
    Open,
}

/// The circuit, and how many losses there were in a row.
#[derive(Debug)]
pub(super) struct Breaker {
    state: Circuit,
    losses: u32,
}

impl Breaker {
    /// Nothing was lost yet, and nothing is connected.
    pub(super) fn new() -> Self {
        Self {
            state: Circuit::Open,
            losses: 0,
        }
    }

    pub(super) fn state(&self) -> Circuit {
        self.state
    }

    /// Losses since the broker last gave an outcome.
    pub(super) fn losses(&self) -> u32 {
        self.losses
    }

    /// A connection stands. The first one needs no probe.
    pub(super) fn connected(&mut self) {
        self.state = if self.losses == 0 {
            Circuit::Closed
        } else {
            Circuit::HalfOpen
        };
    }

    /// The connection, or an attempt at one, has failed.
    pub(super) fn lost(&mut self) {
        self.state = Circuit::Open;
        self.losses = self.losses.saturating_add(1);
    }

    /// The broker has decided on a publication, whichever way. Whether that closed the circuit.
    pub(super) fn outcome(&mut self) -> bool {
        let was = self.state;
        if was != Circuit::Open {
            self.state = Circuit::Closed;
            self.losses = 0;
        }
        was == Circuit::HalfOpen
    }

    /// Whether one more may be published beside those in flight.
    pub(super) fn lets_through(&self, in_flight: usize) -> bool {
        match self.state {
            Circuit::Closed => true,
            Circuit::HalfOpen => in_flight == 0,
            Circuit::Open => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn after_a_loss_one_probe_goes_first() {
        let mut breaker = Breaker::new();
        assert!(!breaker.lets_through(0), "nothing is connected");
        breaker.connected();
        assert!(breaker.lets_through(5_000));
        breaker.lost();
        assert!(!breaker.lets_through(0));
        breaker.connected();
        assert_eq!(breaker.state(), Circuit::HalfOpen);
        assert!(breaker.lets_through(0));
        assert!(!breaker.lets_through(1), "one probe and no more");
        breaker.lost();
        breaker.connected();
        assert_eq!(breaker.losses(), 2, "a connection alone resets nothing");
        assert!(breaker.outcome());
        assert_eq!((breaker.state(), breaker.losses()), (Circuit::Closed, 0));
    }

    proptest! {
        #[test]
        fn never_more_than_one_before_an_outcome(steps in prop::collection::vec(0u8..4, 0..200)) {
            let mut breaker = Breaker::new();
            let (mut in_flight, mut proved, mut lost_once) = (0usize, false, false);
            for step in steps {
                match step {
                    0 => {
                        if breaker.state() == Circuit::Open { breaker.connected(); proved = !lost_once; }
                    }
                    1 => { breaker.lost(); in_flight = 0; lost_once = true; proved = false; }
                    2 => if breaker.lets_through(in_flight) { in_flight += 1; },
                    _ => if in_flight > 0 { in_flight -= 1; breaker.outcome(); proved = true; },
                }
                prop_assert!(proved || in_flight <= 1);
                prop_assert!(breaker.state() != Circuit::Open || in_flight == 0);
            }
        }
    }
}
