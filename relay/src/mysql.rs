//! MySQL sessions: every call has a bound, every error says what was tried, on which server, and what to do.

mod choice;
mod diagnosis;
mod server;

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::{FromRow, Queryable, StatementLike};
use mysql_async::{ClientIdentity, Conn, OptsBuilder, Params, SslOpts};
use thiserror::Error;

use crate::config::{Config, MysqlUrl};
use crate::tls::PemError;

pub use choice::{Chosen, choose, is_read_only};
pub use diagnosis::{Diagnosis, Remedy, diagnose};
pub use server::{Flavor, Server, Unfit};

/// Longest wait for one statement. Marks and checkpoints are small; a longer wait means a lock or a dead server,
/// and both end with the session.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest value of `max_allowed_packet`, and of a row: 1 GiB (MySQL manual, "Packet Too Large").
const LARGEST_PACKET: usize = 1 << 30;

/// Why a call to MySQL failed.
#[derive(Debug, Error)]
pub enum MysqlError {
    /// The server or the connection said no.
    #[error("cannot {doing} on {server}")]
    Failed {
        /// What was tried.
        doing: &'static str,
        /// User, host, port and database.
        server: Arc<str>,
        /// The server's or the driver's words.
        #[source]
        source: mysql_async::Error,
    },
    /// A file of TLS that was good when the relay started.
    #[error(transparent)]
    Tls(#[from] PemError),
    /// No answer within the bound.
    #[error("no answer within {bound:?} to: {doing}, on {server}")]
    Timeout {
        /// What was tried.
        doing: &'static str,
        /// User, host, port and database.
        server: Arc<str>,
        /// The bound.
        bound: Duration,
    },
    /// Each server of the list was passed over.
    #[error("no server of the list in mysql_url can be used: {passed}")]
    NoServer {
        /// Host and reason of each.
        passed: String,
        /// What may help.
        remedy: Remedy,
    },
    /// The address leads to another server than the one with the relay's lock.
    #[error("{server} leads to another server than the one that holds the lock of this relay")]
    OtherServer {
        /// User, host, port and database.
        server: Arc<str>,
    },
}

impl MysqlError {
    /// What to do about it.
    pub fn diagnosis(&self) -> Diagnosis {
        match self {
            MysqlError::Failed { source, .. } => diagnose(source),
            MysqlError::Tls(_) => Diagnosis {
                remedy: Remedy::Retry,
                hint: "correct the file; the relay looks at it again",
            },
            MysqlError::Timeout { .. } => Diagnosis {
                remedy: Remedy::Retry,
                hint: "check that the server answers and that no lock is held on the relay's tables",
            },
            MysqlError::NoServer { remedy, .. } => Diagnosis {
                remedy: *remedy,
                hint: "start the primary, or make a replica writable (SET GLOBAL read_only = OFF)",
            },
            MysqlError::OtherServer { .. } => Diagnosis {
                remedy: Remedy::Retry,
                hint: "after a fail-over the relay takes its lock there; no balancer may spread its connections over several servers",
            },
        }
    }

    /// The server's error number, if it was the server that said no.
    pub fn code(&self) -> Option<u16> {
        match self {
            MysqlError::Failed {
                source: mysql_async::Error::Server(error),
                ..
            } => Some(error.code),
            MysqlError::Failed { .. }
            | MysqlError::Tls(_)
            | MysqlError::Timeout { .. }
            | MysqlError::NoServer { .. }
            | MysqlError::OtherServer { .. } => None,
        }
    }
}

/// How often a piece of work is done again after a deadlock or a lock wait before that counts as a failure.
pub const CONFLICTS: u32 = 5;

/// Does a piece of work again after a deadlock (1213) or a lock wait (1205), which it must bear, and counts both.
macro_rules! conflicts {
    ($metrics:expr, $work:expr) => {{
        let mut attempt = 0;
        loop {
            match $work.await {
                Err(error) if attempt < $crate::mysql::CONFLICTS => {
                    let known = match error.code() {
                        Some(1213) => Some(&$metrics.deadlocks),
                        Some(1205) => Some(&$metrics.lock_timeouts),
                        Some(_) | None => None,
                    };
                    let Some(counter) = known else {
                        break Err(error);
                    };
                    counter.inc();
                    attempt += 1;
                }
                done => break done,
            }
        }
    }};
}
pub(crate) use conflicts;

/// A connection to the outbox's server.
pub struct Session {
    conn: Conn,
    server: Arc<str>,
}

impl Session {
    /// Connects, of a list to the server that may be written to; times are UTC in this session.
    ///
    /// # Errors
    /// The server can't be reached, refuses, or is another than the configuration is pinned to.
    pub async fn connect(config: &Config) -> Result<Self, MysqlError> {
        let (mut session, _) = choice::connect(config).await?;
        if let Some(pin) = config.mysql.pin()
            && !pin.holds(&choice::identity(&mut session).await?)
        {
            let server = session.server;
            return Err(MysqlError::OtherServer { server });
        }
        Ok(session)
    }

    async fn open(config: &Config, url: &MysqlUrl) -> Result<Self, MysqlError> {
        Self::open_with(config, url, url.options()).await
    }

    /// Connects to the first server without entering the database, which may not be there, or be closed to the account.
    pub(crate) async fn connect_outside(config: &Config) -> Result<Self, MysqlError> {
        let options = config.mysql.options().db_name(None::<String>);
        Self::open_with(config, &config.mysql, options).await
    }

    async fn open_with(
        config: &Config,
        url: &MysqlUrl,
        options: OptsBuilder,
    ) -> Result<Self, MysqlError> {
        let server: Arc<str> = url.to_string().into();
        let mut options = options
            // The relay asks for TCP as the URL says; a socket found by the driver would be another server to the eye.
            .prefer_socket(false)
            // An update that changes nothing still has to tell whether its row is there: the fence rests on it.
            .client_found_rows(true)
            // What the server may send: a row can be larger than what it takes from a client, and the binlog is sent whatever
            // max_allowed_packet says.
            .max_allowed_packet(Some(LARGEST_PACKET))
            .tcp_nodelay(true)
            .tcp_keepalive(Some(Duration::from_secs(30)))
            .setup(vec!["SET time_zone = '+00:00'".to_owned()]);
        if let Some(ssl) = tls(config)? {
            options = options.ssl_opts(ssl);
        }
        let conn = bounded(
            "connect",
            &server,
            config.connect_timeout,
            Conn::new(options),
        )
        .await?;
        Ok(Self { conn, server })
    }

    /// Runs a statement; how many rows it found.
    ///
    /// # Errors
    /// The server refuses it, or the connection is gone.
    pub async fn execute<S, P>(
        &mut self,
        doing: &'static str,
        statement: S,
        params: P,
    ) -> Result<u64, MysqlError>
    where
        S: StatementLike,
        P: Into<Params> + Send,
    {
        let call = self.conn.exec_drop(statement, params);
        bounded(doing, &self.server, STATEMENT_TIMEOUT, call).await?;
        Ok(self.conn.affected_rows())
    }

    /// Runs a statement without parameters, as text.
    ///
    /// # Errors
    /// The server refuses it, or the connection is gone.
    pub async fn run(&mut self, doing: &'static str, statement: &str) -> Result<u64, MysqlError> {
        bounded(
            doing,
            &self.server,
            STATEMENT_TIMEOUT,
            self.conn.query_drop(statement),
        )
        .await?;
        Ok(self.conn.affected_rows())
    }

    /// Makes the server say that a lock is in the way (error 1205) well before a statement's own bound is over.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn limit_lock_waits(&mut self) -> Result<(), MysqlError> {
        let statement = "SET SESSION innodb_lock_wait_timeout = 5";
        self.run("limit waits for locks", statement).await?;
        Ok(())
    }

    /// All rows of a query.
    ///
    /// # Errors
    /// The server refuses it, or the connection is gone.
    pub async fn rows<T, S, P>(
        &mut self,
        doing: &'static str,
        statement: S,
        params: P,
    ) -> Result<Vec<T>, MysqlError>
    where
        T: FromRow + Send + 'static,
        S: StatementLike,
        P: Into<Params> + Send,
    {
        let call = self.conn.exec(statement, params);
        bounded(doing, &self.server, STATEMENT_TIMEOUT, call).await
    }

    /// All rows of a query without parameters, as text: for statements that can't be prepared.
    pub(crate) async fn all<T>(
        &mut self,
        doing: &'static str,
        statement: &str,
    ) -> Result<Vec<T>, MysqlError>
    where
        T: FromRow + Send + 'static,
    {
        let call = self.conn.query(statement);
        bounded(doing, &self.server, STATEMENT_TIMEOUT, call).await
    }

    /// The first row of a query.
    ///
    /// # Errors
    /// The server refuses it, or the connection is gone.
    pub async fn first<T>(
        &mut self,
        doing: &'static str,
        statement: &str,
    ) -> Result<Option<T>, MysqlError>
    where
        T: FromRow + Send + 'static,
    {
        let call = self.conn.query_first(statement);
        bounded(doing, &self.server, STATEMENT_TIMEOUT, call).await
    }

    /// Like [`first`](Self::first), but a refusal by the server (no such variable or statement there) is no row.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn first_if_known<T>(
        &mut self,
        doing: &'static str,
        statement: &str,
    ) -> Result<Option<T>, MysqlError>
    where
        T: FromRow + Send + 'static,
    {
        match self.first(doing, statement).await {
            Err(error) if error.code().is_some() => Ok(None),
            other => other,
        }
    }

    /// The connection itself, for what has no wrapper here.
    pub fn into_conn(self) -> Conn {
        self.conn
    }

    /// User, host, port and database.
    pub fn server_name(&self) -> &Arc<str> {
        &self.server
    }
}

/// What the driver is told of TLS: what the URL says, and the files. Once told, it never goes on without.
fn tls(config: &Config) -> Result<Option<SslOpts>, PemError> {
    let (asked, files) = (config.mysql.tls(), &config.mysql_tls);
    if files.is_empty() {
        return Ok(asked.cloned());
    }
    // The driver reads them too, and would not say which file is at fault.
    files.load()?;
    let mut ssl = asked.cloned().unwrap_or_default();
    if let Some(ca) = &files.ca {
        ssl = ssl.with_root_certs(vec![ca.path().to_owned().into()]);
    }
    if let Some(client) = &files.client {
        let (certificate, key) = (client.certificate.path(), client.key.path());
        let identity = ClientIdentity::new(certificate.to_owned().into(), key.to_owned().into());
        ssl = ssl.with_client_identity(Some(identity));
    }
    Ok(Some(ssl))
}

async fn bounded<T>(
    doing: &'static str,
    server: &Arc<str>,
    bound: Duration,
    call: impl Future<Output = mysql_async::Result<T>>,
) -> Result<T, MysqlError> {
    match tokio::time::timeout(bound, call).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(source)) => Err(MysqlError::Failed {
            doing,
            server: server.clone(),
            source,
        }),
        Err(_) => Err(MysqlError::Timeout {
            doing,
            server: server.clone(),
            bound,
        }),
    }
}
