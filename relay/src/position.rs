//! Binlog positions (pure): what a checkpoint holds, and the steps that move it.
//!
//! Intervals of a [`GtidSet`] are closed, as in `@@gtid_executed`; the wire format's are half open and are
//! made in [`GtidSet::blocks`] alone.

mod gtid_set;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use gtid_set::{Block, GtidSet, Source};

/// Text that is no position.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{text:?} is not a {expected}")]
pub struct PositionError {
    /// The text.
    pub text: String,
    /// What it should have been.
    pub expected: &'static str,
}

fn not_a(expected: &'static str, text: &str) -> PositionError {
    PositionError {
        text: text.to_owned(),
        expected,
    }
}

/// One transaction of a MariaDB server, within its domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MariaDbGtid {
    /// Replication domain.
    pub domain: u32,
    /// Server that committed it first.
    pub server_id: u32,
    /// Sequence number within the domain.
    pub sequence: u64,
}

impl fmt::Display for MariaDbGtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.domain, self.server_id, self.sequence)
    }
}

impl FromStr for MariaDbGtid {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        let wrong = || not_a("MariaDB GTID (domain-server-sequence)", text);
        let mut parts = text.trim().splitn(3, '-');
        let mut next = || parts.next().ok_or_else(wrong);
        let (domain, server_id, sequence) = (next()?, next()?, next()?);
        Ok(Self {
            domain: domain.parse().map_err(|_| wrong())?,
            server_id: server_id.parse().map_err(|_| wrong())?,
            sequence: sequence.parse().map_err(|_| wrong())?,
        })
    }
}

/// How far the binlog has been dealt with: everything up to here, and nothing after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Position {
    /// MySQL with GTIDs: the transactions dealt with.
    Gtid(GtidSet),
    /// MariaDB: the last transaction of each domain, by domain.
    MariaDb(BTreeMap<u32, MariaDbGtid>),
    /// A place in a binlog of one server.
    File {
        /// Binlog file name.
        file: Arc<str>,
        /// Offset of the next event.
        offset: u64,
    },
}

/// What one transaction, or a run of them, adds to a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Transactions `first..=last` of one source.
    Gtid {
        /// Server uuid and tag.
        source: Source,
        /// First transaction number.
        first: u64,
        /// Last transaction number.
        last: u64,
    },
    /// A transaction of a MariaDB domain.
    MariaDb(MariaDbGtid),
    /// A place in a binlog file.
    File {
        /// Binlog file name.
        file: Arc<str>,
        /// Offset behind the transaction.
        offset: u64,
    },
    /// A whole new position: the end of a snapshot.
    Reset(Box<Position>),
}

impl Step {
    /// Takes a later step into this one where the two are one run; gives it back otherwise.
    pub fn absorb(&mut self, later: Step) -> Option<Step> {
        match (&mut *self, later) {
            (
                Step::Gtid { source, last, .. },
                Step::Gtid {
                    source: other,
                    first,
                    last: later,
                },
            ) if *source == other && last.checked_add(1) == Some(first) => {
                *last = later;
                None
            }
            (Step::MariaDb(gtid), Step::MariaDb(later)) if gtid.domain == later.domain => {
                *gtid = later;
                None
            }
            (Step::File { .. }, later @ Step::File { .. }) => {
                *self = later;
                None
            }
            (_, later) => Some(later),
        }
    }
}

impl Position {
    /// Moves over a step. A step of another kind than the position starts it anew: the server's
    /// identity has changed, and the source has checked that it may.
    pub fn advance(&mut self, step: Step) {
        match (&mut *self, step) {
            (
                Position::Gtid(set),
                Step::Gtid {
                    source,
                    first,
                    last,
                },
            ) => {
                set.insert(source, first, last);
            }
            (Position::MariaDb(domains), Step::MariaDb(gtid)) => {
                domains.insert(gtid.domain, gtid);
            }
            (_, Step::File { file, offset }) => *self = Position::File { file, offset },
            (_, Step::Reset(position)) => *self = *position,
            (
                _,
                Step::Gtid {
                    source,
                    first,
                    last,
                },
            ) => {
                let mut set = GtidSet::default();
                set.insert(source, first, last);
                *self = Position::Gtid(set);
            }
            (_, Step::MariaDb(gtid)) => {
                *self = Position::MariaDb(BTreeMap::from([(gtid.domain, gtid)]));
            }
        }
    }

    /// Whether everything of the step lies within the position. Files are compared by the number that
    /// ends their names; positions of different kinds cover nothing of each other.
    pub fn covers(&self, step: &Step) -> bool {
        match (self, step) {
            (
                Position::Gtid(set),
                Step::Gtid {
                    source,
                    first,
                    last,
                },
            ) => set.contains(source, *first, *last),
            (Position::MariaDb(domains), Step::MariaDb(gtid)) => domains
                .get(&gtid.domain)
                .is_some_and(|seen| seen.sequence >= gtid.sequence),
            (
                Position::File { file, offset },
                Step::File {
                    file: other,
                    offset: end,
                },
            ) => (file_number(other), *end) <= (file_number(file), *offset),
            (Position::Gtid(_) | Position::MariaDb(_) | Position::File { .. }, _) => false,
        }
    }

    /// Whether everything up to `end` lies within the position. Positions of different kinds reach nothing of each other.
    pub fn reaches(&self, end: &Position) -> bool {
        match (self, end) {
            (Position::Gtid(set), Position::Gtid(end)) => set.contains_set(end),
            (Position::MariaDb(_), Position::MariaDb(end)) => {
                end.values().all(|gtid| self.covers(&Step::MariaDb(*gtid)))
            }
            (Position::File { .. }, Position::File { file, offset }) => self.covers(&Step::File {
                file: file.clone(),
                offset: *offset,
            }),
            (Position::Gtid(_) | Position::MariaDb(_) | Position::File { .. }, _) => false,
        }
    }

    /// Reads `@@gtid_current_pos` and its like.
    ///
    /// # Errors
    /// Text that is no list of MariaDB GTIDs.
    pub fn from_mariadb_list(text: &str) -> Result<Self, PositionError> {
        let mut domains = BTreeMap::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let gtid: MariaDbGtid = part.parse()?;
            domains.insert(gtid.domain, gtid);
        }
        Ok(Position::MariaDb(domains))
    }

    /// The text that a checkpoint row holds.
    pub fn to_json(&self) -> String {
        let stored = match self {
            Position::Gtid(set) => Stored::Gtid {
                gtid: set.to_string(),
            },
            Position::MariaDb(_) => Stored::MariaDb {
                mariadb_gtid: self.to_string(),
            },
            Position::File { file, offset } => Stored::File {
                file: file.to_string(),
                offset: *offset,
            },
        };
        // A struct of strings and numbers always has a JSON form.
        serde_json::to_string(&stored).unwrap_or_default()
    }

    /// Reads the text of a checkpoint row.
    ///
    /// # Errors
    /// Text that no relay wrote.
    pub fn from_json(text: &str) -> Result<Self, PositionError> {
        match serde_json::from_str(text) {
            Ok(Stored::Gtid { gtid }) => gtid.parse().map(Position::Gtid),
            Ok(Stored::MariaDb { mariadb_gtid }) => Self::from_mariadb_list(&mariadb_gtid),
            Ok(Stored::File { file, offset }) => Ok(Position::File {
                file: file.into(),
                offset,
            }),
            Err(_) => Err(not_a("checkpoint position", text)),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    Gtid { gtid: String },
    MariaDb { mariadb_gtid: String },
    File { file: String, offset: u64 },
}

/// `binlog.000123` → 123.
fn file_number(name: &str) -> u64 {
    name.rsplit('.')
        .next()
        .and_then(|suffix| suffix.parse().ok())
        .unwrap_or(0)
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Gtid(set) => set.fmt(f),
            Position::MariaDb(domains) => {
                for (nth, gtid) in domains.values().enumerate() {
                    if nth > 0 {
                        f.write_str(",")?;
                    }
                    gtid.fmt(f)?;
                }
                Ok(())
            }
            Position::File { file, offset } => write!(f, "{file}:{offset}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, offset: u64) -> Step {
        Step::File {
            file: name.into(),
            offset,
        }
    }

    #[test]
    fn files_compare_by_number() {
        let position = Position::File {
            file: "binlog.1000000".into(),
            offset: 4,
        };
        assert!(position.covers(&file("binlog.999999", 5000)));
        assert!(position.covers(&file("binlog.1000000", 4)));
        assert!(!position.covers(&file("binlog.1000000", 5)));
    }

    #[test]
    fn mariadb_domains_stand_side_by_side() {
        let mut position = Position::from_mariadb_list("0-1-5, 3-1-7").unwrap();
        let gtid = |domain, sequence| {
            Step::MariaDb(MariaDbGtid {
                domain,
                server_id: 2,
                sequence,
            })
        };
        assert!(position.covers(&gtid(0, 5)) && !position.covers(&gtid(0, 6)));
        assert!(!position.covers(&gtid(1, 1)));
        position.advance(gtid(0, 6));
        assert_eq!(position.to_string(), "0-2-6,3-1-7");
    }

    #[test]
    fn positions_survive_the_checkpoint_row() {
        for position in [
            Position::Gtid(
                "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7:tag_a:1-3"
                    .parse()
                    .unwrap(),
            ),
            Position::from_mariadb_list("0-1-5,3-1-7").unwrap(),
            Position::from_mariadb_list("").unwrap(),
            Position::File {
                file: "binlog.000003".into(),
                offset: 5_000_000_000,
            },
        ] {
            assert_eq!(Position::from_json(&position.to_json()).unwrap(), position);
        }
        assert!(Position::from_json("{\"kafka\": 1}").is_err());
        assert!(Position::from_json("").is_err());
    }

    #[test]
    fn a_run_of_steps_is_one_step() {
        let source = Source::untagged([7; 16]);
        let gtid = |first, last| Step::Gtid {
            source: source.clone(),
            first,
            last,
        };
        let mut step = gtid(1, 1);
        assert_eq!(step.absorb(gtid(2, 2)), None);
        assert_eq!(step, gtid(1, 2));
        assert_eq!(step.absorb(gtid(4, 4)), Some(gtid(4, 4)));
        let mut step = file("b.1", 4);
        assert_eq!(step.absorb(file("b.2", 9)), None);
        assert_eq!(step, file("b.2", 9));
    }
}
