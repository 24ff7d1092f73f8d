//! Which columns of the outbox table hold what.

use super::raw::{ConfigError, Raw};
use super::value::Identifier;
use crate::event::{FIELDS, ID, STATUS};

/// Value of a `column_*` setting that says that the table has no such column.
const ABSENT: &str = "-";

/// Names that a known kind of table gives its columns; `None` where it has none.
struct Preset {
    name: &'static str,
    columns: [Option<&'static str>; FIELDS.len()],
}

const PRESETS: [Preset; 2] = [
    Preset {
        name: "outbox",
        columns: [
            Some("id"),
            Some("aggregate_type"),
            Some("aggregate_id"),
            Some("event_type"),
            Some("payload"),
            Some("idempotency_key"),
            Some("created_at"),
            Some("headers"),
            Some("status"),
            None,
            None,
            Some("attempts"),
        ],
    },
    // The columns of Debezium's outbox event router; its `id` is what consumers recognise a duplicate by.
    Preset {
        name: "debezium",
        columns: [
            Some("id"),
            Some("aggregatetype"),
            Some("aggregateid"),
            Some("type"),
            Some("payload"),
            Some("id"),
            None,
            None,
            None,
            None,
            None,
            None,
        ],
    },
];

/// Settings of the columns, in the order of [`FIELDS`]. The count of attempts is the relay's own.
const KEYS: [Option<&str>; FIELDS.len()] = [
    Some("column_id"),
    Some("column_aggregate_type"),
    Some("column_aggregate_id"),
    Some("column_event_type"),
    Some("column_payload"),
    Some("column_idempotency_key"),
    Some("column_created_at"),
    Some("column_headers"),
    Some("column_status"),
    Some("column_exchange"),
    Some("column_routing_key"),
    None,
];

/// The column of each of [`FIELDS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    names: [Option<Identifier>; FIELDS.len()],
    id: Identifier,
}

impl Columns {
    /// The preset's columns, with those that are given by name in their place.
    ///
    /// # Errors
    /// A name that is none, or no name for a column that there is no event without.
    pub fn from_raw(raw: &Raw) -> Result<Self, ConfigError> {
        let choices: Vec<(&str, &Preset)> =
            PRESETS.iter().map(|preset| (preset.name, preset)).collect();
        let preset = raw.choice("preset", &choices)?;
        let mut names = [const { None }; FIELDS.len()];
        for (at, name) in names.iter_mut().enumerate() {
            let preset = preset.columns.get(at).copied().flatten();
            let field = FIELDS.get(at);
            let given = KEYS
                .get(at)
                .copied()
                .flatten()
                .filter(|key| raw.get(key).is_some());
            *name = match given {
                Some(key) => raw.parsed(key, |text| match text {
                    ABSENT if field.is_some_and(|field| field.required) => {
                        Err("there is no event without it".to_owned())
                    }
                    ABSENT => Ok(None),
                    text => Identifier::parse(text).map(Some),
                })?,
                // The presets' names are plain.
                None => preset.and_then(|name| Identifier::parse(name).ok()),
            };
        }
        let id = match names.get(ID).cloned().flatten() {
            Some(id) => id,
            None => raw.parsed("column_id", Identifier::parse)?,
        };
        Ok(Self { names, id })
    }

    /// The column of each of [`FIELDS`]; none where the table is said to have none.
    pub fn names(&self) -> &[Option<Identifier>; FIELDS.len()] {
        &self.names
    }

    /// The column that a `column_*` setting stands for; none where the table is said to have none.
    pub fn of_setting(&self, key: &str) -> Option<&Identifier> {
        let at = KEYS.iter().position(|setting| *setting == Some(key))?;
        self.names.get(at)?.as_ref()
    }

    /// The setting and the column of each field that has a setting.
    pub fn settings(&self) -> impl Iterator<Item = (&'static str, Option<&Identifier>)> {
        let named = KEYS.iter().zip(&self.names);
        named.filter_map(|(key, name)| Some(((*key)?, name.as_ref())))
    }

    /// The primary key.
    pub fn id(&self) -> &Identifier {
        &self.id
    }

    /// Where a row's state is kept.
    pub fn status(&self) -> Option<&Identifier> {
        self.names.get(STATUS)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(pairs: &[(&str, &str)]) -> Result<Columns, ConfigError> {
        let variables = pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Columns::from_raw(&Raw::load(None, variables, std::iter::empty())?)
    }

    fn name(columns: &Columns, at: usize) -> Option<&str> {
        columns.names()[at].as_ref().map(Identifier::as_str)
    }

    #[test]
    fn a_preset_names_the_columns_and_settings_win() {
        let own = columns(&[]).unwrap();
        assert_eq!(name(&own, 1), Some("aggregate_type"));
        assert_eq!(own.status().map(Identifier::as_str), Some("status"));
        let other = columns(&[
            ("RELAY_PRESET", "debezium"),
            ("RELAY_COLUMN_EVENT_TYPE", "kind"),
            ("RELAY_COLUMN_HEADERS", "meta"),
        ])
        .unwrap();
        assert_eq!(name(&other, 1), Some("aggregatetype"));
        assert_eq!(name(&other, 3), Some("kind"));
        assert_eq!(name(&other, 5), Some("id"));
        assert_eq!(name(&other, 7), Some("meta"));
        assert_eq!(other.status(), None);
    }

    #[test]
    fn a_column_can_be_absent_unless_there_is_no_event_without_it() {
        let without = columns(&[("RELAY_COLUMN_STATUS", "-")]).unwrap();
        assert_eq!(without.status(), None);
        let error = columns(&[("RELAY_COLUMN_PAYLOAD", "-")]).unwrap_err();
        assert!(error.to_string().contains("column_payload"), "{error}");
        assert!(columns(&[("RELAY_COLUMN_ID", "a`b")]).is_err());
        assert!(columns(&[("RELAY_PRESET", "maxwell")]).is_err());
    }
}
