//! Where the outbox table's columns are: from the server's catalogue, for binlogs that carry no names.

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

/// The columns of the outbox table, in their order; none if there is no such table, or no grant to see it.
pub(super) async fn catalogue(
    config: &Config,
    session: &mut Session,
) -> Result<Vec<CatalogueColumn>, MysqlError> {
    let select = "SELECT column_name, CAST(column_type AS CHAR), character_set_name \
                  FROM information_schema.columns \
                  WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position";
    let params = (config.mysql.database(), config.table.as_str());
    let rows: Vec<(String, String, Option<String>)> = session
        .rows("read the outbox table's columns", select, params)
        .await?;
    Ok(rows
        .into_iter()
        .map(|(name, definition, character_set)| CatalogueColumn {
            name,
            definition,
            character_set,
        })
        .collect())
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
