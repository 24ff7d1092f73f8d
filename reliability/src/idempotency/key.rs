//! What a client calls its request.

use thiserror::Error;

/// Longest key, in bytes.
const KEY_MAX: usize = 255;
/// Longest scope, in characters.
const SCOPE_MAX: usize = 128;

/// A client's name for a request: 1 to 255 visible ASCII characters, unique within its scope.
///
/// ```
/// use reliability::idempotency::Key;
///
/// let key = Key::new("8d2a5d8f-9a3a-4f8a")?.scoped("tenant-7")?;
/// assert_eq!((key.as_str(), key.scope()), ("8d2a5d8f-9a3a-4f8a", "tenant-7"));
/// assert!(Key::new("two words").is_err());
/// # Ok::<(), reliability::idempotency::KeyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    scope: String,
    key: String,
}

/// Why a text is no key: the client's mistake.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// It is empty.
    #[error("the idempotency key is empty")]
    Empty,
    /// It is too long.
    #[error("the idempotency key has {length} bytes; at most {KEY_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// It has blanks, characters of control, or such beyond ASCII.
    #[error("the idempotency key may only have visible ASCII characters")]
    NotVisible,
    /// The scope, which the application chose, does not fit.
    #[error(
        "the scope of an idempotency key has {length} characters; at most {SCOPE_MAX} are allowed"
    )]
    Scope {
        /// Its length in characters.
        length: usize,
    },
}

impl Key {
    /// A key in the scope that all share.
    ///
    /// # Errors
    /// It is empty, longer than 255 bytes, or has a character that is not visible ASCII.
    pub fn new(key: impl Into<String>) -> Result<Self, KeyError> {
        let key = key.into();
        if key.is_empty() {
            return Err(KeyError::Empty);
        }
        if key.len() > KEY_MAX {
            return Err(KeyError::TooLong { length: key.len() });
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(KeyError::NotVisible);
        }
        Ok(Self {
            scope: String::new(),
            key,
        })
    }

    /// The same key for one tenant, client or route only: others may use it too.
    ///
    /// # Errors
    /// The scope is longer than 128 characters.
    pub fn scoped(self, scope: impl Into<String>) -> Result<Self, KeyError> {
        let scope = scope.into();
        let length = scope.chars().count();
        if length > SCOPE_MAX {
            return Err(KeyError::Scope { length });
        }
        Ok(Self { scope, ..self })
    }

    /// What the client sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.key
    }

    /// Whose it is; empty if all share it.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.scope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_visible_ascii_of_1_to_255_bytes() {
        assert!(Key::new("!~").is_ok());
        assert!(Key::new("x".repeat(255)).is_ok());
        assert_eq!(Key::new(""), Err(KeyError::Empty));
        assert_eq!(
            Key::new("x".repeat(256)),
            Err(KeyError::TooLong { length: 256 })
        );
        for text in ["a b", "a\t", "\u{7f}", "ключ", "\0"] {
            assert_eq!(Key::new(text), Err(KeyError::NotVisible), "{text:?}");
        }
        assert!(Key::new("k").unwrap().scoped("я".repeat(128)).is_ok());
        assert!(Key::new("k").unwrap().scoped("я".repeat(129)).is_err());
    }
}
