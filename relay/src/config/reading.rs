//! Typed reading of raw values.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::raw::{ConfigError, Raw};
use super::token::AdminToken;
use super::value;

impl Raw {
    pub(super) fn choice<T: Copy>(
        &self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<T, ConfigError> {
        self.parsed(key, |text| {
            choices
                .iter()
                .find(|(name, _)| *name == text)
                .map(|(_, choice)| *choice)
                .ok_or_else(String::new)
        })
    }

    pub(super) fn duration(&self, key: &'static str) -> Result<Duration, ConfigError> {
        self.parsed(key, value::duration)
    }

    pub(super) fn seconds(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Duration, ConfigError> {
        self.parsed(key, |text| {
            let duration = value::duration(text)?;
            let whole = duration.subsec_nanos() == 0 && range.contains(&duration.as_secs());
            if whole {
                Ok(duration)
            } else {
                Err(String::new())
            }
        })
    }

    pub(super) fn number<T>(
        &self,
        key: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<T, ConfigError>
    where
        T: std::str::FromStr + PartialOrd,
    {
        self.parsed(key, |text| match text.parse() {
            Ok(number) if range.contains(&number) => Ok(number),
            Ok(_) | Err(_) => Err(String::new()),
        })
    }

    pub(super) fn size(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<usize, ConfigError> {
        self.parsed(key, |text| {
            let bytes = value::size(text)?;
            if !range.contains(&bytes) {
                return Err(String::new());
            }
            usize::try_from(bytes).map_err(|_| "too large for this machine".to_owned())
        })
    }

    pub(super) fn short_text(
        &self,
        key: &'static str,
        limit: usize,
    ) -> Result<String, ConfigError> {
        self.parsed(key, |text| {
            let fits = !text.is_empty() && text.len() <= limit;
            if fits {
                Ok(text.to_owned())
            } else {
                Err(String::new())
            }
        })
    }

    pub(super) fn name(&self, key: &'static str) -> Result<String, ConfigError> {
        self.parsed(key, |text| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            let fits = (1..=64).contains(&text.len()) && text.bytes().all(plain);
            if fits {
                Ok(text.to_owned())
            } else {
                Err(String::new())
            }
        })
    }

    /// Derived from the relay's name where it is not given, above the small numbers that people give to servers.
    pub(super) fn server_id(&self, key: &'static str, name: &str) -> Result<u32, ConfigError> {
        if self.get(key).is_none() {
            return Ok(crc32fast::hash(name.as_bytes()) | 0x4000_0000);
        }
        self.number(key, 1..=u32::MAX)
    }

    pub(super) fn optional_path(&self, key: &str) -> Option<PathBuf> {
        self.get(key).map(|(text, _)| PathBuf::from(text))
    }

    pub(super) fn secret_file(&self, key: &'static str) -> Result<Option<String>, ConfigError> {
        let Some(path) = self.optional_path(key) else {
            return Ok(None);
        };
        let text = std::fs::read_to_string(&path)
            .map_err(|error| self.invalid(key, &error.to_string()))?;
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }

    pub(super) fn admin_token(&self, key: &'static str) -> Result<Option<AdminToken>, ConfigError> {
        let token = self.secret_file(key)?;
        token
            .map(|text| AdminToken::parse(&text).map_err(|why| self.invalid(key, &why)))
            .transpose()
    }

    pub(super) fn address(&self, key: &'static str) -> Result<Option<SocketAddr>, ConfigError> {
        self.parsed(key, |text| match text {
            "off" => Ok(None),
            text => text.parse().map(Some).map_err(|_| String::new()),
        })
    }
}
