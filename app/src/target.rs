//! Where an HTTP server is.

use std::fmt;

use anyhow::{Context as _, Result};
use reqwest::Url;

/// The address of a server, as people give it: plain HTTP, without a user, a query or a fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target(Url);

impl Target {
    /// Reads `http://HOST:PORT`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        text.parse::<Url>()
            .ok()
            .filter(|url| url.scheme() == "http" && url.has_host())
            .filter(|url| url.username().is_empty() && url.password().is_none())
            .filter(|url| url.query().is_none() && url.fragment().is_none())
            .map(Self)
            .ok_or_else(|| "http://HOST:PORT is allowed".to_owned())
    }

    /// One of its pages; `path` begins with a slash.
    pub(crate) fn page(&self, path: &str) -> Result<Url> {
        format!("{self}{path}")
            .parse()
            .with_context(|| format!("no page {path} at {self}"))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_http_is_a_target() {
        assert_eq!(
            Target::parse("http://127.0.0.1:8080/").unwrap().to_string(),
            "http://127.0.0.1:8080"
        );
        for text in [
            "",
            "127.0.0.1:8080",
            "https://h",
            "ftp://h",
            "http://u:p@h",
            "http://u@h",
            "http://h/?q",
            "http://h/#f",
        ] {
            assert!(Target::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pages_are_below_the_path_of_the_target() {
        let page = |base| Target::parse(base).unwrap().page("/a/b%3Ac").unwrap();
        assert_eq!(page("http://h:1").as_str(), "http://h:1/a/b%3Ac");
        assert_eq!(page("http://h:1/v1/").as_str(), "http://h:1/v1/a/b%3Ac");
    }
}
