//! The server and the account that are looked at, and how a privilege is tried.

use super::account::{Account, name};
use super::report::{Report, Verdict};
use crate::config::{Config, Identifier};
use crate::mysql::{MysqlError, Server, Session};

/// What is looked at.
pub(super) struct Subject {
    /// With the address of the one server that was chosen.
    pub(super) config: Config,
    pub(super) session: Session,
    pub(super) server: Server,
    pub(super) account: Account,
}

/// What came of a statement that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tried {
    Allowed,
    /// The server's words.
    Denied(String),
    /// No such table.
    NoTable,
    /// No such column; the server's words.
    NoColumn(String),
    /// Nothing can be written there now; the server's words.
    ReadOnly(String),
}

impl Subject {
    /// The database, quoted.
    pub(super) fn database(&self) -> String {
        name(self.config.mysql.database())
    }

    /// A table with its database, quoted.
    pub(super) fn table(&self, table: &Identifier) -> String {
        format!("{}.{}", self.database(), table.quoted())
    }

    /// Runs a statement that changes nothing.
    pub(super) async fn try_out(&mut self, statement: &str) -> Result<Tried, MysqlError> {
        let Err(error) = self.session.run("try a privilege", statement).await else {
            return Ok(Tried::Allowed);
        };
        let words = said(&error);
        match error.code() {
            // Denied for a database, a table, a column, or for want of a global privilege.
            Some(1044 | 1142 | 1143 | 1227) => Ok(Tried::Denied(words)),
            Some(1146) => Ok(Tried::NoTable),
            Some(1054) => Ok(Tried::NoColumn(words)),
            Some(1290 | 1792 | 1836) => Ok(Tried::ReadOnly(words)),
            Some(_) | None => Err(error),
        }
    }

    /// Tries a privilege on a table that is there, and tells what came of it.
    pub(super) async fn privilege(
        &mut self,
        report: &mut Report,
        wanted: Wanted<'_>,
    ) -> Result<(), MysqlError> {
        let Wanted {
            privilege,
            table,
            statement,
            lacking,
            purpose,
        } = wanted;
        let check = format!("privilege {privilege} on {}", table.as_str());
        match self.try_out(statement).await? {
            Tried::Allowed => report.ok(check, "granted"),
            Tried::Denied(words) => {
                let grant = self.account.grant(privilege, &self.table(table));
                report.add(check, lacking, format!("{words}; {purpose}"), Some(grant));
            }
            Tried::NoTable => report.add(
                check,
                lacking,
                "there is no such table",
                Some("relay migrate".to_owned()),
            ),
            Tried::NoColumn(words) => {
                report.add(check, lacking, words, Some("relay migrate".to_owned()));
            }
            Tried::ReadOnly(words) => report.warn(
                check,
                format!("can't be tried: {words}"),
                "check again once the server can be written to",
            ),
        }
        Ok(())
    }
}

/// A privilege on a table.
pub(super) struct Wanted<'a> {
    pub(super) privilege: &'a str,
    pub(super) table: &'a Identifier,
    /// Needs that privilege, and changes nothing.
    pub(super) statement: &'a str,
    /// How bad it is to be without.
    pub(super) lacking: Verdict,
    /// What it is for.
    pub(super) purpose: &'a str,
}

/// The server's own words, or those of whatever failed.
pub(super) fn said(error: &MysqlError) -> String {
    match error {
        MysqlError::Failed {
            source: mysql_async::Error::Server(server),
            ..
        } => format!("{} ({})", server.message, server.code),
        MysqlError::Failed { .. }
        | MysqlError::Tls(_)
        | MysqlError::Timeout { .. }
        | MysqlError::NoServer { .. }
        | MysqlError::OtherServer { .. } => crate::error::chain(error),
    }
}
