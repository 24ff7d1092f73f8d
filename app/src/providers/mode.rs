//! How a provider misbehaves, on purpose.

use serde::{Deserialize, Serialize};

use super::book::Service;

/// Longest delay that can be asked for, in milliseconds.
const LATENCY_MAX: u64 = 600_000;

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// Nothing.
    #[default]
    None,
    /// 500, and nothing is done.
    Error,
    /// 503, and nothing is done.
    Unavailable,
    /// Never answered, and nothing is done.
    Hang,
    /// Refused, and nothing is done. What is done already stays so, and is answered as ever.
    Decline,
    /// Done, and the connection closed without an answer.
    LostAnswer,
    /// 429 with `Retry-After`, and nothing is done.
    RateLimit,
}

/// What goes wrong with calls of one kind, and how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Mode {
    fault: Fault,
    /// Of the calls, 0 to 1.
    share: f64,
    /// Only so many more; without a bound if none.
    times: Option<u64>,
    /// Before every call is looked at.
    pub(super) latency_ms: u64,
}

impl Default for Mode {
    fn default() -> Self {
        Self {
            fault: Fault::None,
            share: 1.0,
            times: None,
            latency_ms: 0,
        }
    }
}

/// The modes of a provider, for the work and for its undo.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Sides {
    #[serde(rename = "do")]
    pub(super) forward: Mode,
    pub(super) undo: Mode,
}

/// New modes; a side that is not named stays as it is.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    #[serde(rename = "do")]
    forward: Option<Mode>,
    undo: Option<Mode>,
}

/// The modes of both providers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Modes {
    payment: Sides,
    shipment: Sides,
}

impl Change {
    /// Reads a change; what is wrong if it is none.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, String> {
        let change: Self = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        for (side, mode) in [("do", &change.forward), ("undo", &change.undo)] {
            let Some(mode) = mode else { continue };
            if !(0.0..=1.0).contains(&mode.share) {
                return Err(format!("{side}.share is {}; 0 to 1 is allowed", mode.share));
            }
            if mode.latency_ms > LATENCY_MAX {
                return Err(format!(
                    "{side}.latency_ms is {}; 0 to {LATENCY_MAX} is allowed",
                    mode.latency_ms
                ));
            }
        }
        Ok(change)
    }
}

impl Modes {
    /// Replaces what `change` names.
    pub(crate) fn change(&mut self, service: Service, change: Change) {
        let sides = self.sides(service);
        if let Some(mode) = change.forward {
            sides.forward = mode;
        }
        if let Some(mode) = change.undo {
            sides.undo = mode;
        }
    }

    pub(super) fn sides(&mut self, service: Service) -> &mut Sides {
        match service {
            Service::Payment => &mut self.payment,
            Service::Shipment => &mut self.shipment,
        }
    }
}

impl Mode {
    /// What goes wrong with the next call. `chance` is from 0 to below 1; `settled` says that there is nothing left to do.
    pub(super) fn next(&mut self, chance: f64, settled: bool) -> Fault {
        let spared = match self.fault {
            Fault::None => true,
            // Whoever asks again for what was done must not hear that it was not.
            Fault::Decline => settled,
            Fault::Error
            | Fault::Unavailable
            | Fault::Hang
            | Fault::LostAnswer
            | Fault::RateLimit => false,
        };
        if spared || chance >= self.share {
            return Fault::None;
        }
        match &mut self.times {
            Some(0) => return Fault::None,
            Some(left) => *left -= 1,
            None => {}
        }
        self.fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str) -> Mode {
        serde_json::from_str(text).unwrap()
    }

    fn parse(text: &str) -> Result<Change, String> {
        Change::parse(text.as_bytes())
    }

    #[test]
    fn what_is_not_given_is_the_default_and_the_other_side_stays() {
        let mut modes = Modes::default();
        let change = parse(r#"{"do":{"fault":"lost_answer"},"undo":{"latency_ms":5}}"#).unwrap();
        modes.change(Service::Payment, change);
        modes.change(
            Service::Payment,
            parse(r#"{"do":{"fault":"hang"}}"#).unwrap(),
        );
        let shown = serde_json::to_value(&modes).unwrap();
        assert_eq!(
            shown["payment"],
            serde_json::json!({
                "do": {"fault": "hang", "share": 1.0, "times": null, "latency_ms": 0},
                "undo": {"fault": "none", "share": 1.0, "times": null, "latency_ms": 5},
            })
        );
        assert_eq!(*modes.sides(Service::Shipment), Sides::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            (r#"{"do":{"fault":"explode"}}"#, "explode"),
            (r#"{"do":{"fualt":"hang"}}"#, "fualt"),
            (r#"{"redo":{}}"#, "redo"),
            (r#"{"undo":{"share":1.5}}"#, "undo.share is 1.5"),
            (r#"{"do":{"share":-0.1}}"#, "do.share is -0.1"),
            (r#"{"do":{"times":-1}}"#, "-1"),
            (r#"{"do":{"latency_ms":600001}}"#, "do.latency_ms"),
            ("", "EOF"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_share_of_the_calls_is_hit() {
        let mut mode = mode(r#"{"fault":"error","share":0.25}"#);
        let hits = (0..100)
            .filter(|call| mode.next(f64::from(*call) / 100.0, false) == Fault::Error)
            .count();
        assert_eq!(hits, 25);
    }

    #[test]
    fn only_so_many_calls_are_hit() {
        let mut mode = mode(r#"{"fault":"rate_limit","times":2,"share":0.5}"#);
        // One that is spared by chance is no hit.
        let chances = [0.0, 0.9, 0.0, 0.0, 0.0];
        let hits: Vec<bool> = chances
            .iter()
            .map(|chance| mode.next(*chance, false) == Fault::RateLimit)
            .collect();
        assert_eq!(hits, [true, false, true, false, false]);
    }

    #[test]
    fn what_is_done_is_not_declined() {
        let mut decline = mode(r#"{"fault":"decline","times":1}"#);
        assert_eq!(decline.next(0.0, true), Fault::None);
        assert_eq!(decline.next(0.0, false), Fault::Decline);
        assert_eq!(mode(r#"{"fault":"error"}"#).next(0.0, true), Fault::Error);
    }
}
