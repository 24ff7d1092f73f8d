//! Values as given, with where each came from, and their typed reading.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::settings::{SETTINGS, find};
use super::value;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// The TOML file.
    File(PathBuf),
    /// A `RELAY_*` variable.
    Variable(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("the default"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Variable(name) => write!(f, "the variable {name}"),
            Origin::Flag(flag) => write!(f, "the flag --{flag}"),
        }
    }
}

/// Why there is no valid configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A value that is not allowed.
    #[error("{key} = {value} (from {origin}) is not valid{why}; allowed: {allowed}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// The value, or that it is hidden.
        value: String,
        /// Who gave it.
        origin: Origin,
        /// More about it, after ": ", or nothing.
        why: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A setting without a default that nobody gave.
    #[error(
        "{key} is not set; set the variable {variable}, the flag --{flag} or the key {key} in the file of RELAY_CONFIG; allowed: {allowed}"
    )]
    Missing {
        /// The key.
        key: &'static str,
        /// Its variable.
        variable: String,
        /// Its flag.
        flag: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A key or variable that does not exist.
    #[error("{name} (from {origin}) is not a setting{hint}; allowed: {allowed}")]
    Unknown {
        /// What was written.
        name: String,
        /// Who wrote it.
        origin: Origin,
        /// The nearest that exists, after ", did you mean", or nothing.
        hint: String,
        /// All there are.
        allowed: String,
    },
    /// The file can't be read.
    #[error("cannot read the configuration file {path}; check that it exists and may be read")]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("the configuration file {path} is not valid TOML: {why}")]
    NotToml {
        /// Its path.
        path: PathBuf,
        /// Where and why, without the values in it.
        why: String,
    },
}

/// Every value given, by key.
#[derive(Debug, Default)]
pub struct Raw {
    values: BTreeMap<&'static str, (String, Origin)>,
}

impl Raw {
    /// Reads the file, then the variables, then the flags; each wins over the one before.
    ///
    /// # Errors
    /// An unreadable file, a key or `RELAY_*` variable that does not exist.
    pub fn load(
        file: Option<&Path>,
        variables: impl Iterator<Item = (String, String)>,
        flags: impl Iterator<Item = (&'static str, String)>,
    ) -> Result<Self, ConfigError> {
        let mut raw = Self::default();
        if let Some(path) = file {
            raw.read_file(path)?;
        }
        for (name, text) in variables {
            let Some(key) = name.strip_prefix("RELAY_") else {
                continue;
            };
            if matches!(key, "CONFIG" | "BIN") {
                continue;
            }
            raw.put(
                &key.to_ascii_lowercase(),
                &name,
                text,
                Origin::Variable(name.clone()),
            )?;
        }
        for (key, text) in flags {
            raw.put(key, key, text, Origin::Flag(key.replace('_', "-")))?;
        }
        Ok(raw)
    }

    fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| {
                1 + text
                    .bytes()
                    .take(span.start)
                    .filter(|byte| *byte == b'\n')
                    .count()
            });
            ConfigError::NotToml {
                path: path.to_owned(),
                why: format!("line {line}: {}", error.message()),
            }
        })?;
        for (key, value) in table {
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                toml::Value::Boolean(truth) => truth.to_string(),
                toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => {
                    format!("a {}", value.type_str())
                }
            };
            self.put(&key, &key, text, Origin::File(path.to_owned()))?;
        }
        Ok(())
    }

    fn put(
        &mut self,
        key: &str,
        written: &str,
        text: String,
        origin: Origin,
    ) -> Result<(), ConfigError> {
        let Some(setting) = find(key) else {
            return Err(ConfigError::Unknown {
                name: written.to_owned(),
                origin,
                hint: value::nearest(key, SETTINGS.iter().map(|setting| setting.key))
                    .map(|nearest| format!(", did you mean {nearest}?"))
                    .unwrap_or_default(),
                allowed: SETTINGS
                    .iter()
                    .map(|setting| setting.key)
                    .collect::<Vec<_>>()
                    .join(", "),
            });
        };
        self.values.insert(setting.key, (text, origin));
        Ok(())
    }

    /// Gives a value where nobody gave one.
    pub fn or(&mut self, key: &'static str, text: &str) {
        if self.get(key).is_none() {
            self.values.insert(key, (text.to_owned(), Origin::Default));
        }
    }

    /// The text and origin of a key; the default where nothing was given.
    pub fn get(&self, key: &str) -> Option<(String, Origin)> {
        let given = self.values.get(key).cloned();
        given.or_else(|| Some((find(key)?.default?.to_owned(), Origin::Default)))
    }

    /// A value as `parse` reads it.
    ///
    /// # Errors
    /// The value is missing or `parse` refuses it.
    pub fn parsed<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        let Some((text, _)) = self.get(key) else {
            return Err(missing(key));
        };
        parse(&text).map_err(|why| self.invalid(key, &why))
    }

    pub(super) fn invalid(&self, key: &'static str, why: &str) -> ConfigError {
        let (text, origin) = self.get(key).unwrap_or((String::new(), Origin::Default));
        let secret = find(key).is_some_and(|setting| setting.secret);
        ConfigError::Invalid {
            key,
            value: if secret {
                "(hidden)".to_owned()
            } else {
                format!("{text:?}")
            },
            origin,
            why: if why.is_empty() {
                String::new()
            } else {
                format!(": {why}")
            },
            allowed: find(key).map_or("", |setting| setting.allowed),
        }
    }
}

fn missing(key: &'static str) -> ConfigError {
    let setting = find(key);
    ConfigError::Missing {
        key,
        variable: setting
            .map(super::settings::Setting::variable)
            .unwrap_or_default(),
        flag: setting
            .map(super::settings::Setting::flag)
            .unwrap_or_default(),
        allowed: setting.map_or("", |setting| setting.allowed),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn load(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let variables = pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Config::from_raw(&Raw::load(None, variables, std::iter::empty())?)
    }

    const URLS: [(&str, &str); 2] = [
        ("RELAY_MYSQL_URL", "mysql://u:hunter2@db/shop"),
        ("RELAY_AMQP_URL", "amqp://u:hunter2@mq/%2f"),
    ];

    #[test]
    fn defaults_are_valid() {
        let config = load(&URLS).unwrap();
        assert_eq!(config.exchange.constant(), Some("outbox.events"));
        assert_eq!(config.window, 5000);
        assert!(
            !format!("{config:?}").contains("hunter2"),
            "a secret in Debug"
        );
    }

    #[test]
    fn a_bad_value_names_key_value_origin_and_what_is_allowed() {
        for (name, text) in [
            ("RELAY_WINDOW", "0"),
            ("RELAY_SOURCE", "kafka"),
            ("RELAY_SHUTDOWN_TIMEOUT", "soon"),
            ("RELAY_TABLE", "a`b"),
            ("RELAY_HTTP_ADDR", "9464"),
            ("RELAY_ROUTING_KEY", "{nobody}"),
        ] {
            let error = load(&[URLS[0], URLS[1], (name, text)])
                .unwrap_err()
                .to_string();
            let key = name.strip_prefix("RELAY_").unwrap().to_lowercase();
            assert!(error.contains(&key), "{error}");
            assert!(error.contains(text) && error.contains(name), "{error}");
            assert!(error.contains(find(&key).unwrap().allowed), "{error}");
        }
    }

    #[test]
    fn files_of_tls_are_never_named_in_vain() {
        const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/publish/rabbitmq/tests/");
        let (ca, certificate) = (format!("{FIXTURES}ca.pem"), format!("{FIXTURES}server.pem"));
        type Case<'a> = (&'a [(&'a str, &'a str)], [&'a str; 2]);
        let cases: [Case; 7] = [
            (
                &[("RELAY_MYSQL_CLIENT_CERT_FILE", &certificate)],
                ["mysql_client_cert_file = ", "mysql_client_key_file is not"],
            ),
            (
                &[("RELAY_MYSQL_CLIENT_KEY_FILE", &certificate)],
                ["mysql_client_key_file = ", "mysql_client_cert_file is not"],
            ),
            (
                &[("RELAY_AMQP_CLIENT_KEY_FILE", &certificate)],
                ["amqp_client_key_file = ", "amqp_client_cert_file is not"],
            ),
            (
                &[("RELAY_AMQP_CA_FILE", &ca)],
                ["amqp_ca_file = ", "amqps://"],
            ),
            (
                &[("RELAY_MYSQL_CA_FILE", "/no/such/file")],
                ["mysql_ca_file = ", "No such file"],
            ),
            (
                &[
                    ("RELAY_MYSQL_CA_FILE", &ca),
                    (
                        "RELAY_MYSQL_URL",
                        "mysql://u@db/shop?require_ssl=true&verify_ca=false",
                    ),
                ],
                ["mysql_ca_file = ", "verify_ca=false"],
            ),
            (
                &[
                    ("RELAY_MYSQL_CA_FILE", &ca),
                    ("RELAY_MYSQL_URL", "mysql://u@db/shop?socket=%2Ftmp%2Fmysql"),
                ],
                ["mysql_url", "socket has no TLS"],
            ),
        ];
        for (given, words) in cases {
            let all: Vec<(&str, &str)> = URLS.iter().chain(given).copied().collect();
            let error = load(&all).unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "no {word:?} in {error}");
            }
        }
        let config = load(&[URLS[0], URLS[1], ("RELAY_MYSQL_CA_FILE", &ca)]).unwrap();
        assert!(!config.mysql_tls.is_empty() && config.amqp_tls.is_empty());
    }

    #[test]
    fn a_secret_stays_out_of_errors() {
        let error = load(&[("RELAY_MYSQL_URL", "mysql//u:hunter2@db/shop")]).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn an_unknown_variable_is_refused_with_the_nearest_name() {
        let error = load(&[URLS[0], URLS[1], ("RELAY_EXCHANG", "x")])
            .unwrap_err()
            .to_string();
        assert!(error.contains("did you mean exchange?"), "{error}");
    }
}
