//! `app migrate`.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, OptsBuilder};
use reliability::migrate::{self, Migration};
use reliability::mysql::{MysqlUrl, server_code};
use tokio::time::timeout;

/// Longest wait for a connection, and for `CREATE DATABASE`.
const CONNECT: Duration = Duration::from_secs(5);
/// `ER_BAD_DB_ERROR`: there is no such database.
const NO_DATABASE: u16 = 1049;
/// `ER_DBACCESS_DENIED_ERROR`: the account may not use it, or create it.
const NO_ACCESS: u16 = 1044;
/// `ER_ACCESS_DENIED_ERROR`: user or password is wrong.
const NO_LOGIN: u16 = 1045;
/// `ER_DB_CREATE_EXISTS`: another process was quicker.
const DATABASE_EXISTS: u16 = 1007;

/// The order tables.
const ORDERS: Migration = Migration {
    version: 3,
    name: "orders",
    sql: include_str!("../../migrations/0003_orders.sql"),
};
/// Goods told apart byte by byte.
const EXACT_SKUS: Migration = Migration {
    version: 7,
    name: "exact_skus",
    sql: include_str!("../../migrations/0007_exact_skus.sql"),
};

/// Brings the database up to date, and prints what was done.
pub(crate) async fn run(url: &MysqlUrl) -> Result<()> {
    let mut created = false;
    let mut conn = match connect(url, url.options()).await {
        Ok(conn) => conn,
        Err(error) => match server_code(error.as_ref()) {
            Some(NO_DATABASE) => {
                created = create(url).await?;
                connect(url, url.options()).await?
            }
            Some(NO_ACCESS) => return Err(unusable(url, error)),
            Some(NO_LOGIN) => return Err(error.context("check user and password in APP_MYSQL_URL")),
            Some(_) | None => return Err(error),
        },
    };
    let all = [
        migrate::OUTBOX,
        migrate::RELIABILITY,
        ORDERS,
        migrate::DEAD_LETTER_KEY,
        migrate::LEASES,
        migrate::IDEMPOTENCY_KEYS,
        EXACT_SKUS,
    ];
    let report = migrate::run(&mut conn, &all)
        .await
        .with_context(|| format!("cannot migrate {url}"))?;
    conn.disconnect()
        .await
        .context("cannot close the connection")?;
    let mut out = std::io::stdout().lock();
    if created {
        writeln!(out, "created database {}", url.database()).context("cannot print")?;
    }
    writeln!(out, "{report}").context("cannot print")
}

async fn connect(url: &MysqlUrl, options: OptsBuilder) -> Result<Conn> {
    let options = options
        .prefer_socket(false)
        .setup(vec!["SET time_zone = '+00:00'"]);
    timeout(CONNECT, Conn::new(options))
        .await
        .map_err(|_| anyhow!("{url} did not answer within {CONNECT:?}"))?
        .with_context(|| format!("cannot connect to {url}"))
}

/// Creates the database; whether it was this process that did.
async fn create(url: &MysqlUrl) -> Result<bool> {
    let mut conn = connect(url, url.options().db_name(None::<String>)).await?;
    let statement = create_statement(url);
    let created = match timeout(CONNECT, conn.query_drop(&statement)).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) if server_code(&error) == Some(DATABASE_EXISTS) => false,
        Ok(Err(error)) => return Err(unusable(url, error.into())),
        Err(_) => return Err(anyhow!("no answer within {CONNECT:?} to: {statement}")),
    };
    conn.disconnect()
        .await
        .context("cannot close the connection")?;
    Ok(created)
}

fn create_statement(url: &MysqlUrl) -> String {
    format!(
        "CREATE DATABASE {} CHARACTER SET utf8mb4",
        quoted(url.database())
    )
}

fn unusable(url: &MysqlUrl, error: anyhow::Error) -> anyhow::Error {
    error.context(format!(
        "database {} is missing, or user {} may not use it; an administrator has to run: {}; \
         GRANT ALL ON {}.* TO '{}'@'…'",
        url.database(),
        url.user(),
        create_statement(url),
        quoted(url.database()),
        url.user().replace('\'', "''"),
    ))
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a`b"), "`a``b`");
    }
}
