//! An error and its causes in one line, for a column of text.

use std::error::Error;

/// Longest text kept of one error, in characters: enough for any cause, and no page of a server's HTML.
const LENGTH_MAX: usize = 2_000;

/// `error: its cause: the cause of that`; a cause that the error quotes already is not repeated.
pub(crate) fn text(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    cut(text)
}

/// At most the number of characters that is kept.
pub(crate) fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LENGTH_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn causes_are_joined_and_cut() {
        assert_eq!(text(&Outer(std::io::Error::other("inner"))), "outer: inner");
        let long = text(&std::io::Error::other("я".repeat(3_000)));
        assert_eq!(long.chars().count(), LENGTH_MAX + 1);
    }
}
