//! What can go wrong with the binlog, and what then.

use std::any::Any;

use thiserror::Error;

use super::decode::DecodeError;
use crate::mysql::{MysqlError, Remedy, Unfit};

/// Why the source ends, or connects again.
#[derive(Debug, Error)]
pub enum SourceError {
    /// MySQL said no.
    #[error(transparent)]
    Mysql(#[from] MysqlError),
    /// The stream broke.
    #[error("the binlog stream broke")]
    Stream(#[source] mysql_async::Error),
    /// No event and no heartbeat.
    #[error("the binlog stream has been silent for three heartbeats")]
    Silent,
    /// The server has ended the stream.
    #[error("the server has ended the binlog stream")]
    Ended,
    /// The binlog can't be tailed.
    #[error("the binlog is not fit to be tailed")]
    Unfit(#[source] Unfit),
    /// What is needed next is not in the binlog any more.
    #[error("the binlog no longer holds what comes after the checkpoint: {0}")]
    Gap(String),
    /// The binlog does not hold what was written to the outbox table, or not all of it.
    #[error("the binlog lacks outbox rows that are in the table: {0}")]
    Partial(String),
    /// The account lacks the privilege of replicas.
    #[error("the account may not read the binlog: {0}")]
    Denied(String),
    /// The replica id is the server's own.
    #[error("the relay's server id {0} is the database server's own")]
    ServerId(u32),
    /// The server has ended the stream in favour of another replica with the same id.
    #[error(
        "another replica with this relay's server id {server_id} has connected, so the server has ended this relay's stream: {message}"
    )]
    Displaced {
        /// The id that both use.
        server_id: u32,
        /// The server's words.
        message: String,
    },
    /// The outbox table is not what it should be.
    #[error("the outbox table {table} {why}")]
    Table {
        /// Schema and table.
        table: String,
        /// What is wrong with it.
        why: String,
    },
    /// An event that can't be read.
    #[error("a binlog event near {place} can't be read")]
    Decode {
        /// Binlog file and offset.
        place: String,
        /// Why.
        #[source]
        source: DecodeError,
    },
    /// An event whose bytes are damaged, or that has no place where it stands.
    #[error("the binlog stream near {place} is damaged: {why}")]
    Damaged {
        /// Binlog file and offset.
        place: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A panic, in the driver or here: an error of the program, or bytes that nobody thought of.
    #[error("reading the binlog panicked: {0}")]
    Panicked(Box<str>),
    /// The snapshot was cut off.
    #[error("the snapshot of unpublished rows was cut off")]
    SnapshotLost(#[source] MysqlError),
    /// Nobody takes the items any more.
    #[error("the pipeline has ended")]
    NoTaker,
}

impl SourceError {
    /// Whether it may pass by itself.
    pub fn remedy(&self) -> Remedy {
        match self {
            SourceError::Mysql(error) | SourceError::SnapshotLost(error) => {
                error.diagnosis().remedy
            }
            SourceError::Unfit(_)
            | SourceError::Denied(_)
            | SourceError::ServerId(_)
            | SourceError::Table { .. } => Remedy::Stop,
            SourceError::Stream(error) => crate::mysql::diagnose(error).remedy,
            SourceError::Silent
            | SourceError::Ended
            | SourceError::Gap(_)
            | SourceError::Partial(_)
            | SourceError::Decode { .. }
            | SourceError::Damaged { .. }
            | SourceError::Displaced { .. }
            | SourceError::Panicked(_)
            | SourceError::NoTaker => Remedy::Retry,
        }
    }

    /// Whether only a snapshot can go on from here.
    pub fn is_gap(&self) -> bool {
        matches!(self, SourceError::Gap(_) | SourceError::Partial(_))
    }

    /// Whether polling does what the binlog can't.
    pub fn calls_for_polling(&self) -> bool {
        matches!(
            self,
            SourceError::Unfit(_) | SourceError::Denied(_) | SourceError::Partial(_)
        )
    }

    /// Whether connecting again where the tail stands can mend it.
    pub(super) fn is_mended_by_reconnecting(&self) -> bool {
        let session_bound = matches!(
            self,
            SourceError::Gap(_)
                | SourceError::Partial(_)
                | SourceError::SnapshotLost(_)
                | SourceError::NoTaker
        );
        !session_bound && self.remedy() == Remedy::Retry
    }

    pub(super) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        SourceError::Panicked(text.unwrap_or("no message").into())
    }

    /// A word to the operator.
    pub fn hint(&self) -> &'static str {
        match self {
            SourceError::Mysql(error) | SourceError::SnapshotLost(error) => error.diagnosis().hint,
            SourceError::Stream(error) => crate::mysql::diagnose(error).hint,
            SourceError::Silent | SourceError::Ended => {
                "check that MySQL is running and the network between; the relay connects again"
            }
            SourceError::Unfit(_) => "change the server's settings as the message says",
            SourceError::Gap(_) => {
                "keep binlogs longer (binlog_expire_logs_seconds); the relay closes the gap from the table"
            }
            SourceError::Partial(_) => {
                "write to the outbox with binlog_format = ROW and binlog_row_image = FULL; the relay reads the rows from the table"
            }
            SourceError::Denied(_) => "run: GRANT REPLICATION SLAVE ON *.* TO the relay's account",
            SourceError::ServerId(_) | SourceError::Displaced { .. } => {
                "set RELAY_SERVER_ID to a number that no other relay or replica of this server has (two relays that shall stand by for each other need the same RELAY_NAME instead)"
            }
            SourceError::Table { .. } => {
                "compare the table with migrations/0001_outbox.sql, and the account's grants with the README"
            }
            SourceError::Decode { .. } | SourceError::Damaged { .. } | SourceError::Panicked(_) => {
                "if it persists, check the server's disk and memory; please report it"
            }
            SourceError::NoTaker => "see the error before this one",
        }
    }
}
