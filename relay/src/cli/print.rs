//! What commands print.

use std::io::Write as _;

use anyhow::Context as _;
use clap::{Arg, ArgAction};
use serde::Serialize;

/// The flag that asks for JSON.
pub(super) fn json_flag() -> Arg {
    Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON")
}

/// A line on standard output.
pub(super) fn line(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}").context("cannot print")
}

/// A JSON document on standard output.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string(value).context("cannot write JSON")?;
    line(&text)
}

/// A line on standard error.
pub(super) fn complaint(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stderr().lock(), "{text}").context("cannot print")
}

/// Text from elsewhere in one line, without what a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// How far a long piece of work is: a line that is written over on a terminal, a log line elsewhere.
#[derive(Debug)]
pub(super) struct Progress {
    terminal: bool,
    shown: Option<std::time::Instant>,
}

/// Shortest time between two lines of progress.
const PAUSE_ON_TERMINAL: std::time::Duration = std::time::Duration::from_millis(100);
const PAUSE_IN_LOG: std::time::Duration = std::time::Duration::from_secs(5);

impl Progress {
    pub(super) fn new() -> Self {
        use std::io::IsTerminal as _;
        Self {
            terminal: std::io::stderr().is_terminal(),
            shown: None,
        }
    }

    /// Shows how far it is, unless that was shown just now.
    pub(super) fn show(&mut self, text: impl FnOnce() -> String) {
        let pause = if self.terminal {
            PAUSE_ON_TERMINAL
        } else {
            PAUSE_IN_LOG
        };
        if self.shown.is_some_and(|shown| shown.elapsed() < pause) {
            return;
        }
        self.shown = Some(std::time::Instant::now());
        if self.terminal {
            // Progress that can't be shown stops no work.
            if write!(std::io::stderr().lock(), "\r{}\u{1b}[K", text()).is_err() {}
        } else {
            tracing::info!("{}", text());
        }
    }

    /// Takes the line away.
    pub(super) fn end(&self) {
        if self.terminal && write!(std::io::stderr().lock(), "\r\u{1b}[K").is_err() {}
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn escapes_do_not_reach_the_terminal() {
        assert_eq!(super::plain("a\u{1b}[2Jb\nc"), "a [2Jb c");
    }
}
