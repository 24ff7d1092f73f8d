//! Why there is no TLS with a server, and what a person can do about it.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

macro_rules! hint {
    ($failure:expr, $prefix:literal, $name:literal) => {
        match $failure {
            TlsFailure::Untrusted => concat!(
                "the server's certificate is not trusted: put the certificate of the CA that signed it into the file of RELAY_",
                $prefix, "_CA_FILE; nothing was sent"
            ),
            TlsFailure::WrongHost => concat!(
                "the server's certificate is for another host: put a name that it is valid for into RELAY_",
                $prefix, "_URL, or give the server a certificate for this one; nothing was sent"
            ),
            TlsFailure::Expired => concat!(
                $name, "'s certificate is not valid at this time: renew it, or set the clock right"
            ),
            TlsFailure::BadCertificate => concat!(
                $name, "'s certificate can't be used: correct it, or put the certificate of the CA that signed it into the file of RELAY_",
                $prefix, "_CA_FILE"
            ),
            TlsFailure::ClientCertificate => concat!(
                "the server wants a client certificate that it trusts: set RELAY_",
                $prefix, "_CLIENT_CERT_FILE and RELAY_", $prefix, "_CLIENT_KEY_FILE, and check that its CA is one that the server trusts"
            ),
            TlsFailure::Refused => concat!(
                "the server has ended the TLS handshake: see ", $name, "'s log; it may want a client certificate (RELAY_",
                $prefix, "_CLIENT_CERT_FILE), or a version of TLS other than 1.2 and 1.3"
            ),
            TlsFailure::NotTls => concat!(
                "what answers there does not speak TLS: put the host and port where ", $name,
                " takes TLS into RELAY_", $prefix, "_URL (RabbitMQ's is 5671); nothing was sent"
            ),
            TlsFailure::Other => concat!(
                "check that ", $name, " takes TLS 1.2 or 1.3 at the host and port of RELAY_", $prefix, "_URL"
            ),
        }
    };
}

/// The other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// MySQL or MariaDB.
    Mysql,
    /// RabbitMQ.
    Amqp,
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFailure {
    /// No trusted CA has signed the server's certificate.
    Untrusted,
    /// The certificate is for other hosts.
    WrongHost,
    /// It is not valid at this time.
    Expired,
    /// It has another fault.
    BadCertificate,
    /// The server does not like the client certificate, or wants one.
    ClientCertificate,
    /// The server ends the handshake for another reason.
    Refused,
    /// What answers does not speak TLS.
    NotTls,
    /// Anything else.
    Other,
}

impl TlsFailure {
    /// The failure of TLS behind an error of a socket, if it is one.
    pub fn of_io(error: &io::Error) -> Option<Self> {
        let inner = error.get_ref()?.downcast_ref::<Error>()?;
        Some(Self::of(inner))
    }

    /// The kind of a failure.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(fault) => Self::of_certificate(fault),
            Error::AlertReceived(alert) => Self::of_alert(*alert),
            Error::InvalidMessage(_) => TlsFailure::NotTls,
            _ => TlsFailure::Other,
        }
    }

    fn of_certificate(fault: &CertificateError) -> Self {
        match fault {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                TlsFailure::Untrusted
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsFailure::WrongHost
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => TlsFailure::Expired,
            _ => TlsFailure::BadCertificate,
        }
    }

    /// TLS 1.3, section 6.2: what each alert says.
    fn of_alert(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied => TlsFailure::ClientCertificate,
            _ => TlsFailure::Refused,
        }
    }

    /// Whether it may pass without a change of settings or certificates.
    pub fn may_pass(self) -> bool {
        match self {
            TlsFailure::Untrusted
            | TlsFailure::WrongHost
            | TlsFailure::BadCertificate
            | TlsFailure::ClientCertificate => false,
            TlsFailure::Expired | TlsFailure::Refused | TlsFailure::NotTls | TlsFailure::Other => {
                true
            }
        }
    }

    /// A word to the operator.
    pub fn hint(self, peer: Peer) -> &'static str {
        match peer {
            Peer::Mysql => hint!(self, "MYSQL", "MySQL"),
            Peer::Amqp => hint!(self, "AMQP", "RabbitMQ"),
        }
    }
}
