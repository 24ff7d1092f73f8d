//! Whether two requests are the same.

use sha2::{Digest as _, Sha256};

use super::canonical::canonical;

/// SHA-256 over a request's method, path and body.
///
/// In a JSON body, the order of keys, white space and the escaping of texts do not matter; numbers count as they are
/// written (`1.0` is not `1`). Any other body counts byte for byte.
///
/// ```
/// use reliability::idempotency::Fingerprint;
///
/// let one = Fingerprint::of("POST", "/invoices", br#"{"a": 1, "b": "x"}"#);
/// assert_eq!(one, Fingerprint::of("POST", "/invoices", br#"{"b":"\u0078","a":1}"#));
/// assert_ne!(one, Fingerprint::of("POST", "/invoices", br#"{"a": 2, "b": "x"}"#));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Of a request; put the query into `path` if it matters.
    #[must_use]
    pub fn of(method: &str, path: &str, body: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [method.as_bytes(), path.as_bytes()] {
            // With its length, or "a" + "bc" would be "ab" + "c".
            hash.update(part.len().to_be_bytes());
            hash.update(part);
        }
        match canonical(body) {
            Some(json) => {
                hash.update(b"json");
                hash.update(json);
            }
            None => {
                hash.update(b"raw ");
                hash.update(body);
            }
        }
        let digest = hash.finalize();
        Self(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// 64 hexadecimal digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_path_and_body_count() {
        let base = Fingerprint::of("POST", "/a", b"{}");
        assert_eq!(base.as_str().len(), 64);
        assert_eq!(base, Fingerprint::of("POST", "/a", b" { } "));
        for other in [
            Fingerprint::of("PUT", "/a", b"{}"),
            Fingerprint::of("POST", "/b", b"{}"),
            Fingerprint::of("POST/", "a", b"{}"),
            Fingerprint::of("POST", "/a", b"[]"),
            Fingerprint::of("POST", "/a", b""),
            Fingerprint::of("POST", "/a", b"{"),
            Fingerprint::of("POST", "/a", b"\xff\x00"),
        ] {
            assert_ne!(base, other);
        }
    }
}
