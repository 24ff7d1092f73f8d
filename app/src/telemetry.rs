//! Log lines, on standard error.

use std::error::Error as StdError;
use std::io::IsTerminal as _;

use anyhow::{Context as _, anyhow};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// The filter for `text`, as `APP_LOG` gives it.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, String> {
    let invalid = || {
        format!(
            "invalid value '{text}' in APP_LOG (--log): a level is allowed (error, warn, info, debug, trace, off), or \
             targets with levels, such as warn,app=debug"
        )
    };
    // A word that is no level would be taken for a target, and silence all others.
    let is_word = |part: &str| {
        part.is_empty() || !part.contains(['=', '[']) && part.parse::<LevelFilter>().is_err()
    };
    if text.split(',').map(str::trim).any(is_word) {
        return Err(invalid());
    }
    let filter = EnvFilter::try_new(text).map_err(|_| invalid())?;
    // The client library logs each failure that it also returns; one target prints the payloads of returned messages.
    let wanted = text.contains("lapin");
    let quiet = if wanted {
        "lapin::returned_messages=off"
    } else {
        "lapin=off"
    };
    let quiet = quiet.parse().map_err(|_| "bad directive".to_owned())?;
    Ok(filter.add_directive(quiet))
}

/// Starts logging.
pub(crate) fn start(filter: EnvFilter, format: LogFormat) -> anyhow::Result<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started
        .map_err(|error| anyhow!(error))
        .context("cannot start logging")
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut link = error.source();
    while let Some(cause) = link {
        let words = cause.to_string();
        // Some libraries print their cause themselves.
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        link = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_named() {
        assert!(filter("info").is_ok());
        assert!(filter("warn,app=debug").is_ok());
        assert!(filter("verbose").is_err() && filter("").is_err() && filter("info,app").is_err());
        let error = filter("app=loud").unwrap_err();
        assert!(
            error.contains("'app=loud'") && error.contains("APP_LOG"),
            "{error}"
        );
    }
}
