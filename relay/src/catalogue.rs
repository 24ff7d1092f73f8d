//! The outbox table as the server's catalogue describes it: which columns there are, and which of them the relay reads.

use thiserror::Error;

use crate::config::{Columns, Config};
use crate::event::{Datum, FIELDS, Row};
use crate::mysql::{MysqlError, Session};
use crate::source::binlog::decode::{Column, ColumnKind};

/// A required column that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("has no column {name}, or the account may not see it")]
pub struct MissingColumn {
    /// Its name.
    pub name: String,
}

/// A column of the table as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogueColumn {
    /// Its name.
    pub name: String,
    /// Such as `bigint unsigned` or `enum('a','b')`.
    pub definition: String,
    /// Its character set, if it holds text.
    pub character_set: Option<String>,
}

/// The outbox table as it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalogue {
    /// In their order; none if there is no such table, or no grant to see it.
    pub columns: Vec<CatalogueColumn>,
    /// When the table was made or last rebuilt, in seconds since 1970.
    pub created: Option<u64>,
}

/// Columns of the table that are the relay's own, to keep account of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bookkeeping {
    /// `status`, under its configured name.
    pub status: bool,
    /// `attempts`.
    pub attempts: bool,
    /// `last_error`.
    pub last_error: bool,
    /// `published_at`.
    pub published_at: bool,
    /// `locked_by` and `locked_until`.
    pub locks: bool,
}

impl Catalogue {
    /// Whether there is a column of that name.
    pub fn has(&self, name: &str) -> bool {
        self.column(name).is_some()
    }

    /// The column of that name, whatever its case.
    pub fn column(&self, name: &str) -> Option<&CatalogueColumn> {
        self.columns
            .iter()
            .find(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Which of its own columns the relay finds.
    pub fn bookkeeping(&self, columns: &Columns) -> Bookkeeping {
        Bookkeeping {
            status: columns
                .status()
                .is_some_and(|status| self.has(status.as_str())),
            attempts: self.has("attempts"),
            last_error: self.has("last_error"),
            published_at: self.has("published_at"),
            locks: self.has("locked_by") && self.has("locked_until"),
        }
    }

    /// Whether a table of these columns, without their names, in an event of that time can be this table: as many
    /// columns, each of its type, and nothing altered since.
    pub fn describes(&self, columns: &[Column], timestamp: u32) -> bool {
        self.columns.len() == columns.len()
            && self
                .created
                .is_none_or(|created| created <= u64::from(timestamp))
            && self
                .columns
                .iter()
                .zip(columns)
                .all(|(declared, column)| declared.fits(column.kind))
    }
}

/// Asks for the outbox table.
///
/// # Errors
/// The server can't be asked.
pub async fn catalogue(config: &Config, session: &mut Session) -> Result<Catalogue, MysqlError> {
    let params = (config.mysql.database(), config.table.as_str());
    let select = "SELECT CAST(UNIX_TIMESTAMP(create_time) AS UNSIGNED) FROM information_schema.tables \
                  WHERE table_schema = ? AND table_name = ?";
    let created: Vec<(Option<u64>,)> = session
        .rows("ask when the outbox table was made", select, params)
        .await?;
    let created = created.first().and_then(|(created,)| *created);
    let select = "SELECT column_name, CAST(column_type AS CHAR), character_set_name \
                  FROM information_schema.columns \
                  WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position";
    let rows: Vec<(String, String, Option<String>)> = session
        .rows("read the outbox table's columns", select, params)
        .await?;
    let columns = rows
        .into_iter()
        .map(|(name, definition, character_set)| CatalogueColumn {
            name,
            definition,
            character_set,
        });
    Ok(Catalogue {
        columns: columns.collect(),
        created,
    })
}

impl CatalogueColumn {
    /// Whether a column of that kind can be this one.
    fn fits(&self, kind: ColumnKind) -> bool {
        let definition = self.definition.to_ascii_lowercase();
        let word = definition.split(['(', ' ']).next().unwrap_or_default();
        match word {
            "tinyint" | "bool" | "boolean" => kind == ColumnKind::Integer(1),
            "smallint" => kind == ColumnKind::Integer(2),
            "mediumint" => kind == ColumnKind::Integer(3),
            "int" | "integer" => kind == ColumnKind::Integer(4),
            "bigint" => kind == ColumnKind::Integer(8),
            "enum" => matches!(kind, ColumnKind::Enum(_)),
            "varchar" | "varbinary" => {
                matches!(
                    kind,
                    ColumnKind::VarChar(_) | ColumnKind::CompressedVarChar(_)
                )
            }
            "char" | "binary" => matches!(kind, ColumnKind::Char(_)),
            "json" => matches!(kind, ColumnKind::Json | ColumnKind::Blob(_)),
            "datetime" => matches!(kind, ColumnKind::DateTime(_) | ColumnKind::OldDateTime),
            "timestamp" => matches!(kind, ColumnKind::Timestamp(_) | ColumnKind::OldTimestamp),
            word if word.ends_with("text") || word.ends_with("blob") => {
                matches!(kind, ColumnKind::Blob(_) | ColumnKind::CompressedBlob(_))
            }
            // The relay reads none of the others: their names are all that counts.
            _ => true,
        }
    }
}

/// Where the relay's fields are among the columns of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    places: [Option<usize>; FIELDS.len()],
}

impl Fields {
    /// The place of each field among columns of those names.
    ///
    /// # Errors
    /// The first that is required and not there.
    pub fn locate<'a>(
        columns: &Columns,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<Self, MissingColumn> {
        let mut places = [None; FIELDS.len()];
        let wanted = columns.names().iter().zip(FIELDS);
        for (place, (wanted, field)) in places.iter_mut().zip(wanted) {
            let Some(wanted) = wanted else { continue };
            *place = names
                .clone()
                .position(|name| name.eq_ignore_ascii_case(wanted.as_str()));
            if place.is_none() && field.required {
                let name = wanted.as_str().to_owned();
                return Err(MissingColumn { name });
            }
        }
        Ok(Self { places })
    }

    /// The place of each of [`FIELDS`].
    pub fn places(&self) -> &[Option<usize>; FIELDS.len()] {
        &self.places
    }
}

/// What is done to a row's values as they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finish {
    /// Fields that share the column of another: to, from.
    twins: Vec<(usize, usize)>,
    /// Fields in a `BINARY(16)` column.
    uuids: Vec<usize>,
}

/// Fields that may be a UUID in a `BINARY(16)` column: the keys.
const KEYS: [usize; 3] = [0, 2, 5];

impl Finish {
    /// For fields at those places of the table.
    pub fn new(fields: &Fields, catalogue: &Catalogue, columns: &Columns) -> Self {
        let places = fields.places();
        let mut finish = Self::default();
        for (at, place) in places.iter().enumerate() {
            let earlier = places.iter().take(at).position(|other| other == place);
            if let (Some(_), Some(earlier)) = (place, earlier) {
                finish.twins.push((at, earlier));
            }
        }
        for at in KEYS {
            let name = columns.names().get(at).and_then(Option::as_ref);
            let column = name.and_then(|name| catalogue.column(name.as_str()));
            if column.is_some_and(|column| column.definition.eq_ignore_ascii_case("binary(16)")) {
                finish.uuids.push(at);
            }
        }
        finish
    }

    /// The places of fields that are read from a column of their own.
    pub fn is_twin(&self, field: usize) -> bool {
        self.twins.iter().any(|(to, _)| *to == field)
    }

    /// Completes a row.
    pub fn apply(&self, row: &mut Row) {
        for (to, from) in &self.twins {
            let value = row.get(*from).cloned();
            if let (Some(place), Some(value)) = (row.get_mut(*to), value) {
                *place = value;
            }
        }
        for at in &self.uuids {
            if let Some(place) = row.get_mut(*at)
                && let Datum::Bytes(bytes) = place
                && let Ok(bytes) = <[u8; 16]>::try_from(bytes.as_slice())
            {
                *place = Datum::Uuid(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Raw;

    fn columns(pairs: &[(&str, &str)]) -> Columns {
        let pairs = pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Columns::from_raw(&Raw::load(None, pairs, std::iter::empty()).unwrap()).unwrap()
    }

    #[test]
    fn fields_are_found_by_name() {
        let names = "x,ID,payload,aggregate_type,aggregate_id,event_type,idempotency_key";
        let fields = Fields::locate(&columns(&[]), names.split(',')).unwrap();
        assert_eq!(
            fields.places()[..6],
            [Some(1), Some(3), Some(4), Some(5), Some(2), Some(6)]
        );
        assert_eq!(fields.places()[6..], [None; 6]);
        let missing = Fields::locate(&columns(&[]), "id".split(',')).unwrap_err();
        assert_eq!(missing.name, "aggregate_type");
    }

    #[test]
    fn fields_may_share_a_column_and_binary_keys_are_uuids() {
        let columns = columns(&[("RELAY_PRESET", "debezium")]);
        let declared = ["id", "aggregatetype", "aggregateid", "type", "payload"];
        let fields = Fields::locate(&columns, declared.into_iter()).unwrap();
        let column = |name: &str| CatalogueColumn {
            name: name.to_owned(),
            definition: if name == "id" {
                "binary(16)".to_owned()
            } else {
                "varchar(255)".to_owned()
            },
            character_set: None,
        };
        let catalogue = Catalogue {
            columns: declared.into_iter().map(column).collect(),
            created: None,
        };
        let finish = Finish::new(&fields, &catalogue, &columns);
        assert!(finish.is_twin(5) && !finish.is_twin(0));
        let mut row = [const { Datum::Null }; FIELDS.len()];
        row[0] = Datum::Bytes(vec![7; 16]);
        finish.apply(&mut row);
        assert_eq!(row[0], Datum::Uuid([7; 16]));
        assert_eq!(row[5], Datum::Uuid([7; 16]));
    }
}
