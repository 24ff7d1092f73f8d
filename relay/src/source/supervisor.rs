//! Which source is in use: the binlog, or polling for as long as the binlog can't be read.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::binlog::{self, SourceError};
use crate::config::{Config, Mark, SourceMode};

/// The pause between looks at the binlog grows up to this many times the first.
const LONGEST_PAUSE: u32 = 20;

/// A source in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The binlog.
    Binlog,
    /// Claims by query.
    Poll,
}

impl Mode {
    /// As metrics and messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Binlog => "binlog",
            Mode::Poll => "poll",
        }
    }
}

/// Decides on the source.
#[derive(Debug)]
pub struct Supervisor {
    setting: SourceMode,
    can_poll: bool,
    mode: Mode,
    why: String,
    first_pause: Duration,
    pause: Duration,
    since: Instant,
}

impl Supervisor {
    /// Begins with the source that the configuration prefers.
    pub fn new(config: &Config) -> Self {
        let (mode, why) = match config.source {
            SourceMode::Auto => (Mode::Binlog, "source = auto"),
            SourceMode::Binlog => (Mode::Binlog, "source = binlog"),
            SourceMode::Poll => (Mode::Poll, "source = poll"),
        };
        Self {
            setting: config.source,
            can_poll: config.mark != Mark::None && config.columns.status().is_some(),
            mode,
            why: why.to_owned(),
            first_pause: config.binlog_probe_interval,
            pause: config.binlog_probe_interval,
            since: Instant::now(),
        }
    }

    /// The source to use.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why that one.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// The pause before the binlog is looked at again; none where only polling will do, or the binlog is in use.
    pub fn pause(&self) -> Option<Duration> {
        (self.setting == SourceMode::Auto && self.mode == Mode::Poll).then_some(self.pause)
    }

    /// The binlog has failed. Whether polling takes its place.
    pub fn failed(&mut self, failure: &SourceError, now: Instant) -> bool {
        let falls_back = self.setting == SourceMode::Auto
            && self.mode == Mode::Binlog
            && self.can_poll
            && failure.calls_for_polling();
        if falls_back {
            // A binlog that fails again soon is not to be taken back every time.
            self.pause = if now.saturating_duration_since(self.since) > self.pause * LONGEST_PAUSE {
                self.first_pause
            } else {
                longer(self.pause, self.first_pause)
            };
            self.mode = Mode::Poll;
            self.why = format!("{}; {}", crate::error::chain(failure), failure.hint());
            self.since = now;
        }
        falls_back
    }

    /// The binlog can be read.
    pub fn recovered(&mut self, now: Instant) {
        self.mode = Mode::Binlog;
        "the binlog can be read again".clone_into(&mut self.why);
        self.since = now;
    }
}

fn longer(pause: Duration, first: Duration) -> Duration {
    (pause * 2).min(first * LONGEST_PAUSE)
}

/// Looks at the binlog now and then until it can be read, and then ends the polling.
pub async fn watch(config: &Config, first_pause: Duration, polling: CancellationToken) {
    let mut pause = first_pause;
    loop {
        tokio::time::sleep(pause).await;
        match binlog::probe(config).await {
            Ok(()) => {
                info!("the binlog can be read; going back to it");
                polling.cancel();
                return;
            }
            Err(failure) => {
                debug!(error = %crate::error::chain(&failure), "the binlog still can't be read");
                pause = longer(pause, config.binlog_probe_interval);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Raw;
    use crate::mysql::Unfit;

    fn supervisor(source: &str, mark: &str) -> Supervisor {
        let variables = [
            ("RELAY_MYSQL_URL", "mysql://u:p@h/d"),
            ("RELAY_AMQP_URL", "amqp://u:p@h/%2f"),
            ("RELAY_SOURCE", source),
            ("RELAY_MARK", mark),
        ];
        let variables = variables.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let raw = Raw::load(None, variables.into_iter(), std::iter::empty()).unwrap();
        Supervisor::new(&Config::from_raw(&raw).unwrap())
    }

    #[test]
    fn auto_falls_back_and_returns_more_slowly_each_time() {
        let off = SourceError::Unfit(Unfit::Off);
        let mut auto = supervisor("auto", "update");
        let now = Instant::now();
        assert_eq!((auto.mode(), auto.pause()), (Mode::Binlog, None));
        assert!(
            !auto.failed(&SourceError::Silent, now),
            "an outage is none of polling's business"
        );
        assert!(auto.failed(&off, now));
        assert!(auto.why().contains("log_bin"), "{}", auto.why());
        let first = auto.pause().unwrap();
        auto.recovered(now);
        assert_eq!((auto.mode(), auto.pause()), (Mode::Binlog, None));
        assert!(auto.failed(&off, now));
        assert!(auto.pause().unwrap() > first);
        auto.recovered(now);
        assert!(auto.failed(&off, now + Duration::from_secs(100_000)));
        assert!(
            auto.pause().unwrap() < first,
            "after a long good time it is soon looked at again"
        );
    }

    #[test]
    fn only_auto_falls_back_and_only_where_rows_can_be_claimed() {
        let off = SourceError::Unfit(Unfit::Off);
        assert!(!supervisor("binlog", "update").failed(&off, Instant::now()));
        assert!(!supervisor("auto", "none").failed(&off, Instant::now()));
        let poll = supervisor("poll", "update");
        assert_eq!((poll.mode(), poll.pause()), (Mode::Poll, None));
    }
}
