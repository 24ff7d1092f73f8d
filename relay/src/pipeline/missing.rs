//! Exchanges that rows have asked for and that the broker refused (pure).
//!
//! The broker answers a publication to an exchange that is not there by closing the channel, and with it all that was
//! in flight. So events for such an exchange fail here for a while, without being sent; now and then one is sent to
//! see whether somebody has made it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an exchange counts as missing.
const TRUST: Duration = Duration::from_secs(5);
/// Names remembered at once: rows may name anything.
const MOST: usize = 1_000;

/// What is known to be missing, and the broker's words on it.
#[derive(Debug, Default)]
pub(super) struct Missing {
    exchanges: HashMap<Arc<str>, (Instant, String)>,
}

impl Missing {
    /// The broker refused it.
    pub(super) fn note(&mut self, exchange: Arc<str>, words: &str, now: Instant) {
        if self.exchanges.len() >= MOST {
            self.exchanges.retain(|_, (since, _)| now < *since + TRUST);
        }
        if self.exchanges.len() < MOST {
            self.exchanges.insert(exchange, (now, words.to_owned()));
        }
    }

    /// The broker's words, if it refused the exchange lately.
    pub(super) fn words(&self, exchange: &str, now: Instant) -> Option<&str> {
        if self.exchanges.is_empty() {
            return None;
        }
        let (since, words) = self.exchanges.get(exchange)?;
        (now < *since + TRUST).then_some(words)
    }
}

/// Which of the exchanges in flight the broker means; none if it may mean the one that was checked, or can't be told.
pub(super) fn culprit(words: &str, candidates: &[Arc<str>]) -> Option<Arc<str>> {
    let named = candidates
        .iter()
        .filter(|name| words.contains(&format!("'{name}'")));
    // A name may hold another with its quotes; the longest is meant.
    let longest = named.max_by_key(|name| name.len());
    longest.cloned().or_else(|| match candidates {
        [only] => Some(only.clone()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_missing_for_a_while() {
        let (mut missing, now) = (Missing::default(), Instant::now());
        missing.note("x".into(), "NOT_FOUND", now);
        assert_eq!(missing.words("x", now), Some("NOT_FOUND"));
        assert_eq!(missing.words("y", now), None);
        assert_eq!(missing.words("x", now + TRUST), None);
        for nth in 0..2 * MOST {
            missing.note(nth.to_string().into(), "", now);
        }
        assert!(missing.exchanges.len() <= MOST);
        missing.note("z".into(), "", now + TRUST);
        assert!(
            missing.words("z", now + TRUST).is_some(),
            "old ones make room"
        );
    }

    #[test]
    fn the_broker_names_the_culprit() {
        let names: Vec<Arc<str>> = vec!["a".into(), "ab".into()];
        let words = "NOT_FOUND - no exchange 'ab' in vhost '/'";
        assert_eq!(culprit(words, &names).as_deref(), Some("ab"));
        assert_eq!(culprit("cut off", &names), None);
        assert_eq!(culprit("cut off", &names[..1]).as_deref(), Some("a"));
        assert_eq!(culprit(words, &[]), None);
    }
}
