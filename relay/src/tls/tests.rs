use super::*;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/publish/rabbitmq/tests");

fn fixture(name: &str) -> PathBuf {
    Path::new(FIXTURES).join(name)
}

fn client(certificate: PathBuf, key: PathBuf) -> TlsFiles {
    TlsFiles {
        ca: None,
        client: Some(ClientFiles {
            certificate: PemFile::new("amqp_client_cert_file", certificate),
            key: PemFile::new("amqp_client_key_file", key),
        }),
    }
}

fn authority(path: PathBuf) -> TlsFiles {
    TlsFiles {
        ca: Some(PemFile::new("amqp_ca_file", path)),
        client: None,
    }
}

#[test]
fn good_files_are_read() {
    let loaded = authority(fixture("ca.pem")).load().unwrap();
    assert_eq!((loaded.ca.len(), loaded.client.is_none()), (1, true));
    let loaded = client(fixture("server.pem"), fixture("server.key"))
        .load()
        .unwrap();
    assert!(loaded.ca.is_empty());
    assert_eq!(loaded.client.unwrap().0.len(), 1);
}

#[test]
fn a_bad_file_is_told_with_its_setting_and_never_with_what_is_in_it() {
    const SECRET: &str = "c2VjcmV0LWluLWEta2V5";
    let folder = std::env::temp_dir().join(format!("relay-pem-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let pem =
        |kind: &str, body: &str| format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n");
    let plain = write("plain", SECRET.to_owned());
    let broken = write("broken", format!("-----BEGIN PRIVATE KEY\n{SECRET}\n"));
    let cut = write("cut", format!("-----BEGIN PRIVATE KEY-----\n{SECRET}\n"));
    let empty_key = write("empty-key", pem("PRIVATE KEY", SECRET));
    let locked = write("locked", pem("ENCRYPTED PRIVATE KEY", SECRET));
    let no_certificate = write("no-certificate", pem("CERTIFICATE", SECRET));
    let (certificate, key) = (fixture("server.pem"), fixture("server.key"));
    let gone = folder.join("gone");

    let (ca, cert, private) = (
        "amqp_ca_file",
        "amqp_client_cert_file",
        "amqp_client_key_file",
    );
    let cases = [
        (authority(gone.clone()), ca, "cannot be read"),
        (authority(plain.clone()), ca, "no certificate in PEM"),
        (authority(key.clone()), ca, "no certificate in PEM"),
        (
            authority(no_certificate),
            ca,
            "certificate in it is not valid",
        ),
        (client(gone.clone(), key.clone()), cert, "cannot be read"),
        (client(plain.clone(), key), cert, "no certificate in PEM"),
        (client(certificate.clone(), gone), private, "cannot be read"),
        (
            client(certificate.clone(), plain),
            private,
            "no private key in PEM",
        ),
        (
            client(certificate.clone(), broken),
            private,
            "not valid PEM",
        ),
        (client(certificate.clone(), cut), private, "not valid PEM"),
        (client(certificate.clone(), empty_key), private, "damaged"),
        (client(certificate, locked), private, "passphrase"),
    ];
    for (files, setting, words) in cases {
        let error = files.load().unwrap_err();
        let told = crate::error::chain(&error);
        assert!(told.contains(words), "no {words:?} in {told}");
        assert!(error.setting == setting && told.contains(setting), "{told}");
        assert!(!told.contains(SECRET), "{told}");
        assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn failures_name_the_settings_that_mend_them() {
    use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
    let cases = [
        (
            Error::InvalidCertificate(CertificateError::UnknownIssuer),
            TlsFailure::Untrusted,
            "_CA_FILE",
        ),
        (
            Error::InvalidCertificate(CertificateError::NotValidForName),
            TlsFailure::WrongHost,
            "_URL",
        ),
        (
            Error::InvalidCertificate(CertificateError::Expired),
            TlsFailure::Expired,
            "renew",
        ),
        (
            Error::AlertReceived(AlertDescription::CertificateRequired),
            TlsFailure::ClientCertificate,
            "_CLIENT_CERT_FILE",
        ),
        (
            Error::AlertReceived(AlertDescription::HandshakeFailure),
            TlsFailure::Refused,
            "log",
        ),
        (
            Error::InvalidMessage(InvalidMessage::InvalidContentType),
            TlsFailure::NotTls,
            "does not speak TLS",
        ),
    ];
    for (error, failure, words) in cases {
        let found = TlsFailure::of_io(&io::Error::new(io::ErrorKind::InvalidData, error));
        assert_eq!(found, Some(failure));
        for (peer, prefix, other) in [
            (Peer::Mysql, "RELAY_MYSQL", "RELAY_AMQP"),
            (Peer::Amqp, "RELAY_AMQP", "RELAY_MYSQL"),
        ] {
            let hint = failure.hint(peer);
            assert!(hint.contains(words) && !hint.contains(other), "{hint}");
            assert!(!hint.contains("RELAY_") || hint.contains(prefix), "{hint}");
        }
    }
    assert_eq!(TlsFailure::of_io(&io::Error::other("broken")), None);
}
