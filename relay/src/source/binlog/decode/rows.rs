//! WRITE_ROWS events: rows cut into columns, the wanted ones decoded.
//!
//! MySQL source documentation, `mysql::binlog::event::Rows_event`. Each row is a bitmap with a bit for every
//! *present* column that is NULL, then the values of the present columns that are not.

use super::column::{ColumnKind, Layout};
use super::declared::Declared;
use super::reader::{Reader, bit};
use super::table_map::{TableMap, column_name};
use super::value::{BadValue, Decoder};
use super::{DecodeError, event_type};
use crate::event::Datum;

/// Post-header flag `STMT_END_F`: the last rows event of its statement.
const STATEMENT_END: u16 = 1;

/// A wanted column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnRef {
    column: usize,
    slot: usize,
    declared: Declared,
}

impl ColumnRef {
    /// The table's column of number `column` (from 0), to be put into place `slot` of each row.
    pub fn new(column: usize, slot: usize) -> Self {
        Self {
            column,
            slot,
            declared: Declared::default(),
        }
    }

    /// Adds what `COLUMN_TYPE` and `CHARACTER_SET_NAME` of `information_schema.COLUMNS` tell: labels where
    /// `binlog_row_metadata` is not FULL, signedness before MySQL 8.0, the digits of `FLOAT(7,2)`, and MariaDB's
    /// UUID and INET types, which the binlog does not tell from BINARY.
    #[must_use]
    pub fn declared_as(mut self, column_type: &str, character_set: Option<&str>) -> Self {
        self.declared = Declared::parse(column_type, character_set);
        self
    }
}

/// What to do with each column of a table's rows. Made once for a TABLE_MAP.
#[derive(Debug, Clone)]
pub struct RowPlan {
    table_id: u64,
    table: Box<str>,
    steps: Vec<Step>,
    takes: Vec<Take>,
    names: Vec<Box<str>>,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    layout: Layout,
    /// Which of the takes, if it is wanted.
    take: Option<u32>,
}

#[derive(Debug, Clone)]
struct Take {
    column: usize,
    slot: usize,
    decoder: Decoder,
}

impl RowPlan {
    /// Plans for the wanted columns; of two for the same column the last one counts.
    ///
    /// # Errors
    ///
    /// If the table has no such column, if a wanted column has a character set that can't be converted, or if any column
    /// is of an old temporal format and not declared to be without a fraction.
    pub fn new(map: &TableMap, wanted: &[ColumnRef]) -> Result<Self, DecodeError> {
        let mut plan = Self {
            table_id: map.table_id,
            table: format!("{}.{}", map.schema, map.table).into(),
            steps: map
                .columns
                .iter()
                .map(|column| Step {
                    layout: column.kind.layout(),
                    take: None,
                })
                .collect(),
            takes: Vec::with_capacity(wanted.len()),
            names: map
                .columns
                .iter()
                .enumerate()
                .map(|(at, column)| column_name(at, column.name.as_deref()))
                .collect(),
        };
        for wanted in wanted {
            plan.take(map, wanted)?;
        }
        plan.refuse_old_temporals(map, wanted)?;
        Ok(plan)
    }

    fn take(&mut self, map: &TableMap, wanted: &ColumnRef) -> Result<(), DecodeError> {
        let column = wanted.column;
        let places = map.columns.get(column).zip(self.steps.get_mut(column));
        let Some((described, step)) = places else {
            let (table, columns) = (self.table.clone(), map.columns.len());
            return Err(DecodeError::NoColumn {
                table,
                column,
                columns,
            });
        };
        step.take = u32::try_from(self.takes.len()).ok();
        let decoder = Decoder::of(described, &wanted.declared).map_err(|unknown| {
            let (table, column) = (self.table.clone(), self.name(column));
            DecodeError::Charset {
                table,
                column,
                collation: unknown.0,
            }
        })?;
        self.takes.push(Take {
            column,
            slot: wanted.slot,
            decoder,
        });
        Ok(())
    }

    /// In the old formats only a value without a fraction has a size that is known.
    fn refuse_old_temporals(
        &self,
        map: &TableMap,
        wanted: &[ColumnRef],
    ) -> Result<(), DecodeError> {
        for (at, column) in map.columns.iter().enumerate() {
            let is_old = matches!(
                column.kind,
                ColumnKind::OldTime | ColumnKind::OldDateTime | ColumnKind::OldTimestamp
            );
            let declared = wanted.iter().rfind(|wanted| wanted.column == at);
            if is_old && declared.and_then(|wanted| wanted.declared.fraction) != Some(0) {
                let (table, column) = (self.table.clone(), self.name(at));
                return Err(DecodeError::OldTemporal { table, column });
            }
        }
        Ok(())
    }

    /// The table id that the plan's rows events carry.
    pub fn table_id(&self) -> u64 {
        self.table_id
    }

    fn name(&self, column: usize) -> Box<str> {
        self.names
            .get(column)
            .cloned()
            .unwrap_or_else(|| column_name(column, None))
    }
}

/// A WRITE_ROWS event, cut into its parts.
#[derive(Debug, Clone, Copy)]
pub struct RowsEvent<'a> {
    /// Which TABLE_MAP it is of.
    pub table_id: u64,
    /// Whether it is the last of its statement: the server forgets its table maps behind it.
    pub ends_statement: bool,
    columns: usize,
    present: &'a [u8],
    body: &'a [u8],
}

impl<'a> RowsEvent<'a> {
    /// Parses the body of a WRITE_ROWS event of either version.
    ///
    /// # Errors
    ///
    /// If the event is of another type, or malformed.
    pub fn parse(event_type: u8, data: &'a [u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "WRITE_ROWS event";
        if !matches!(
            event_type,
            event_type::WRITE_ROWS_V1 | event_type::WRITE_ROWS
        ) {
            return Err(DecodeError::EventType {
                expected: WHAT,
                found: event_type,
            });
        }
        let mut reader = Reader::new(data);
        Self::read(event_type, &mut reader).ok_or_else(|| reader.cut(WHAT))
    }

    fn read(event_type: u8, reader: &mut Reader<'a>) -> Option<Self> {
        let mut header = *reader;
        let table_id = header.uint(6)?;
        let flags = header.u16()?;
        skip_rows_header(event_type, reader)?;
        let columns = reader.length()?;
        let present = reader.bytes(columns.div_ceil(8))?;
        Some(Self {
            table_id,
            ends_statement: flags & STATEMENT_END != 0,
            columns,
            present,
            body: reader.rest(),
        })
    }

    /// Its rows.
    ///
    /// # Errors
    ///
    /// If the event is of another table than the plan, or its image leaves out a wanted column.
    pub fn rows<'p>(&self, plan: &'p RowPlan) -> Result<Rows<'a, 'p>, DecodeError> {
        if self.table_id != plan.table_id || self.columns != plan.steps.len() {
            return Err(DecodeError::OtherTable {
                table: plan.table.clone(),
                table_id: plan.table_id,
                columns: plan.steps.len(),
                found_id: self.table_id,
                found_columns: self.columns,
            });
        }
        for take in &plan.takes {
            if !bit(self.present, take.column) {
                let (table, column) = (plan.table.clone(), plan.name(take.column));
                return Err(DecodeError::ColumnAbsent { table, column });
            }
        }
        let count = (0..self.columns)
            .filter(|at| bit(self.present, *at))
            .count();
        if count == 0 && !self.body.is_empty() {
            // Rows without columns take no bytes: there would be no end of them.
            return Err(DecodeError::Cut {
                what: "rows without columns",
                offset: 0,
            });
        }
        Ok(Rows {
            plan,
            present: (count < self.columns).then_some(self.present),
            null_bytes: count.div_ceil(8),
            body: Reader::new(self.body),
            row: 0,
        })
    }
}

/// Reads over the fixed and the variable header of a rows event.
pub(super) fn skip_rows_header(event_type: u8, reader: &mut Reader<'_>) -> Option<()> {
    // Table id, flags.
    reader.bytes(8)?;
    if event_type != event_type::WRITE_ROWS_V1 {
        // Extra data (NDB, partitions), whose length counts its own two bytes.
        let extra = usize::from(reader.u16()?).checked_sub(2)?;
        reader.bytes(extra)?;
    }
    Some(())
}

/// Reads over the column count and the bitmap of present columns.
pub(super) fn skip_columns_bitmap(reader: &mut Reader<'_>) -> Option<()> {
    let columns = reader.length()?;
    reader.bytes(columns.div_ceil(8)).map(|_| ())
}

/// The rows of an event. Ends behind the first error.
#[derive(Debug)]
pub struct Rows<'a, 'p> {
    plan: &'p RowPlan,
    /// Which columns are present, unless all are.
    present: Option<&'a [u8]>,
    null_bytes: usize,
    body: Reader<'a>,
    row: usize,
}

impl Rows<'_, '_> {
    /// The next row's wanted values, each in its slot. A slot of none is NULL; one past the end is left out.
    pub fn next_row<const N: usize>(&mut self) -> Option<Result<[Datum; N], DecodeError>> {
        let mut row = [const { Datum::Null }; N];
        match self.next_into(&mut row)? {
            Ok(()) => Some(Ok(row)),
            Err(error) => Some(Err(error)),
        }
    }

    /// As [`Rows::next_row`], into a row at hand.
    pub fn next_into(&mut self, row: &mut [Datum]) -> Option<Result<(), DecodeError>> {
        if self.body.is_empty() {
            return None;
        }
        row.fill(Datum::Null);
        let result = self.read_row(row);
        self.row += 1;
        if result.is_err() {
            self.body = Reader::new(&[]);
        }
        Some(result)
    }

    fn read_row(&mut self, row: &mut [Datum]) -> Result<(), DecodeError> {
        let plan = self.plan;
        let Some(nulls) = self.body.bytes(self.null_bytes) else {
            return Err(self.cut(0));
        };
        let mut nth = 0;
        for (at, step) in plan.steps.iter().enumerate() {
            if self.present.is_some_and(|present| !bit(present, at)) {
                continue;
            }
            let null = bit(nulls, nth);
            nth += 1;
            if null {
                continue;
            }
            let Some(bytes) = step.layout.take(&mut self.body) else {
                return Err(self.cut(at));
            };
            let Some(take) = step.take.and_then(|take| plan.takes.get(take as usize)) else {
                continue;
            };
            let datum = take
                .decoder
                .decode(bytes)
                .map_err(|bad| self.bad_value(take, bad))?;
            if let Some(slot) = row.get_mut(take.slot) {
                *slot = datum;
            }
        }
        Ok(())
    }

    #[cold]
    fn cut(&self, column: usize) -> DecodeError {
        DecodeError::Row {
            table: self.plan.table.clone(),
            column: self.plan.name(column),
            row: self.row,
            offset: self.body.offset(),
        }
    }

    #[cold]
    fn bad_value(&self, take: &Take, bad: BadValue) -> DecodeError {
        let (table, column) = (self.plan.table.clone(), self.plan.name(take.column));
        match bad {
            BadValue::Kind => DecodeError::Value {
                table,
                column,
                row: self.row,
                kind: take.decoder.kind(),
            },
            BadValue::Json(source) => DecodeError::Json {
                table,
                column,
                row: self.row,
                source,
            },
        }
    }
}
