//! The checks of `relay check`: what the relay needs of MySQL and of RabbitMQ, tried without changing a row.
//!
//! Privileges are tried rather than read from `SHOW GRANTS`, which knows nothing of what roles, proxies and partial
//! revokes come to: a statement is explained, the binlog is opened at its end and dropped. The binlog is opened under a
//! server id of its own, so that a relay that runs is not displaced.

mod account;
mod binlog;
mod broker;
mod columns;
mod report;
mod server;
mod subject;
mod tables;

use crate::config::{CheckpointStore, Config, Mark, SourceMode};
use crate::source::sweep::can_sweep;

use server::Database;

pub use report::{Finding, Report, Verdict};

/// How much the binlog matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binlog {
    /// Nothing is captured without it.
    Needed,
    /// The relay polls where it can't be read.
    Preferred,
    /// It is not read.
    Unused,
}

impl Binlog {
    fn of(config: &Config) -> Self {
        match config.source {
            SourceMode::Poll => Binlog::Unused,
            SourceMode::Auto if can_sweep(config) => Binlog::Preferred,
            SourceMode::Auto | SourceMode::Binlog => Binlog::Needed,
        }
    }
}

/// Whether the relay writes to MySQL at all.
fn writes(config: &Config) -> bool {
    config.mark != Mark::None || config.checkpoint == CheckpointStore::Mysql
}

/// Goes through everything that the relay needs.
pub async fn run(config: &Config) -> Report {
    let mut report = Report::default();
    if let Some(mut subject) = Box::pin(server::connect(config, &mut report)).await
        && let Err(error) = Box::pin(mysql(&mut subject, &mut report)).await
    {
        report.failed(
            "MySQL",
            crate::error::chain(&error),
            error.diagnosis().hint.to_owned(),
        );
    }
    Box::pin(broker::check(config, &mut report)).await;
    report
}

async fn mysql(
    subject: &mut subject::Subject,
    report: &mut Report,
) -> Result<(), crate::mysql::MysqlError> {
    let database = server::check(subject, report).await?;
    if database != Database::Missing {
        columns::check(subject, report).await?;
        tables::check(subject, report).await?;
    }
    binlog::check(subject, report, database == Database::Entered).await
}
