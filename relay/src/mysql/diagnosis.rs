//! Error → what to do about it, in one match.

use mysql_async::{DriverError, Error, IoError, TlsError};

use crate::tls::{Peer, TlsFailure};

/// What the relay does about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// It may pass: connect again after a backoff.
    Retry,
    /// It will not pass by itself: stop and tell a person.
    Stop,
}

/// A remedy and a word to the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Diagnosis {
    /// What the relay does.
    pub remedy: Remedy,
    /// What a person can do.
    pub hint: &'static str,
}

/// Judges an error of MySQL or of the connection to it. Numbers: MySQL manual, "Server Error Message Reference".
pub fn diagnose(error: &Error) -> Diagnosis {
    let (remedy, hint) = match error {
        Error::Server(server) => by_code(server.code),
        Error::Io(IoError::Io(error)) => match TlsFailure::of_io(error) {
            Some(failure) => by_tls(failure),
            None => (
                Remedy::Retry,
                "check that MySQL is running and that host and port of RELAY_MYSQL_URL are right",
            ),
        },
        Error::Io(IoError::Tls(error)) => by_tls(match error {
            TlsError::Tls(error) => TlsFailure::of(error),
            TlsError::InvalidDnsName(_) => TlsFailure::WrongHost,
            TlsError::Pem(_) | TlsError::VerifierBuilderError(_) => TlsFailure::Other,
        }),
        Error::Driver(DriverError::NoClientSslFlagFromServer) => (
            Remedy::Stop,
            "the server offers no TLS, and without it nothing was sent: enable TLS there (ssl_cert and ssl_key), or take require_ssl in RELAY_MYSQL_URL, RELAY_MYSQL_CA_FILE and RELAY_MYSQL_CLIENT_CERT_FILE away",
        ),
        Error::Driver(
            DriverError::UnknownAuthPlugin { .. } | DriverError::MysqlOldPasswordDisabled,
        ) => (
            Remedy::Stop,
            "use an account with caching_sha2_password, or mysql_native_password on MariaDB",
        ),
        Error::Url(_) => (Remedy::Stop, "correct RELAY_MYSQL_URL"),
        Error::Driver(_) | Error::Other(_) => (
            Remedy::Retry,
            "check the MySQL server's error log if this persists",
        ),
    };
    Diagnosis { remedy, hint }
}

fn by_tls(failure: TlsFailure) -> (Remedy, &'static str) {
    let remedy = if failure.may_pass() {
        Remedy::Retry
    } else {
        Remedy::Stop
    };
    (remedy, failure.hint(Peer::Mysql))
}

fn by_code(code: u16) -> (Remedy, &'static str) {
    match code {
        1045 | 1698 => (
            Remedy::Stop,
            "check user and password in RELAY_MYSQL_URL (or RELAY_MYSQL_PASSWORD_FILE), that the account may log in from this host, and, if it has REQUIRE SSL or X509, RELAY_MYSQL_CA_FILE and RELAY_MYSQL_CLIENT_CERT_FILE",
        ),
        3159 => (
            Remedy::Stop,
            "the server takes connections with TLS only: set RELAY_MYSQL_CA_FILE, or add ?require_ssl=true to RELAY_MYSQL_URL",
        ),
        1044 | 1142 | 1143 | 1227 | 1370 => (
            Remedy::Stop,
            "grant the account what it lacks: see \"Grants\" in the README",
        ),
        1049 => (
            Remedy::Stop,
            "create the database, or correct its name in RELAY_MYSQL_URL",
        ),
        1146 => (
            Remedy::Stop,
            "create the tables with `relay migrate`, or correct RELAY_TABLE",
        ),
        1054 => (
            Remedy::Stop,
            "the table lacks a column: run `relay migrate`, or compare it with migrations/0001_outbox.sql",
        ),
        1064 | 1193 => (
            Remedy::Stop,
            "this server does not know the statement: MySQL 5.7+ or MariaDB 10.6+ is needed",
        ),
        1290 | 1792 | 1836 | 3100 => (
            Remedy::Retry,
            "the server is read-only: point RELAY_MYSQL_URL at the primary",
        ),
        1040 | 1203 | 1226 => (
            Remedy::Retry,
            "the server is out of connections: raise max_connections or the account's limit",
        ),
        1205 | 1213 => (
            Remedy::Retry,
            "a lock was in the way; the relay tries again",
        ),
        _ => (Remedy::Retry, "see the server's message"),
    }
}
