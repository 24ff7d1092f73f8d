//! Where the outbox table's columns are: from the server's catalogue, for binlogs that carry no names.

use super::decode::{Column, ColumnKind};
use crate::config::Config;
use crate::event::{FIELDS, Field};
use crate::mysql::{MysqlError, Session};

/// A column of the table as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CatalogueColumn {
    pub(super) name: String,
    /// Such as `bigint unsigned` or `enum('a','b')`.
    pub(super) definition: String,
    pub(super) character_set: Option<String>,
}

/// The outbox table as it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Catalogue {
    /// In their order; none if there is no such table, or no grant to see it.
    pub(super) columns: Vec<CatalogueColumn>,
    /// When the table was made or last rebuilt, in seconds since 1970.
    pub(super) created: Option<u64>,
}

impl Catalogue {
    /// Whether a table of these columns, without their names, in an event of that time can be this table: as many
    /// columns, each of its type, and nothing altered since.
    pub(super) fn describes(&self, columns: &[Column], timestamp: u32) -> bool {
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
pub(super) async fn catalogue(
    config: &Config,
    session: &mut Session,
) -> Result<Catalogue, MysqlError> {
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

/// The place of each of [`FIELDS`] among columns of those names; or the first that is required and not there.
pub(super) fn places<'a>(
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<[Option<usize>; FIELDS.len()], Field> {
    let mut places = [None; FIELDS.len()];
    for (place, field) in places.iter_mut().zip(FIELDS) {
        *place = names
            .clone()
            .position(|name| name.eq_ignore_ascii_case(field.name));
        if place.is_none() && field.required {
            return Err(field);
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    #[test]
    fn places_are_found_by_name() {
        let names = "x,ID,payload,aggregate_type,aggregate_id,event_type,idempotency_key";
        let places = super::places(names.split(',')).unwrap();
        assert_eq!(
            places[..6],
            [Some(1), Some(3), Some(4), Some(5), Some(2), Some(6)]
        );
        assert_eq!(places[6..], [None, None, None]);
        assert_eq!(
            super::places("id".split(',')).unwrap_err().name,
            "aggregate_type"
        );
    }
}
