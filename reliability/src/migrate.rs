//! Versioned tables that many processes may create at once.
//!
//! A migration's statements must be repeatable (`CREATE TABLE IF NOT EXISTS`): DDL commits by itself, so one that was cut
//! short is run again from its first statement.

mod script;

use std::fmt;
use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::time::timeout;

/// How long one process waits while another migrates.
const LOCK_WAIT: Duration = Duration::from_secs(60);
/// Longest answer to a small statement; the lock's wait comes on top.
const SMALL: Duration = Duration::from_secs(10);
/// Longest statement of a migration. An ALTER of a big table copies it.
const STATEMENT: Duration = Duration::from_secs(3600);

const TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (
    version INT NOT NULL,
    name VARCHAR(255) NOT NULL,
    checksum CHAR(64) NOT NULL,
    applied_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (version)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4";

/// The relay's tables: `outbox_events`, `dead_letter_events`, `relay_checkpoints`.
pub const OUTBOX: Migration = Migration {
    version: 1,
    name: "outbox",
    sql: include_str!("../../migrations/0001_outbox.sql"),
};

/// The tables of this library: inbox, idempotency keys, sagas, command queue.
pub const RELIABILITY: Migration = Migration {
    version: 2,
    name: "reliability",
    sql: include_str!("../../migrations/0002_reliability.sql"),
};

/// What the relay keeps about dead letters: their row's key, and an audit trail. Goes with [`OUTBOX`].
pub const DEAD_LETTER_KEY: Migration = Migration {
    version: 4,
    name: "dead_letter_key",
    sql: include_str!("../../migrations/0004_dead_letter_key.sql"),
};

/// When sagas and commands are due, and the history of a saga's steps. Goes with [`RELIABILITY`].
pub const LEASES: Migration = Migration {
    version: 5,
    name: "leases",
    sql: include_str!("../../migrations/0005_leases.sql"),
};

/// Scopes, exact answers and ends of idempotency keys. Goes with [`RELIABILITY`].
pub const IDEMPOTENCY_KEYS: Migration = Migration {
    version: 6,
    name: "idempotency_keys",
    sql: include_str!("../../migrations/0006_idempotency_keys.sql"),
};

/// A script that is run once in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Place in the order; unique.
    pub version: u32,
    /// For people, at most 255 characters.
    pub name: &'static str,
    /// Statements, each ending with a semicolon at the end of a line; comments on lines of their own.
    pub sql: &'static str,
}

impl fmt::Display for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}_{}", self.version, self.name)
    }
}

/// What [`run`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Run now, in this order.
    pub applied: Vec<Migration>,
    /// Found done.
    pub skipped: Vec<Migration>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |migrations: &[Migration]| {
            migrations
                .iter()
                .map(Migration::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        };
        match (self.applied.as_slice(), self.skipped.as_slice()) {
            ([], []) => f.write_str("nothing to migrate"),
            ([], skipped) => write!(f, "up to date: {}", names(skipped)),
            (applied, []) => write!(f, "applied {}", names(applied)),
            (applied, skipped) => {
                write!(
                    f,
                    "applied {}; up to date: {}",
                    names(applied),
                    names(skipped)
                )
            }
        }
    }
}

/// Why the tables are not up to date.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The connection is to a server, not to a database on it.
    #[error("no database is selected; name one at the end of the URL: mysql://…/DATABASE")]
    NoDatabase,
    /// A mistake in the caller's list.
    #[error("version {version} is given twice")]
    TwiceGiven {
        /// The version.
        version: u32,
    },
    /// Someone edited a migration that this database had already.
    #[error(
        "migration {migration} was changed after it was applied to this database; restore its text, and put the change into a new migration"
    )]
    Changed {
        /// The migration.
        migration: Migration,
    },
    /// Another process migrates for too long.
    #[error(
        "another process holds the migration lock {lock} and did not release it within {after:?}"
    )]
    Locked {
        /// Name of the lock, for `IS_USED_LOCK`.
        lock: String,
        /// How long this call waited.
        after: Duration,
    },
    /// A statement of a migration failed. Run it again once the cause is mended: it starts with that migration.
    #[error("migration {migration} failed at its statement {number}: {opening}")]
    Statement {
        /// The migration.
        migration: Migration,
        /// Which of its statements, from 1.
        number: usize,
        /// The statement's first line.
        opening: String,
        /// The server's words.
        #[source]
        source: mysql_async::Error,
    },
    /// The bookkeeping failed.
    #[error("cannot {doing}")]
    Mysql {
        /// What was tried.
        doing: &'static str,
        /// The server's words.
        #[source]
        source: mysql_async::Error,
    },
    /// No answer in time.
    #[error("no answer within {after:?} to: {doing}")]
    Timeout {
        /// What was tried.
        doing: String,
        /// The bound.
        after: Duration,
    },
}

/// Brings the connection's database up to date, in the order of the versions.
///
/// Processes that do this at the same time wait for each other, up to a minute. The lock belongs to the connection: a
/// future that is dropped leaves it held until the connection is closed, so don't take one from a pool.
///
/// # Errors
/// See [`MigrateError`]; migrations before the failed one stay applied.
pub async fn run(conn: &mut Conn, migrations: &[Migration]) -> Result<Report, MigrateError> {
    let mut ordered = migrations.to_vec();
    ordered.sort_by_key(|migration| migration.version);
    if let Some(pair) = ordered
        .windows(2)
        .find(|pair| pair[0].version == pair[1].version)
    {
        return Err(MigrateError::TwiceGiven {
            version: pair[0].version,
        });
    }
    let database: Option<Option<String>> = bounded(
        "ask for the database",
        SMALL,
        conn.query_first("SELECT DATABASE()"),
    )
    .await?;
    let lock = lock_name(&database.flatten().ok_or(MigrateError::NoDatabase)?);
    acquire(conn, &lock).await?;
    let outcome = run_locked(conn, &ordered).await;
    let release = conn.exec_drop("DO RELEASE_LOCK(?)", (lock.as_str(),));
    match (
        outcome,
        bounded("release the migration lock", SMALL, release).await,
    ) {
        (Ok(report), Ok(())) => Ok(report),
        // The first failure tells more; a connection that can't release its lock loses it anyway.
        (Err(error), _) | (Ok(_), Err(error)) => Err(error),
    }
}

async fn acquire(conn: &mut Conn, lock: &str) -> Result<(), MigrateError> {
    let ask = conn.exec_first("SELECT GET_LOCK(?, ?)", (lock, LOCK_WAIT.as_secs()));
    let answer: Option<Option<u8>> =
        bounded("take the migration lock", LOCK_WAIT + SMALL, ask).await?;
    match answer.flatten() {
        Some(1) => Ok(()),
        Some(_) | None => Err(MigrateError::Locked {
            lock: lock.to_owned(),
            after: LOCK_WAIT,
        }),
    }
}

async fn run_locked(conn: &mut Conn, ordered: &[Migration]) -> Result<Report, MigrateError> {
    bounded(
        "create table schema_migrations",
        SMALL,
        conn.query_drop(TABLE),
    )
    .await?;
    let rows = conn.query("SELECT version, checksum FROM schema_migrations");
    let done: Vec<(u32, String)> = bounded("read table schema_migrations", SMALL, rows).await?;
    let recorded = |migration: &Migration| {
        done.iter()
            .find(|(version, _)| *version == migration.version)
            .map(|(_, sum)| sum)
    };
    // All are checked before any is run.
    for migration in ordered {
        if recorded(migration).is_some_and(|sum| *sum != checksum(migration.sql)) {
            return Err(MigrateError::Changed {
                migration: *migration,
            });
        }
    }
    let mut report = Report::default();
    for migration in ordered {
        if recorded(migration).is_some() {
            report.skipped.push(*migration);
        } else {
            apply(conn, migration).await?;
            report.applied.push(*migration);
        }
    }
    Ok(report)
}

async fn apply(conn: &mut Conn, migration: &Migration) -> Result<(), MigrateError> {
    for (index, statement) in script::statements(migration.sql).iter().enumerate() {
        let number = index + 1;
        match timeout(STATEMENT, conn.query_drop(statement)).await {
            Ok(Ok(())) => {}
            Ok(Err(source)) => {
                let opening = statement.lines().next().unwrap_or_default().to_owned();
                return Err(MigrateError::Statement {
                    migration: *migration,
                    number,
                    opening,
                    source,
                });
            }
            Err(_) => {
                let doing = format!("statement {number} of migration {migration}");
                return Err(MigrateError::Timeout {
                    doing,
                    after: STATEMENT,
                });
            }
        }
    }
    let record = conn.exec_drop(
        "INSERT INTO schema_migrations (version, name, checksum, applied_at) \
         VALUES (?, ?, ?, UTC_TIMESTAMP(6))",
        (migration.version, migration.name, checksum(migration.sql)),
    );
    bounded("write table schema_migrations", SMALL, record).await
}

async fn bounded<T>(
    doing: &'static str,
    after: Duration,
    call: impl Future<Output = mysql_async::Result<T>>,
) -> Result<T, MigrateError> {
    match timeout(after, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(MigrateError::Mysql { doing, source }),
        Err(_) => Err(MigrateError::Timeout {
            doing: doing.to_owned(),
            after,
        }),
    }
}

/// Of at most 64 characters, as MySQL demands; locks are the server's, so the database is in it.
fn lock_name(database: &str) -> String {
    let plain = format!("outbox-migrate:{database}");
    if plain.chars().count() <= 64 {
        return plain;
    }
    let digest: String = checksum(database).chars().take(48).collect();
    format!("outbox-migrate:{digest}")
}

/// SHA-256 in hexadecimal; the line ends that a checkout chooses don't count.
fn checksum(text: &str) -> String {
    let digest = Sha256::digest(text.replace("\r\n", "\n").as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_names_fit_and_differ() {
        assert_eq!(lock_name("shop"), "outbox-migrate:shop");
        let (one, two) = (lock_name(&"a".repeat(64)), lock_name(&"b".repeat(64)));
        assert_ne!(one, two);
        assert!(one.len() <= 64 && two.len() <= 64);
    }

    #[test]
    fn a_checksum_ignores_line_ends_only() {
        assert_eq!(checksum("a;\r\nb;\r\n"), checksum("a;\nb;\n"));
        assert_ne!(checksum("a;\nb;\n"), checksum("a; \nb;\n"));
        assert_eq!(
            checksum("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_report_reads_well() {
        let (applied, skipped) = (vec![RELIABILITY], vec![OUTBOX]);
        let text = Report { applied, skipped }.to_string();
        assert_eq!(text, "applied 0002_reliability; up to date: 0001_outbox");
    }

    #[test]
    fn our_own_scripts_have_the_tables_in_them() {
        let count = |sql| script::statements(sql).len();
        assert_eq!((count(OUTBOX.sql), count(RELIABILITY.sql)), (3, 5));
    }
}
