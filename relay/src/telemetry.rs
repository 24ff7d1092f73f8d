//! Log lines.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// Starts logging to standard error.
///
/// # Errors
/// The filter is not valid, or logging was started before.
pub fn start(config: &Config) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.log_level).context("cannot read log_level")?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match config.log_format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}
