//! Server addresses that keep their password to themselves.

use std::fmt;

use mysql_async::{Opts, OptsBuilder, UrlError};
use thiserror::Error;

/// A MySQL address with a database in it. Neither `Display` nor `Debug` shows the password.
///
/// ```
/// use reliability::mysql::MysqlUrl;
///
/// let url: MysqlUrl = "mysql://app:s3cret@db.example:3307/shop".parse()?;
/// assert_eq!(url.to_string(), "mysql://app@db.example:3307/shop");
/// assert_eq!(url.database(), "shop");
/// # Ok::<(), reliability::mysql::MysqlUrlError>(())
/// ```
#[derive(Clone)]
pub struct MysqlUrl {
    opts: Opts,
    database: String,
}

/// What is wrong with an address; never the address itself, which has a password in it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MysqlUrlError {
    /// Another kind of address.
    #[error("it does not start with mysql://")]
    Scheme,
    /// No database to work in.
    #[error("it names no database; it must end in /DATABASE")]
    NoDatabase,
    /// Unreadable.
    #[error("it is not mysql://USER:PASSWORD@HOST:PORT/DATABASE ({0})")]
    Form(String),
    /// A parameter after the question mark.
    #[error("its parameter {name} is unknown or has a wrong value")]
    Parameter {
        /// The parameter's name.
        name: String,
    },
}

impl std::str::FromStr for MysqlUrl {
    type Err = MysqlUrlError;

    /// Reads `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, with the parameters of `mysql_async` after a question mark.
    fn from_str(text: &str) -> Result<Self, MysqlUrlError> {
        if !text.starts_with("mysql://") {
            return Err(MysqlUrlError::Scheme);
        }
        let opts = Opts::from_url(text).map_err(|error| match error {
            UrlError::UnknownParameter { param: name }
            | UrlError::InvalidParamValue { param: name, .. }
            | UrlError::FeatureRequired { param: name, .. } => MysqlUrlError::Parameter { name },
            UrlError::Parse(error) => MysqlUrlError::Form(error.to_string()),
            UrlError::Invalid => MysqlUrlError::Form("invalid or incomplete".to_owned()),
            UrlError::UnsupportedScheme { .. } => MysqlUrlError::Scheme,
            error @ UrlError::InvalidPoolConstraints { .. } => {
                MysqlUrlError::Form(error.to_string())
            }
        })?;
        match opts.db_name() {
            Some(name) if !name.is_empty() => Ok(Self {
                database: name.to_owned(),
                opts: opts.clone(),
            }),
            Some(_) | None => Err(MysqlUrlError::NoDatabase),
        }
    }
}

impl MysqlUrl {
    /// Connection options with the password in them.
    #[must_use]
    pub fn options(&self) -> OptsBuilder {
        OptsBuilder::from_opts(self.opts.clone())
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The user, as the server is told.
    #[must_use]
    pub fn user(&self) -> &str {
        self.opts.user().unwrap_or("")
    }
}

impl fmt::Display for MysqlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (self.opts.ip_or_hostname(), self.opts.tcp_port());
        write!(f, "mysql://{}@{host}:{port}/{}", self.user(), self.database)
    }
}

impl fmt::Debug for MysqlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_the_password() {
        for text in [
            "postgres://u:s3cret@host/db",
            "mysql://u:s3cret@host:port/db",
            "mysql://u:s3cret@host",
            "mysql://u:s3cret@host/",
            "mysql://u:s3cret@host/db?nonsense=1",
            "mysql://u:s3cret@host/db?pool_min=x",
            "mysql://",
            "",
        ] {
            let error = text.parse::<MysqlUrl>().unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn the_missing_part_is_named() {
        let error = |text: &str| text.parse::<MysqlUrl>().unwrap_err();
        assert_eq!(error("mysql://u:p@host/"), MysqlUrlError::NoDatabase);
        assert_eq!(error("http://host/db"), MysqlUrlError::Scheme);
        assert_eq!(
            error("mysql://u:p@host/db?colour=red"),
            MysqlUrlError::Parameter {
                name: "colour".to_owned()
            }
        );
    }
}
