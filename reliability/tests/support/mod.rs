//! A database of a test's own on a real server.

use anyhow::{Context as _, Result};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use reliability::migrate;
use reliability::mysql::{Database, MysqlUrl, Settings};

/// The same tests on both servers.
macro_rules! on_both_servers {
    ($($name:ident)*) => {
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() -> anyhow::Result<()> {
                crate::support::in_own_database("MYSQL_URL", stringify!($name), super::$name).await
            })*
        }
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() -> anyhow::Result<()> {
                crate::support::in_own_database("MARIADB_URL", stringify!($name), super::$name).await
            })*
        }
    };
}

pub(crate) use on_both_servers;

/// A database on one of the servers.
pub(crate) struct Place {
    pub(crate) url: MysqlUrl,
    /// The same, password and all.
    pub(crate) text: String,
}

pub(crate) async fn in_own_database<F>(
    variable: &str,
    test: &str,
    body: fn(Place) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let server = std::env::var(variable).with_context(|| {
        format!(
            "{variable} is not set: run `make test`, or scripts/services up and eval \"$(scripts/services env)\""
        )
    })?;
    // Within the 64 characters of a name.
    let name = format!("rel_{}_{:.48}", std::process::id(), test);
    let (base, query) = server.split_once('?').unwrap_or((server.as_str(), ""));
    let authority = base.split('/').nth(2).context("the URL has no host")?;
    let text = format!("mysql://{authority}/{name}?{query}");
    let url: MysqlUrl = text.parse()?;
    let mut admin = connect(Opts::from_url(&server)?).await?;
    admin
        .query_drop(format!("CREATE DATABASE `{name}` CHARACTER SET utf8mb4"))
        .await?;
    let outcome = body(Place { url, text }).await;
    admin.query_drop(format!("DROP DATABASE `{name}`")).await?;
    admin.disconnect().await?;
    outcome
}

pub(crate) async fn connect(opts: Opts) -> Result<Conn> {
    let opts = OptsBuilder::from_opts(opts).prefer_socket(false);
    Conn::new(opts)
        .await
        .context("cannot connect: run scripts/services up")
}

impl Place {
    pub(crate) async fn connect(&self) -> Result<Conn> {
        connect(self.url.options().into()).await
    }

    /// With the library's tables and one of the tests' own.
    pub(crate) async fn database(&self, settings: Settings) -> Result<Database> {
        let mut conn = self.connect().await?;
        let all = [migrate::OUTBOX, migrate::RELIABILITY, migrate::LEASES];
        migrate::run(&mut conn, &all).await?;
        conn.query_drop("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0)")
            .await?;
        conn.query_drop("INSERT INTO t (id) VALUES (1), (2)")
            .await?;
        conn.disconnect().await?;
        Ok(Database::new(&self.url, settings))
    }

    pub(crate) async fn number(&self, sql: &str) -> Result<u64> {
        let mut conn = self.connect().await?;
        let number: Option<u64> = conn.query_first(sql).await?;
        conn.disconnect().await?;
        number.context("no row")
    }
}
