//! What kind of server this is, and whether its binlog is fit to be tailed.

use thiserror::Error;

use super::{MysqlError, Session};
use crate::position::{Position, PositionError};

/// Whose binlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// Oracle MySQL and Percona Server.
    MySql,
    /// MariaDB.
    MariaDb,
}

/// A server as found.
#[derive(Debug, Clone)]
pub struct Server {
    /// Whose.
    pub flavor: Flavor,
    /// `@@version`.
    pub version: String,
    /// `@@server_id`.
    pub server_id: u32,
    /// Whether transactions have GTIDs.
    pub gtid: bool,
    /// Whether table names are stored in lower case, or compared so (`lower_case_table_names`).
    pub folds_names: bool,
}

/// Why the binlog can't be tailed, and the statement that mends it.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Unfit {
    /// No binlog.
    #[error(
        "the server writes no binlog (log_bin is OFF); start it with --log-bin and --server-id"
    )]
    Off,
    /// Statements, not rows.
    #[error(
        "binlog_format is {0}, so the binlog holds no rows; run: SET GLOBAL binlog_format = 'ROW' (new connections follow it) and put binlog_format=ROW into the server's configuration"
    )]
    Format(String),
    /// Incomplete rows.
    #[error(
        "binlog_row_image is {0}, so rows in the binlog lack columns; run: SET GLOBAL binlog_row_image = 'FULL' (new connections follow it)"
    )]
    RowImage(String),
    /// No place to start from.
    #[error(
        "the server does not tell its binlog position; run: GRANT REPLICATION CLIENT ON *.* TO the relay's account (BINLOG MONITOR on MariaDB)"
    )]
    NoPosition,
    /// A position that can't be read.
    #[error("the server's binlog position can't be read")]
    Position(#[from] PositionError),
}

impl Server {
    /// Asks the server.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn inspect(session: &mut Session) -> Result<Self, MysqlError> {
        let doing = "ask for the server's version";
        let (version, server_id, case): (String, u32, u8) = session
            .first(
                doing,
                "SELECT CAST(@@version AS CHAR), @@server_id, @@lower_case_table_names",
            )
            .await?
            .unwrap_or_default();
        let flavor = if version.to_ascii_lowercase().contains("mariadb") {
            Flavor::MariaDb
        } else {
            Flavor::MySql
        };
        let gtid = match flavor {
            Flavor::MariaDb => true,
            Flavor::MySql => session
                .first_if_known::<(String,)>(
                    "ask for gtid_mode",
                    "SELECT CAST(@@gtid_mode AS CHAR)",
                )
                .await?
                // ON_PERMISSIVE and OFF_PERMISSIVE let transactions without a GTID through.
                .is_some_and(|(mode,)| mode == "ON"),
        };
        Ok(Self {
            flavor,
            version,
            server_id,
            gtid,
            folds_names: case != 0,
        })
    }

    /// The three numbers of its version.
    pub fn release(&self) -> (u32, u32, u32) {
        let mut parts = self
            .version
            .split(|c: char| !c.is_ascii_digit())
            .map(|part| part.parse::<u32>().unwrap_or(0));
        (
            parts.next().unwrap_or(0),
            parts.next().unwrap_or(0),
            parts.next().unwrap_or(0),
        )
    }

    /// Whether it knows `SKIP LOCKED`: MySQL from 8.0.1, MariaDB from 10.6.
    pub fn skips_locked(&self) -> bool {
        match self.flavor {
            Flavor::MySql => self.release() >= (8, 0, 1),
            Flavor::MariaDb => self.release() >= (10, 6, 0),
        }
    }

    /// Whether its binlog holds whole rows.
    ///
    /// # Errors
    /// The connection is gone; inside, why it is not fit.
    pub async fn fitness(&self, session: &mut Session) -> Result<Result<(), Unfit>, MysqlError> {
        let doing = "ask for the binlog's settings";
        let settings: Option<(u8, String, String)> = session
            .first(
                doing,
                "SELECT @@global.log_bin, CAST(@@global.binlog_format AS CHAR), CAST(@@global.binlog_row_image AS CHAR)",
            )
            .await?;
        let (log_bin, format, image) = settings.unwrap_or_default();
        Ok(match (log_bin, format.as_str(), image.as_str()) {
            (0, _, _) => Err(Unfit::Off),
            (_, format, _) if format != "ROW" => Err(Unfit::Format(format.to_owned())),
            (_, _, image) if image != "FULL" && image != "NOBLOB" => {
                Err(Unfit::RowImage(image.to_owned()))
            }
            _ => Ok(()),
        })
    }

    /// The end of the binlog: where a tail that starts now begins.
    ///
    /// # Errors
    /// The connection is gone; inside, why there is no such position.
    pub async fn head(&self, session: &mut Session) -> Result<Result<Position, Unfit>, MysqlError> {
        let doing = "ask for the binlog position";
        let list: Option<(String,)> = match (self.flavor, self.gtid) {
            (Flavor::MySql, true) => {
                session
                    .first(doing, "SELECT CAST(@@global.gtid_executed AS CHAR)")
                    .await?
            }
            (Flavor::MariaDb, _) => {
                session
                    .first(doing, "SELECT CAST(@@global.gtid_binlog_pos AS CHAR)")
                    .await?
            }
            (Flavor::MySql, false) => return self.head_of_files(session).await,
        };
        let text = list.map(|(text,)| text).unwrap_or_default();
        Ok(match self.flavor {
            Flavor::MySql => text.parse().map(Position::Gtid).map_err(Unfit::from),
            // Before its first GTID a MariaDB server has an empty list, which would mean "from the first binlog".
            Flavor::MariaDb if text.is_empty() => return self.head_of_files(session).await,
            Flavor::MariaDb => Position::from_mariadb_list(&text).map_err(Unfit::from),
        })
    }

    /// File and offset of the end of the binlog. MySQL 8.4 dropped the old statement, 8.2 brought the new one.
    pub(crate) async fn head_of_files(
        &self,
        session: &mut Session,
    ) -> Result<Result<Position, Unfit>, MysqlError> {
        let doing = "ask for the binlog position";
        for statement in ["SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"] {
            let row: Option<mysql_async::Row> = session.first_if_known(doing, statement).await?;
            let Some(row) = row else { continue };
            if let (Some(Ok(file)), Some(Ok(offset))) =
                (row.get_opt::<String, _>(0), row.get_opt::<u64, _>(1))
            {
                return Ok(Ok(Position::File {
                    file: file.into(),
                    offset,
                }));
            }
        }
        Ok(Err(Unfit::NoPosition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_know_no_skip_locked() {
        for (flavor, version, knows) in [
            (Flavor::MySql, "5.7.44-log", false),
            (Flavor::MySql, "8.0.0-dmr", false),
            (Flavor::MySql, "8.0.36", true),
            (Flavor::MySql, "9.7.0", true),
            (Flavor::MariaDb, "10.5.27-MariaDB", false),
            (Flavor::MariaDb, "10.11.19-MariaDB-log", true),
        ] {
            let server = Server {
                flavor,
                version: version.to_owned(),
                server_id: 1,
                gtid: true,
                folds_names: false,
            };
            assert_eq!(server.skips_locked(), knows, "{version}");
        }
    }
}
