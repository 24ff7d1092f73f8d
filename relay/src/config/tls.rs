//! The files of TLS: both halves or neither, readable, and never named where they would not be used.

use super::url::SOCKET_HAS_NO_TLS;
use super::{AmqpUrl, ConfigError, MysqlUrl, Raw};
use crate::error::chain;
use crate::tls::{ClientFiles, PemFile, TlsFiles};

pub(super) fn mysql(raw: &Raw, url: &MysqlUrl) -> Result<TlsFiles, ConfigError> {
    let keys = Keys {
        ca: "mysql_ca_file",
        certificate: "mysql_client_cert_file",
        key: "mysql_client_key_file",
    };
    let files = keys.read(raw)?;
    if !files.is_empty() && url.is_socket() {
        return Err(raw.invalid("mysql_url", SOCKET_HAS_NO_TLS));
    }
    let checks = url.tls().is_none_or(|tls| !tls.accept_invalid_certs());
    if files.ca.is_some() && !checks {
        let why = "mysql_url has verify_ca=false, with which no CA is looked at";
        return Err(raw.invalid(keys.ca, why));
    }
    Ok(files)
}

pub(super) fn amqp(raw: &Raw, url: &AmqpUrl) -> Result<TlsFiles, ConfigError> {
    let keys = Keys {
        ca: "amqp_ca_file",
        certificate: "amqp_client_cert_file",
        key: "amqp_client_key_file",
    };
    let files = keys.read(raw)?;
    if !files.is_empty() && !url.is_tls() {
        let given = if files.ca.is_some() {
            keys.ca
        } else {
            keys.certificate
        };
        let why = "amqp_url begins with amqp://, which is without TLS; write amqps:// there";
        return Err(raw.invalid(given, why));
    }
    Ok(files)
}

/// The settings for one server.
struct Keys {
    ca: &'static str,
    certificate: &'static str,
    key: &'static str,
}

impl Keys {
    fn read(&self, raw: &Raw) -> Result<TlsFiles, ConfigError> {
        let file = |key| raw.optional_path(key).map(|path| PemFile::new(key, path));
        let alone = |given, missing| {
            let why = format!("{missing} is not set, and neither is of use without the other");
            Err(raw.invalid(given, &why))
        };
        let client = match (file(self.certificate), file(self.key)) {
            (Some(certificate), Some(key)) => Some(ClientFiles { certificate, key }),
            (Some(_), None) => return alone(self.certificate, self.key),
            (None, Some(_)) => return alone(self.key, self.certificate),
            (None, None) => None,
        };
        let files = TlsFiles {
            ca: file(self.ca),
            client,
        };
        match files.load() {
            Ok(_) => Ok(files),
            Err(error) => Err(raw.invalid(error.setting, &chain(&error.fault))),
        }
    }
}
