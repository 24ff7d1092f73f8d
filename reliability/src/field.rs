//! Bounds of text columns, checked before the server would refuse or, without strict mode, cut them.

use thiserror::Error;

/// A field that its column can't hold.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldError {
    /// It is empty.
    #[error("{field} is empty")]
    Empty {
        /// Which field.
        field: &'static str,
    },
    /// It is longer than its column.
    #[error("{field} has {length} characters; its column holds {bound}")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its length in characters.
        length: usize,
        /// The longest that fits, in characters.
        bound: usize,
    },
}

/// Checks that `text` has 1 to `bound` characters, as a `VARCHAR(bound)` counts them.
pub(crate) fn check(field: &'static str, text: &str, bound: usize) -> Result<(), FieldError> {
    if text.is_empty() {
        return Err(FieldError::Empty { field });
    }
    // A text is never shorter in bytes than in characters.
    if text.len() <= bound {
        return Ok(());
    }
    let length = text.chars().count();
    if length > bound {
        Err(FieldError::TooLong {
            field,
            length,
            bound,
        })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_count_not_bytes() {
        assert_eq!(check("key", &"я".repeat(255), 255), Ok(()));
        assert_eq!(
            check("key", &"я".repeat(256), 255),
            Err(FieldError::TooLong {
                field: "key",
                length: 256,
                bound: 255
            })
        );
        assert_eq!(
            check("key", "", 255),
            Err(FieldError::Empty { field: "key" })
        );
    }
}
