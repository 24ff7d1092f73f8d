//! Readers of single values.

use std::fmt;
use std::time::Duration;

use crate::event::OutboxEvent;

/// The name of a table or a column, safe to put between backquotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identifier(String);

impl Identifier {
    /// Letters, digits, `_` and `$`, at most 64 (MySQL manual, "Schema Object Names").
    ///
    /// # Errors
    /// Any other text, with the reason where it is not plain.
    pub fn parse(text: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        if text.is_empty() || text.chars().count() > 64 || !text.chars().all(plain) {
            return Err(String::new());
        }
        Ok(Self(text.to_owned()))
    }

    /// The name as it is.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name between backquotes, for SQL.
    pub fn quoted(&self) -> String {
        format!("`{}`", self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    AggregateType,
    AggregateId,
    EventType,
    EventId,
    IdempotencyKey,
}

/// A routing key or an exchange name with fields of the event in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.0 {
            f.write_str(match piece {
                Piece::Text(text) => text,
                Piece::AggregateType => "{aggregate_type}",
                Piece::AggregateId => "{aggregate_id}",
                Piece::EventType => "{event_type}",
                Piece::EventId => "{event_id}",
                Piece::IdempotencyKey => "{idempotency_key}",
            })?;
        }
        Ok(())
    }
}

impl Template {
    /// Reads a template such as `{aggregate_type}.{event_type}`.
    ///
    /// # Errors
    /// A brace without its pair, or a field that does not exist.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            let Some((field, behind)) = after.split_once('}') else {
                return Err("a { without its }".to_owned());
            };
            pieces.push(match field {
                "aggregate_type" => Piece::AggregateType,
                "aggregate_id" => Piece::AggregateId,
                "event_type" => Piece::EventType,
                "event_id" => Piece::EventId,
                "idempotency_key" => Piece::IdempotencyKey,
                other => return Err(format!("{{{other}}} is not a field")),
            });
            rest = behind;
        }
        if rest.contains('}') {
            return Err("a } without its {".to_owned());
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    /// The text, where it is the same for every event.
    pub fn constant(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The text for an event.
    pub fn render(&self, event: &OutboxEvent) -> String {
        let mut key = String::with_capacity(48);
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => key.push_str(text),
                Piece::AggregateType => key.push_str(&event.aggregate_type),
                Piece::AggregateId => key.push_str(&event.aggregate_id.to_string()),
                Piece::EventType => key.push_str(&event.event_type),
                Piece::EventId => key.push_str(&event.id.to_string()),
                Piece::IdempotencyKey => key.push_str(&event.idempotency_key),
            }
        }
        key
    }
}

/// `500ms`, `30s`, `5m`, `1h`, `30d`; above zero and at most a year.
///
/// # Errors
/// Any other text.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.strip_prefix(digits).unwrap_or_default();
    let number: u64 = digits.parse().map_err(|_| String::new())?;
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        "d" => number.checked_mul(86_400_000),
        _ => return Err(String::new()),
    };
    match millis {
        Some(millis @ 1..=31_536_000_000) => Ok(Duration::from_millis(millis)),
        Some(_) | None => Err(String::new()),
    }
}

/// `1024`, `64KiB`, `64MiB`, `1GiB`, and the decimal kB, MB, GB.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.strip_prefix(digits).unwrap_or_default();
    let number: u64 = digits.trim_end().parse().map_err(|_| String::new())?;
    let factor = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return Err(String::new()),
    };
    number.checked_mul(factor).ok_or_else(String::new)
}

/// A template of an exchange name. AMQP allows 127 bytes; what a field adds is checked with each event.
pub(super) fn exchange(text: &str) -> Result<Template, String> {
    let template = Template::parse(text)?;
    match template.constant() {
        Some("") => Err(String::new()),
        Some(name) if name.len() > 127 => Err(String::new()),
        Some(_) | None => Ok(template),
    }
}

pub(super) fn log_filter(text: &str) -> Result<String, String> {
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The candidate at the smallest edit distance, where that is small enough to be a slip.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .min()
        .filter(|(distance, _)| *distance <= 3)
        .map(|(_, candidate)| candidate)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, to) in row.iter_mut().skip(1).zip(b.bytes()) {
            let best = (diagonal + usize::from(from != to))
                .min(left + 1)
                .min(*cell + 1);
            diagonal = *cell;
            *cell = best;
            left = best;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes() {
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("2h").unwrap(), Duration::from_secs(7200));
        assert_eq!(duration("30d").unwrap(), Duration::from_secs(2_592_000));
        for bad in [
            "",
            "0s",
            "5",
            "s",
            "-1s",
            "1.5s",
            "18446744073709551615h",
            "9w",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(size("64MiB").unwrap(), 64 << 20);
        assert!(size("99999999999GiB").is_err());
    }

    #[test]
    fn distances() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(
            nearest("exchnge", ["exchange", "name"].into_iter()),
            Some("exchange")
        );
        assert_eq!(nearest("zzzzzzzz", ["exchange", "name"].into_iter()), None);
    }
}
