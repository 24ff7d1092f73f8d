//! Server addresses that keep their password to themselves.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use amq_protocol_uri::{AMQPScheme, AMQPUri};
use mysql_async::{Opts, OptsBuilder, SslOpts};
use tokio_util::sync::CancellationToken;

/// The driver would go on without TLS there.
pub(super) const SOCKET_HAS_NO_TLS: &str = "a socket has no TLS: name host and port";

/// Addresses of one MySQL server, or of several of which one is the primary, with a database in them.
#[derive(Clone)]
pub struct MysqlUrl {
    /// One at the least.
    servers: Vec<Opts>,
    password: Option<String>,
    database: String,
    /// Where the next choice begins; shared by all clones.
    last_good: Arc<AtomicUsize>,
    pin: Option<Pin>,
}

/// The one server that all sessions of a leader have to be on.
#[derive(Debug, Clone)]
pub struct Pin {
    identity: Arc<str>,
    moved: CancellationToken,
}

impl Pin {
    /// A pin to the server that says that of itself.
    pub fn new(identity: String) -> Self {
        Self {
            identity: identity.into(),
            moved: CancellationToken::new(),
        }
    }

    /// Whether it is that server; if not, [`moved`](Self::moved) ends.
    pub fn holds(&self, identity: &str) -> bool {
        let same = *self.identity == *identity;
        if !same {
            self.moved.cancel();
        }
        same
    }

    /// Waits until another server was found at the address.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn moved(&self) {
        self.moved.cancelled().await;
    }
}

impl MysqlUrl {
    /// Reads `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, with one host or several: `HOST1:PORT1,HOST2:PORT2`.
    ///
    /// # Errors
    /// What is missing or wrong in it; never the text itself.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("mysql://") else {
            return Err("it does not start with mysql://".to_owned());
        };
        let (authority, path) = match rest.find(['/', '?', '#']) {
            Some(end) => rest.split_at(end),
            None => (rest, ""),
        };
        // A password may hold a comma, and even an @.
        let (account, hosts) = match authority.rsplit_once('@') {
            Some((account, hosts)) => (format!("{account}@"), hosts),
            None => (String::new(), authority),
        };
        let mut servers = Vec::new();
        for host in hosts.split(',').map(str::trim) {
            if host.is_empty() && hosts.contains(',') {
                return Err("its list of hosts has an empty place".to_owned());
            }
            servers.push(read(&format!("mysql://{account}{host}{path}"))?);
        }
        let Some(first) = servers.first() else {
            return Err("it has no host, user or database".to_owned());
        };
        let Some(database) = first.db_name().filter(|name| !name.is_empty()) else {
            return Err("it names no database".to_owned());
        };
        let database = database.to_owned();
        if first.socket().is_some() && first.ssl_opts().is_some() {
            return Err(SOCKET_HAS_NO_TLS.to_owned());
        }
        Ok(Self {
            password: first.pass().map(str::to_owned),
            servers,
            database,
            last_good: Arc::default(),
            pin: None,
        })
    }

    pub(super) fn set_password(&mut self, password: String) {
        self.password = Some(password);
    }

    /// Connection options of the first server, with the password in them.
    pub fn options(&self) -> OptsBuilder {
        let opts = self.servers.first().cloned().unwrap_or_default();
        let host = opts.ip_or_hostname();
        // The driver looks names up, and an address in brackets is none.
        let host = host.trim_matches(['[', ']']).to_owned();
        OptsBuilder::from_opts(opts)
            .ip_or_hostname(host)
            .pass(self.password.clone())
    }

    /// Whether there is more than one server to choose from.
    pub fn is_list(&self) -> bool {
        self.servers.len() > 1
    }

    /// The places of the servers in the list, the last good one first.
    pub fn in_order(&self) -> Vec<usize> {
        let good = self.last_good.load(Ordering::Relaxed);
        let others = (0..self.servers.len()).filter(|nth| *nth != good);
        std::iter::once(good).chain(others).collect()
    }

    /// That server was chosen: the next choice begins with it.
    pub fn set_last_good(&self, nth: usize) {
        self.last_good.store(nth, Ordering::Relaxed);
    }

    /// The address of one server of the list.
    #[must_use]
    pub fn only(&self, nth: usize) -> Self {
        Self {
            servers: self.servers.get(nth).cloned().into_iter().collect(),
            last_good: Arc::default(),
            ..self.clone()
        }
    }

    /// The same, for sessions that must not end up anywhere else.
    #[must_use]
    pub fn pinned(&self, nth: usize, pin: Pin) -> Self {
        Self {
            pin: Some(pin),
            ..self.only(nth)
        }
    }

    /// The server that sessions have to be on.
    pub fn pin(&self) -> Option<&Pin> {
        self.pin.as_ref()
    }

    /// Host and port, or the list of them.
    pub fn host(&self) -> String {
        let hosts: Vec<String> = self
            .servers
            .iter()
            .map(|opts| format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port()))
            .collect();
        hosts.join(",")
    }

    /// What the address itself says of TLS; none where it does not ask for it.
    pub fn tls(&self) -> Option<&SslOpts> {
        self.servers.first().and_then(Opts::ssl_opts)
    }

    pub(super) fn is_socket(&self) -> bool {
        self.servers.iter().any(|opts| opts.socket().is_some())
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The user, as the server is told.
    pub fn user(&self) -> &str {
        self.servers.first().and_then(Opts::user).unwrap_or("")
    }
}

fn read(text: &str) -> Result<Opts, String> {
    Opts::from_url(text).map_err(|error| match error {
        mysql_async::UrlError::UnknownParameter { param } => format!("unknown parameter {param}"),
        mysql_async::UrlError::Invalid => "it has no host, user or database".to_owned(),
        _ => "it is not a MySQL URL".to_owned(),
    })
}

impl fmt::Display for MysqlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mysql://{}@{}/{}",
            self.user(),
            self.host(),
            self.database
        )
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

    /// Whether it asks for TLS.
    pub fn is_tls(&self) -> bool {
        match self.0.scheme {
            AMQPScheme::AMQP => false,
            AMQPScheme::AMQPS => true,
        }
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
    fn hosts_of_a_list_are_told_apart() {
        let url = "mysql://relay:s3,cr@et@db1:3307, [::1]:3308,db3/shop";
        let mysql = MysqlUrl::parse(url).unwrap();
        let shown = "mysql://relay@db1:3307,[::1]:3308,db3:3306/shop";
        assert_eq!(mysql.to_string(), shown);
        assert_eq!(format!("{mysql:?}"), shown);
        assert!(mysql.is_list() && !mysql.only(1).is_list());
        let second = Opts::from(mysql.only(1).options());
        assert_eq!((second.ip_or_hostname(), second.tcp_port()), ("::1", 3308));
        assert_eq!(second.pass(), Some("s3,cr@et"));
        assert_eq!(mysql.in_order(), [0, 1, 2]);
        mysql.clone().set_last_good(2);
        assert_eq!(mysql.in_order(), [2, 0, 1]);
        for wrong in [
            "mysql://u:s3cret@a,,b/d",
            "mysql://u:s3cret@a,b:x/d",
            "mysql://u:s3cret@,/d",
        ] {
            let why = MysqlUrl::parse(wrong).unwrap_err();
            assert!(!why.contains("s3cret"), "{why}");
        }
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
