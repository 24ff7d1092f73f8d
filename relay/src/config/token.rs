//! The token that HTTP admin calls need.

use std::fmt;

/// Shorter ones can be guessed.
const SHORTEST: usize = 16;
const LONGEST: usize = 512;

/// A bearer token (RFC 6750). `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(String);

impl AdminToken {
    /// Reads a token, as a file holds it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if !(SHORTEST..=LONGEST).contains(&text.len()) {
            return Err(format!(
                "the token in it has {} bytes, and {SHORTEST} to {LONGEST} are allowed",
                text.len()
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the token in it is not of visible ASCII characters".to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    /// Whether that is the token, in a time that does not tell how much of it is right.
    pub fn is(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        let differences = own
            .iter()
            .zip(given)
            .fold(0, |found, (own, given)| found | (own ^ given));
        own.len() == given.len() && differences == 0
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_and_stays_inside() {
        let token = AdminToken::parse("0123456789abcdef\n").unwrap();
        assert!(token.is("0123456789abcdef"));
        for other in [
            "",
            "0123456789abcde",
            "0123456789abcdeg",
            "0123456789abcdef0",
        ] {
            assert!(!token.is(other), "{other}");
        }
        assert_eq!(format!("{token:?}"), "AdminToken(…)");
        for bad in ["", "short", "0123456789 abcdef", "0123456789abcdeя"] {
            let error = AdminToken::parse(bad).unwrap_err();
            assert!(bad.is_empty() || !error.contains(bad), "{error}");
        }
    }
}
