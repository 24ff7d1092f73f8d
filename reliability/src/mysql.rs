//! A pool of MySQL or MariaDB connections, and transactions that are run again as a whole after a deadlock.
//!
//! Sessions speak UTC, refuse what does not fit a column (strict mode), and wait 5 s for a row lock. Every wait has a
//! bound: for a free connection, for the server to answer, for one attempt of a transaction.

mod transaction;
mod url;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mysql_async::{Conn, OptsBuilder, Pool, PoolConstraints, PoolOpts};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::resilience::Backoff;

pub use mysql_async::IsolationLevel;
pub use transaction::TransactionError;
pub(crate) use transaction::is_open;
pub use url::{MysqlUrl, MysqlUrlError};

/// `ER_DUP_ENTRY`: a unique index has that value already.
pub const DUPLICATE_ENTRY: u16 = 1062;
/// `ER_LOCK_WAIT_TIMEOUT`: the statement is undone, the transaction is still open.
pub const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// `ER_LOCK_DEADLOCK`: the server has rolled the whole transaction back.
pub const DEADLOCK: u16 = 1213;

/// Bounds of a [`Database`].
#[derive(Debug, Clone)]
pub struct Settings {
    /// Most connections at once; each costs the server a thread and some megabytes. At least 1.
    pub max_connections: usize,
    /// Longest wait for a free connection.
    pub acquire_timeout: Duration,
    /// Longest wait for a new connection to be ready.
    pub connect_timeout: Duration,
    /// Longest run of one attempt of a transaction, up to its commit; and, again, of its commit.
    pub attempt_timeout: Duration,
    /// Longest wait for a row lock, in whole seconds (`innodb_lock_wait_timeout`). At least 1.
    pub lock_wait_seconds: u32,
    /// How often a transaction is tried when it ends in a deadlock or a lock timeout. At least 1.
    pub attempts: u32,
    /// The delay before each further attempt.
    pub backoff: Backoff,
}

impl Default for Settings {
    /// 16 connections; 5 s for a free one, 2 s for a new one; 30 s an attempt, 5 s a lock; 5 attempts, 20 ms apart and more.
    fn default() -> Self {
        Self {
            max_connections: 16,
            acquire_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_secs(30),
            lock_wait_seconds: 5,
            attempts: 5,
            // A deadlock's winner needs milliseconds to finish, not the half second of an outage.
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(1)),
        }
    }
}

/// Why there is no connection. Nothing was sent to the server on the caller's behalf.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// All connections stayed in use.
    #[error("all {connections} connections to {server} were in use for {after:?}")]
    Busy {
        /// User, host, port and database.
        server: Arc<str>,
        /// The pool's size.
        connections: usize,
        /// How long this call waited.
        after: Duration,
    },
    /// The server does not answer.
    #[error("{server} did not answer within {after:?}")]
    Timeout {
        /// User, host, port and database.
        server: Arc<str>,
        /// How long this call waited.
        after: Duration,
    },
    /// The server refuses, or nothing listens there.
    #[error("cannot connect to {server}")]
    Refused {
        /// User, host, port and database.
        server: Arc<str>,
        /// The server's or the system's words.
        #[source]
        source: mysql_async::Error,
    },
}

/// A pool of connections to one database. Clones share it.
#[derive(Clone)]
pub struct Database {
    pool: Pool,
    free: Arc<Semaphore>,
    server: Arc<str>,
    settings: Arc<Settings>,
    contention: Arc<Contention>,
}

/// How often transactions got in each other's way.
#[derive(Debug, Default)]
struct Contention {
    deadlocks: AtomicU64,
    lock_timeouts: AtomicU64,
}

/// A connection on loan; it goes back when dropped.
///
/// Session state that the borrower sets (variables, named locks, temporary tables) stays: set it back.
#[derive(Debug)]
pub struct Loan {
    // The connection goes back before the permit does.
    conn: Conn,
    _permit: OwnedSemaphorePermit,
}

impl Deref for Loan {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        &self.conn
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut Conn {
        &mut self.conn
    }
}

impl Database {
    /// A pool that connects when first used. Must be used in one tokio runtime.
    #[must_use]
    pub fn new(url: &MysqlUrl, settings: Settings) -> Self {
        let connections = settings.max_connections.max(1);
        Self {
            pool: Pool::new(options(url, &settings, connections)),
            free: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            server: url.to_string().into(),
            settings: Arc::new(settings),
            contention: Arc::default(),
        }
    }

    /// A connection on loan.
    ///
    /// # Errors
    /// None was free in time, or the server can't be reached or refuses.
    pub async fn connection(&self) -> Result<Loan, ConnectError> {
        let Settings {
            acquire_timeout,
            connect_timeout,
            ..
        } = *self.settings;
        let server = || self.server.clone();
        let Ok(Ok(permit)) = timeout(acquire_timeout, self.free.clone().acquire_owned()).await
        else {
            return Err(ConnectError::Busy {
                server: server(),
                connections: self.settings.max_connections,
                after: acquire_timeout,
            });
        };
        match timeout(connect_timeout, self.pool.get_conn()).await {
            Ok(Ok(conn)) => Ok(Loan {
                conn,
                _permit: permit,
            }),
            Ok(Err(source)) => Err(ConnectError::Refused {
                server: server(),
                source,
            }),
            Err(_) => Err(ConnectError::Timeout {
                server: server(),
                after: connect_timeout,
            }),
        }
    }

    /// Deadlocks (1213) that transactions met since the start, whether or not a later attempt succeeded.
    #[must_use]
    pub fn deadlocks(&self) -> u64 {
        self.contention.deadlocks.load(Ordering::Relaxed)
    }

    /// Lock timeouts (1205) that transactions met since the start, whether or not a later attempt succeeded.
    #[must_use]
    pub fn lock_timeouts(&self) -> u64 {
        self.contention.lock_timeouts.load(Ordering::Relaxed)
    }

    /// Its bounds.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// User, host, port and database.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Closes the connections, once those on loan are back.
    ///
    /// # Errors
    /// The server did not take the farewell.
    pub async fn close(self) -> mysql_async::Result<()> {
        self.pool.disconnect().await
    }
}

fn options(url: &MysqlUrl, settings: &Settings, connections: usize) -> OptsBuilder {
    // The driver runs `setup` again after a reset, last statement first: one statement has one order.
    let session = format!(
        "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = {}, \
         sql_mode = CONCAT_WS(',', NULLIF(@@SESSION.sql_mode, ''), 'STRICT_TRANS_TABLES')",
        settings.lock_wait_seconds.max(1)
    );
    // The smallest pool the driver accepts; what is idle beyond it is closed after a minute.
    let constraints = PoolConstraints::new(1, connections).unwrap_or_default();
    let pool = PoolOpts::default()
        .with_constraints(constraints)
        .with_inactive_connection_ttl(Duration::from_secs(60))
        // A reset on each return costs two round trips and every prepared statement. It is not needed to be safe: the
        // driver closes a connection that was dropped within a command, and rolls back one dropped between two.
        .with_reset_connection(false);
    url.options()
        // A socket that the driver finds by itself would be another server to the eye.
        .prefer_socket(false)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(30)))
        .setup(vec![session])
        .pool_opts(pool)
}

/// The server's error number, if the server's answer is anywhere in the chain of causes of `error`.
///
/// ```
/// use reliability::mysql::{DEADLOCK, server_code};
///
/// let error = mysql_async::Error::Server(mysql_async::ServerError {
///     code: DEADLOCK,
///     state: "40001".to_owned(),
///     message: "Deadlock found when trying to get lock".to_owned(),
/// });
/// assert_eq!(server_code(&error), Some(DEADLOCK));
/// assert_eq!(server_code(&std::fmt::Error), None);
/// ```
#[must_use]
pub fn server_code(error: &(dyn std::error::Error + 'static)) -> Option<u16> {
    server_error(error).map(|error| error.code)
}

/// The server's answer, if it is anywhere in the chain of causes of `error`.
#[must_use]
pub fn server_error<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a mysql_async::ServerError> {
    let mut link = Some(error);
    while let Some(error) = link {
        if let Some(mysql_async::Error::Server(error)) = error.downcast_ref() {
            return Some(error);
        }
        // `#[error(transparent)]` skips a link: the cause of the wrapper is the cause of the wrapped.
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        link = error.source();
    }
    None
}

/// A row in one line, one `column=value` after the other.
pub(crate) fn describe(row: mysql_async::Row) -> String {
    let columns = row.columns();
    let mut parts = Vec::new();
    for (column, value) in columns.iter().zip(row.unwrap_raw()) {
        let value = value.map_or_else(String::new, |value| value.as_sql(true));
        parts.push(format!("{}={value}", column.name_str()));
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: u16) -> mysql_async::Error {
        mysql_async::Error::Server(mysql_async::ServerError {
            code,
            message: String::new(),
            state: "HY000".to_owned(),
        })
    }

    #[derive(Debug, Error)]
    enum Business {
        #[error(transparent)]
        Hidden(mysql_async::Error),
        #[error("no good")]
        Wrapped(#[source] Box<Business>),
        #[error("out of stock")]
        Refused,
    }

    #[test]
    fn the_code_is_found_at_any_depth() {
        let hidden = Business::Hidden(server(1213));
        assert_eq!(server_code(&hidden), Some(1213));
        assert_eq!(
            server_code(&Business::Wrapped(Box::new(hidden))),
            Some(1213)
        );
        assert_eq!(
            server_code(&Business::Wrapped(Box::new(Business::Refused))),
            None
        );
    }
}
