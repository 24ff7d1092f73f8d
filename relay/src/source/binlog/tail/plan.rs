//! How the rows of one version of the outbox table are read.

use super::super::decode::{ColumnRef, DecodeError, RowPlan, RowsEvent, TableMap};
use crate::catalogue::{Catalogue, Fields, Finish};
use crate::config::Columns;
use crate::event::{OutboxEvent, Row};

/// Why rows can't be read.
pub(super) enum Unreadable {
    /// They are not what they should be.
    Decode(DecodeError),
    /// They are, and this relay can't tell which columns they have. They are in the table as well, where columns have
    /// names.
    Nameless(String),
    /// They lack columns.
    Partial(String),
}

impl From<DecodeError> for Unreadable {
    fn from(error: DecodeError) -> Self {
        Unreadable::Decode(error)
    }
}

/// How to read the rows that follow a TABLE_MAP.
pub(super) struct Plan {
    /// The TABLE_MAP that it was made for.
    pub(super) map: Vec<u8>,
    pub(super) table_id: u64,
    /// How to read its rows; or why they can't be read, which matters only once there are some.
    rows: Result<(RowPlan, Finish), String>,
}

impl Plan {
    /// For the rows behind that TABLE_MAP.
    pub(super) fn new(
        map: &[u8],
        table_id: u64,
        timestamp: u32,
        catalogue: Option<&Catalogue>,
        columns: &Columns,
    ) -> Self {
        let rows = match TableMap::parse(map) {
            Ok(map) => plan_of(&map, timestamp, catalogue, columns),
            Err(error) => Err(error.to_string()),
        };
        Self {
            map: map.to_vec(),
            table_id,
            rows,
        }
    }

    /// The events in rows of this table.
    pub(super) fn events(
        &self,
        rows: &RowsEvent<'_>,
        mut each: impl FnMut(OutboxEvent),
    ) -> Result<(), Unreadable> {
        let (plan, finish) = match &self.rows {
            Ok(rows) => rows,
            Err(why) => return Err(Unreadable::Nameless(why.clone())),
        };
        let mut rows = rows.rows(plan)?;
        while let Some(row) = rows.next_row() {
            let mut row: Row = match row {
                Err(absent @ DecodeError::ColumnAbsent { .. }) => {
                    let why =
                        format!("{absent}: binlog_row_image is MINIMAL in the writer's session");
                    return Err(Unreadable::Partial(why));
                }
                row => row?,
            };
            finish.apply(&mut row);
            if let Some(event) = OutboxEvent::from_row(row) {
                each(event);
            }
        }
        Ok(())
    }
}

/// Which columns hold the fields: by the names in the binlog, or by those of the catalogue where the table is
/// surely the same as then.
fn plan_of(
    map: &TableMap,
    timestamp: u32,
    catalogue: Option<&Catalogue>,
    columns: &Columns,
) -> Result<(RowPlan, Finish), String> {
    let nothing = Catalogue::default();
    let catalogue = catalogue.unwrap_or(&nothing);
    let named = map.columns.iter().all(|column| column.name.is_some());
    let fields = if named {
        let names = map
            .columns
            .iter()
            .map(|column| column.name.as_deref().unwrap_or_default());
        Fields::locate(columns, names)
    } else if catalogue.describes(&map.columns, timestamp) {
        let names = catalogue.columns.iter().map(|column| column.name.as_str());
        Fields::locate(columns, names)
    } else {
        return Err(format!(
            "the table {}.{} was altered after these rows were written, and the binlog does not name its columns (SET GLOBAL binlog_row_metadata = 'FULL' lets it name them from now on)",
            map.schema, map.table
        ));
    };
    let fields =
        fields.map_err(|missing| format!("the table {}.{} {missing}", map.schema, map.table))?;
    let finish = Finish::new(&fields, catalogue, columns);
    let refs = fields
        .places()
        .iter()
        .enumerate()
        .filter_map(|(slot, place)| {
            let place = (*place).filter(|_| !finish.is_twin(slot))?;
            let column = ColumnRef::new(place, slot);
            // The declaration fills in what the binlog leaves out; by name, since columns may have moved since.
            let name = map
                .columns
                .get(place)
                .and_then(|column| column.name.as_deref());
            let declared = match name {
                Some(name) => catalogue
                    .columns
                    .iter()
                    .find(|other| other.name.eq_ignore_ascii_case(name)),
                None => catalogue.columns.get(place),
            };
            Some(match declared {
                Some(other) => {
                    column.declared_as(&other.definition, other.character_set.as_deref())
                }
                None => column,
            })
        });
    let wanted: Vec<ColumnRef> = refs.collect();
    let plan = RowPlan::new(map, &wanted).map_err(|error| error.to_string())?;
    Ok((plan, finish))
}
