//! The servers to test on, from the environment.

use std::fmt;

use anyhow::{Context as _, Result};
use reqwest::Url;

/// Which of the two databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// MySQL (9.7 in `scripts/services`).
    Mysql,
    /// MariaDB (10.11 in `scripts/services`).
    Mariadb,
}

impl Flavor {
    /// Address of the server, from `MYSQL_URL` or `MARIADB_URL`.
    ///
    /// # Errors
    /// The variable is not set, or is not a URL.
    pub fn url(self) -> Result<Url> {
        match self {
            Flavor::Mysql => variable("MYSQL_URL"),
            Flavor::Mariadb => variable("MARIADB_URL"),
        }
    }
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flavor::Mysql => "mysql",
            Flavor::Mariadb => "mariadb",
        })
    }
}

/// Address of RabbitMQ, from `AMQP_URL`.
///
/// # Errors
/// The variable is not set, or is not a URL.
pub fn amqp_url() -> Result<Url> {
    variable("AMQP_URL")
}

/// Address of the old RabbitMQ that a test may stop, from `AMQP_LEGACY_URL`.
///
/// # Errors
/// The variable is not set, or is not a URL.
pub fn amqp_legacy_url() -> Result<Url> {
    variable("AMQP_LEGACY_URL")
}

fn variable(name: &str) -> Result<Url> {
    let text = std::env::var(name).with_context(|| {
        format!(
            "{name} is not set: run `make test`, or start the servers and set their addresses \
             with `eval \"$(scripts/services env)\"`"
        )
    })?;
    Url::parse(&text).with_context(|| format!("{name} is not a URL"))
}
