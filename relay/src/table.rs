//! Statements about rows of the outbox table, from the names it was given and the columns it has (pure but for one
//! look at the catalogue).

use mysql_async::Value;

use crate::catalogue::{Bookkeeping, Catalogue, catalogue};
use crate::config::{Config, Identifier, Mark};
use crate::event::Key;
use crate::mysql::{MysqlError, Session};

/// The outbox table, as far as its rows are written to.
#[derive(Debug, Clone)]
pub struct Table {
    /// Quoted name.
    pub name: String,
    /// Quoted primary key.
    pub id: String,
    /// Quoted status column.
    pub status: String,
    /// Which of its own columns the relay finds.
    pub kept: Bookkeeping,
    /// Characters that `last_error` takes.
    pub error_chars: usize,
    /// What becomes of published rows; [`Mark::None`] where there is no column to mark.
    pub mark: Mark,
}

/// Characters of an error that are kept: its column is a TEXT, and a name of the row's own may be in it.
pub(crate) const ERROR_CHARS: usize = 4_000;

/// How many keys a statement names: a batch is padded up to the next with its last key, so that three statements stay
/// prepared.
const SIZES: [usize; 3] = [16, 128, 1024];
/// The largest of them.
pub const MOST_KEYS: usize = 1024;

impl Table {
    /// Looks at the table as it is now.
    ///
    /// # Errors
    /// The server can't be asked.
    pub async fn inspect(config: &Config, session: &mut Session) -> Result<Self, MysqlError> {
        Ok(Self::new(config, &catalogue(config, session).await?))
    }

    /// The table as the catalogue describes it.
    pub fn new(config: &Config, catalogue: &Catalogue) -> Self {
        let kept = catalogue.bookkeeping(&config.columns);
        Self {
            name: config.table.quoted(),
            id: config.columns.id().quoted(),
            status: config
                .columns
                .status()
                .map(Identifier::quoted)
                .unwrap_or_default(),
            kept,
            error_chars: catalogue
                .column("last_error")
                .map_or(0, |column| error_chars(&column.definition)),
            mark: match config.mark {
                Mark::Update if !kept.status => Mark::None,
                mark => mark,
            },
        }
    }

    /// Whether rows can be claimed: published ones be told from others, and leased ones from free ones.
    pub fn can_be_claimed(&self) -> bool {
        self.kept.status && self.kept.locks
    }

    /// Assignments that take a lease off.
    pub fn unlocked(&self) -> &'static str {
        if self.kept.locks {
            ", locked_by = NULL, locked_until = NULL"
        } else {
            ""
        }
    }

    /// Assignments that note a failure, with a parameter each: the attempts, then the error, as far as there are
    /// columns for them.
    pub fn failure(&self, attempts: u32, error: &str) -> (String, Vec<Value>) {
        let mut text = String::new();
        let mut values = Vec::new();
        if self.kept.attempts {
            text.push_str(", attempts = ?");
            values.push(Value::from(attempts));
        }
        if self.kept.last_error {
            text.push_str(", last_error = ?");
            values.push(Value::from(first_chars(error, self.error_chars)));
        }
        (text, values)
    }

    /// The statement that marks that many rows as published; none where rows are not marked.
    pub fn mark_statement(&self, fence: bool, keys: usize) -> Option<String> {
        let (name, status) = (&self.name, &self.status);
        let head = match self.mark {
            Mark::None => return None,
            Mark::Delete => format!("DELETE FROM {name} WHERE "),
            Mark::Update => {
                let published_at = if self.kept.published_at {
                    ", published_at = CURRENT_TIMESTAMP(6)"
                } else {
                    ""
                };
                let no_error = if self.kept.last_error {
                    ", last_error = NULL"
                } else {
                    ""
                };
                format!(
                    "UPDATE {name} SET {status} = 'PUBLISHED'{published_at}{}{no_error} \
                     WHERE {status} <> 'PUBLISHED' AND ",
                    self.unlocked()
                )
            }
        };
        let fence = if fence { "locked_by = ? AND " } else { "" };
        Some(format!("{head}{fence}{}", self.id_in(keys)))
    }

    /// `id IN (?, …)`.
    pub fn id_in(&self, keys: usize) -> String {
        let more = "?,".repeat(keys.saturating_sub(1));
        format!("{} IN ({more}?)", self.id)
    }
}

/// Characters of an error that a column of that declaration takes; whole errors go into any TEXT.
fn error_chars(definition: &str) -> usize {
    let declared = definition
        .split_once('(')
        .and_then(|(_, rest)| rest.split(')').next()?.parse().ok());
    match declared {
        Some(chars) => ERROR_CHARS.min(chars),
        // 255 bytes, four a character.
        None if definition.eq_ignore_ascii_case("tinytext") => 63,
        None => ERROR_CHARS,
    }
}

/// As much of a text.
pub(crate) fn first_chars(text: &str, chars: usize) -> &str {
    let end = text.char_indices().nth(chars).map(|(at, _)| at);
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

/// Keys in groups of few sizes, each padded with its last key.
pub fn groups(keys: &[Key]) -> impl Iterator<Item = Vec<Value>> {
    keys.chunks(MOST_KEYS).map(|chunk| {
        let size = SIZES
            .iter()
            .copied()
            .find(|size| *size >= chunk.len())
            .unwrap_or(MOST_KEYS);
        let padding = chunk.last().into_iter().cycle();
        chunk
            .iter()
            .chain(padding)
            .take(size)
            .map(value_of)
            .collect()
    })
}

/// A key as a statement's parameter.
pub fn value_of(key: &Key) -> Value {
    match key {
        Key::Int(number) => Value::Int(*number),
        Key::UInt(number) => Value::UInt(*number),
        Key::Uuid(bytes) => Value::Bytes(bytes.to_vec()),
        Key::Text(text) => Value::Bytes(text.as_bytes().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(mark: Mark, kept: Bookkeeping) -> Table {
        Table {
            name: "`t`".to_owned(),
            id: "`k`".to_owned(),
            status: "`s`".to_owned(),
            kept,
            error_chars: ERROR_CHARS,
            mark,
        }
    }

    #[test]
    fn only_columns_that_are_there_are_written() {
        let bare = Bookkeeping {
            status: true,
            ..Bookkeeping::default()
        };
        assert_eq!(
            table(Mark::Update, bare)
                .mark_statement(false, 2)
                .as_deref(),
            Some("UPDATE `t` SET `s` = 'PUBLISHED' WHERE `s` <> 'PUBLISHED' AND `k` IN (?,?)")
        );
        let all = Bookkeeping {
            attempts: true,
            last_error: true,
            published_at: true,
            locks: true,
            ..bare
        };
        let statement = table(Mark::Update, all).mark_statement(true, 1).unwrap();
        for part in [
            "published_at",
            "locked_by = NULL",
            "AND locked_by = ? AND `k` IN (?)",
        ] {
            assert!(statement.contains(part), "{statement}");
        }
        assert_eq!(
            table(Mark::Delete, bare)
                .mark_statement(false, 1)
                .as_deref(),
            Some("DELETE FROM `t` WHERE `k` IN (?)")
        );
        assert_eq!(table(Mark::None, all).mark_statement(false, 1), None);
        assert_eq!(table(Mark::Update, bare).failure(1, "e").1.len(), 0);
        assert_eq!(table(Mark::Update, all).failure(1, "e").1.len(), 2);
    }

    #[test]
    fn errors_are_cut_to_their_column() {
        for (definition, chars) in [
            ("varchar(20)", 20),
            ("tinytext", 63),
            ("text", ERROR_CHARS),
            ("varchar(5000)", ERROR_CHARS),
        ] {
            assert_eq!(error_chars(definition), chars, "{definition}");
        }
        let kept = Bookkeeping {
            last_error: true,
            ..Bookkeeping::default()
        };
        let mut table = table(Mark::Update, kept);
        table.error_chars = 2;
        assert_eq!(table.failure(1, "Зоя").1, [Value::from("Зо")]);
    }

    #[test]
    fn groups_are_padded_to_few_sizes() {
        let keys: Vec<Key> = (0..1030).map(Key::Int).collect();
        let groups: Vec<_> = groups(&keys).collect();
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [1024, 16]);
        assert_eq!(groups[1].last(), Some(&Value::Int(1029)));
    }
}
