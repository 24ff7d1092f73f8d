//! Server addresses that keep their password to themselves.

use std::fmt;

use amq_protocol_uri::{AMQPScheme, AMQPUri};
use mysql_async::{Opts, OptsBuilder};

/// A MySQL address with a database in it.
#[derive(Clone)]
pub struct MysqlUrl {
    opts: Opts,
    password: Option<String>,
    database: String,
}

impl MysqlUrl {
    /// Reads `mysql://USER:PASSWORD@HOST:PORT/DATABASE`.
    ///
    /// # Errors
    /// What is missing or wrong in it; never the text itself.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with("mysql://") {
            return Err("it does not start with mysql://".to_owned());
        }
        let opts = Opts::from_url(text).map_err(|error| match error {
            mysql_async::UrlError::UnknownParameter { param } => {
                format!("unknown parameter {param}")
            }
            mysql_async::UrlError::Invalid => "it has no host, user or database".to_owned(),
            _ => "it is not a MySQL URL".to_owned(),
        })?;
        let Some(database) = opts.db_name().filter(|name| !name.is_empty()) else {
            return Err("it names no database".to_owned());
        };
        let database = database.to_owned();
        Ok(Self {
            password: opts.pass().map(str::to_owned),
            opts,
            database,
        })
    }

    pub(super) fn set_password(&mut self, password: String) {
        self.password = Some(password);
    }

    /// Connection options with the password in them.
    pub fn options(&self) -> OptsBuilder {
        OptsBuilder::from_opts(self.opts.clone()).pass(self.password.clone())
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The user, as the server is told.
    pub fn user(&self) -> &str {
        self.opts.user().unwrap_or("")
    }
}

impl fmt::Display for MysqlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, host, port) = (
            self.user(),
            self.opts.ip_or_hostname(),
            self.opts.tcp_port(),
        );
        write!(f, "mysql://{user}@{host}:{port}/{}", self.database)
    }
}

impl fmt::Debug for MysqlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A RabbitMQ address.
#[derive(Clone)]
pub struct AmqpUrl(AMQPUri);

impl AmqpUrl {
    /// Reads `amqp://USER:PASSWORD@HOST:PORT/VHOST` or `amqps://…`.
    ///
    /// # Errors
    /// What is wrong in it; never the text itself.
    pub fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Self)
            .map_err(|_| "it is not an AMQP URL".to_owned())
    }

    pub(super) fn set_password(&mut self, password: String) {
        self.0.authority.userinfo.password = password;
    }

    /// The address, password and all.
    pub fn uri(&self) -> &AMQPUri {
        &self.0
    }
}

impl fmt::Display for AmqpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.0.scheme {
            AMQPScheme::AMQP => "amqp",
            AMQPScheme::AMQPS => "amqps",
        };
        let authority = &self.0.authority;
        let (user, host, port) = (
            &authority.userinfo.username,
            &authority.host,
            authority.port,
        );
        write!(f, "{scheme}://{user}@{host}:{port}/{}", self.0.vhost)
    }
}

impl fmt::Debug for AmqpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_hide_their_passwords() {
        let mysql = MysqlUrl::parse("mysql://relay:s3cret@db.example:3307/shop").unwrap();
        assert_eq!(mysql.to_string(), "mysql://relay@db.example:3307/shop");
        assert!(!format!("{mysql:?}").contains("s3cret"));
        let amqp = AmqpUrl::parse("amqp://relay:s3cret@mq.example:5673/%2f").unwrap();
        assert_eq!(amqp.to_string(), "amqp://relay@mq.example:5673//");
        assert!(!format!("{amqp:?}").contains("s3cret"));
    }

    #[test]
    fn a_mysql_url_needs_a_database() {
        assert!(
            MysqlUrl::parse("mysql://u:p@host:3306/")
                .unwrap_err()
                .contains("database")
        );
        assert!(MysqlUrl::parse("postgres://u:p@host/db").is_err());
    }
}
