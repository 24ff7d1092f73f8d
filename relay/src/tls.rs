//! TLS: the PEM files that it rests on, and its failures in words that a person can act on.
//!
//! Files are checked when the relay starts and read again for each connection, so that renewed ones are taken up.

mod failure;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};
use thiserror::Error;

pub use failure::{Peer, TlsFailure};

/// A PEM file, with the setting that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PemFile {
    setting: &'static str,
    path: PathBuf,
}

/// A client certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// The certificate, and those between it and its CA.
    pub certificate: PemFile,
    /// Its private key.
    pub key: PemFile,
}

/// The files for one server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// CA certificates to trust besides the usual ones.
    pub ca: Option<PemFile>,
    /// What the relay shows of itself.
    pub client: Option<ClientFiles>,
}

/// What is in them.
pub struct TlsMaterial {
    /// CA certificates.
    pub ca: Vec<CertificateDer<'static>>,
    /// Client certificate chain and key.
    pub client: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

/// A file that TLS can't rest on.
#[derive(Debug, Error)]
#[error("{setting} = {path:?} is not usable")]
pub struct PemError {
    /// Key of the setting that names it.
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    #[source]
    pub fault: PemFault,
}

/// What is wrong with a file. It never quotes what is in it: that may be a key.
#[derive(Debug, Error)]
pub enum PemFault {
    /// It can't be read.
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    /// It begins like PEM, and is broken.
    #[error("it is not valid PEM")]
    Malformed,
    /// Something else.
    #[error("it holds no certificate in PEM")]
    NoCertificate,
    /// Something else.
    #[error("it holds no private key in PEM")]
    NoKey,
    /// Nobody is there to type a passphrase.
    #[error(
        "its key is encrypted with a passphrase; decrypt it with: openssl pkey -in FILE -out DECRYPTED"
    )]
    Encrypted,
    /// PEM around something that is no certificate.
    #[error("a certificate in it is not valid")]
    BadCertificate,
    /// Of an unknown kind, or damaged.
    #[error("its key is damaged, or of a kind that is not supported (RSA, ECDSA and Ed25519 are)")]
    BadKey,
    /// The halves of two pairs.
    #[error("it is not the key of the certificate in {}", .0.display())]
    OtherKey(PathBuf),
}

impl PemFile {
    /// The file that the setting of that key names.
    pub fn new(setting: &'static str, path: PathBuf) -> Self {
        Self { setting, path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn fails(&self, fault: PemFault) -> PemError {
        PemError {
            setting: self.setting,
            path: self.path.clone(),
            fault,
        }
    }

    fn read(&self) -> Result<Vec<u8>, PemError> {
        std::fs::read(&self.path).map_err(|error| self.fails(PemFault::Unreadable(error)))
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, PemError> {
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(&self.read()?)
            .collect::<Result<_, _>>()
            .map_err(|_| self.fails(PemFault::Malformed))?;
        if certificates.is_empty() {
            return Err(self.fails(PemFault::NoCertificate));
        }
        Ok(certificates)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, PemError> {
        let text = self.read()?;
        let encrypted = text.windows(9).any(|word| word == b"ENCRYPTED");
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
            self.fails(match error {
                _ if encrypted => PemFault::Encrypted,
                pem::Error::NoItemsFound => PemFault::NoKey,
                _ => PemFault::Malformed,
            })
        })
    }
}

impl ClientFiles {
    fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), PemError> {
        let chain = self.certificate.certificates()?;
        let key = self.key.key()?;
        let provider = rustls::crypto::ring::default_provider();
        match CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider) {
            Ok(_) => Ok((chain, key)),
            Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(self
                .key
                .fails(PemFault::OtherKey(self.certificate.path.clone()))),
            Err(rustls::Error::InvalidCertificate(_)) => {
                Err(self.certificate.fails(PemFault::BadCertificate))
            }
            Err(_) => Err(self.key.fails(PemFault::BadKey)),
        }
    }
}

impl TlsFiles {
    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        self.ca.is_none() && self.client.is_none()
    }

    /// Reads and checks all of them.
    ///
    /// # Errors
    /// The first that is of no use, with the setting that names it.
    pub fn load(&self) -> Result<TlsMaterial, PemError> {
        let mut authorities = Vec::new();
        if let Some(file) = &self.ca {
            authorities = file.certificates()?;
            let mut roots = RootCertStore::empty();
            for certificate in &authorities {
                roots
                    .add(certificate.clone())
                    .map_err(|_| file.fails(PemFault::BadCertificate))?;
            }
        }
        Ok(TlsMaterial {
            ca: authorities,
            client: self.client.as_ref().map(ClientFiles::load).transpose()?,
        })
    }
}

impl fmt::Debug for TlsMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsMaterial").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
