//! How errors are shown: the chain once, in one line.

use std::error::Error;

/// An error and its causes, joined by ": ".
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        // Libraries repeat their cause in their own words; once is enough.
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot connect")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn causes_are_joined() {
        assert_eq!(
            chain(&Outer(std::io::Error::other("refused"))),
            "cannot connect: refused"
        );
    }
}
