//! TABLE_MAP events: which table the row events behind it are of, and its columns.
//!
//! MySQL source documentation, `mysql::binlog::event::Table_map_event`; MariaDB writes the same optional
//! metadata since 10.5.

use std::fmt;

use super::DecodeError;
use super::column::{BadType, Column, ColumnKind, Labels};
use super::reader::{Reader, bit};

const TABLE_MAP: &str = "TABLE_MAP event";

/// The name in a TABLE_MAP event, without the rest of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableName<'a> {
    /// By which the rows events refer to it.
    pub table_id: u64,
    /// Database.
    pub schema: &'a [u8],
    /// Table.
    pub table: &'a [u8],
}

impl<'a> TableName<'a> {
    /// Reads no further than the name: whatever columns the table has can do no harm.
    ///
    /// # Errors
    ///
    /// If the bytes end too early.
    pub fn peek(data: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(data);
        read_name(&mut reader)
            .map(|(name, _)| name)
            .ok_or_else(|| reader.cut(TABLE_MAP))
    }
}

impl fmt::Display for TableName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (schema, table) = (
            String::from_utf8_lossy(self.schema),
            String::from_utf8_lossy(self.table),
        );
        write!(f, "{schema}.{table}")
    }
}

/// The name and the flags.
fn read_name<'a>(reader: &mut Reader<'a>) -> Option<(TableName<'a>, u16)> {
    let table_id = reader.uint(6)?;
    let flags = reader.u16()?;
    let schema = reader.lenenc_bytes()?;
    reader.u8()?;
    let table = reader.lenenc_bytes()?;
    reader.u8()?;
    Some((
        TableName {
            table_id,
            schema,
            table,
        },
        flags,
    ))
}

/// A table, as its TABLE_MAP event describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableMap {
    /// By which the rows events refer to it.
    pub table_id: u64,
    /// Flags of the event.
    pub flags: u16,
    /// Database.
    pub schema: Box<str>,
    /// Table.
    pub table: Box<str>,
    /// Its columns, in the order of their definition.
    pub columns: Vec<Column>,
}

impl TableMap {
    /// Parses the body of a TABLE_MAP event.
    ///
    /// # Errors
    ///
    /// If the event is malformed, or a column has an unknown type.
    pub fn parse(data: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(data);
        let raw = RawMap::read(&mut reader).ok_or_else(|| reader.cut(TABLE_MAP))?;
        let mut columns = raw.placeholders();
        raw.read_optional(&mut columns)?;
        let mut metadata = Reader::new(raw.metadata);
        for (at, (column, number)) in columns.iter_mut().zip(raw.types).enumerate() {
            column.kind = ColumnKind::read(*number, &mut metadata).map_err(|bad| match bad {
                BadType::Unknown(kind) => DecodeError::UnknownType {
                    table: raw.name.to_string().into(),
                    column: column_name(at, column.name.as_deref()),
                    kind,
                },
                BadType::Metadata => DecodeError::Cut {
                    what: "column metadata of a TABLE_MAP event",
                    offset: at,
                },
            })?;
        }
        Ok(Self {
            table_id: raw.name.table_id,
            flags: raw.flags,
            schema: String::from_utf8_lossy(raw.name.schema).into(),
            table: String::from_utf8_lossy(raw.name.table).into(),
            columns,
        })
    }

    /// The index of the column of this name, where the event carries names.
    pub fn column(&self, name: &str) -> Option<usize> {
        // Column names compare without case (MySQL manual, "Identifier Case Sensitivity").
        self.columns.iter().position(|column| {
            column
                .name
                .as_deref()
                .is_some_and(|other| other.eq_ignore_ascii_case(name))
        })
    }
}

/// How errors name a column.
pub(super) fn column_name(at: usize, name: Option<&str>) -> Box<str> {
    name.map_or_else(|| format!("#{at}").into(), Box::from)
}

/// The event cut into its parts.
struct RawMap<'a> {
    name: TableName<'a>,
    flags: u16,
    types: &'a [u8],
    metadata: &'a [u8],
    nullable: &'a [u8],
    optional: &'a [u8],
}

impl<'a> RawMap<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let (name, flags) = read_name(reader)?;
        let columns = reader.length()?;
        Some(Self {
            name,
            flags,
            types: reader.bytes(columns)?,
            metadata: reader.lenenc_bytes()?,
            nullable: reader.bytes(columns.div_ceil(8))?,
            optional: reader.rest(),
        })
    }

    fn placeholders(&self) -> Vec<Column> {
        (0..self.types.len())
            .map(|at| Column {
                kind: ColumnKind::Null,
                nullable: bit(self.nullable, at),
                unsigned: None,
                collation: None,
                name: None,
                labels: None,
            })
            .collect()
    }

    /// Indices of the columns whose type number `belongs`.
    fn of_type(&self, belongs: fn(u8) -> bool) -> impl Iterator<Item = usize> {
        let mut metadata = Reader::new(self.metadata);
        self.types
            .iter()
            .enumerate()
            .filter_map(move |(at, number)| {
                // CHAR, ENUM and SET share a type number, and differ in their metadata.
                let number = match ColumnKind::read(*number, &mut metadata) {
                    Ok(ColumnKind::Enum(_)) => 247,
                    Ok(ColumnKind::Set(_)) => 248,
                    Ok(_) | Err(_) => *number,
                };
                belongs(number).then_some(at)
            })
    }

    /// Type, length, value: what is not of use here is skipped, and so is what is yet to be invented.
    fn read_optional(&self, columns: &mut [Column]) -> Result<(), DecodeError> {
        let mut reader = Reader::new(self.optional);
        while !reader.is_empty() {
            let field = reader.u8().zip(reader.lenenc_bytes());
            let read = field.and_then(|(kind, value)| match kind {
                1 => self.read_signedness(columns, value),
                2 => self.read_default_charset(columns, value),
                3 => self.read_charsets(columns, value),
                4 => read_names(columns, value),
                5 => read_labels(columns, self.of_type(|number| number == 248), value),
                6 => read_labels(columns, self.of_type(|number| number == 247), value),
                10 => read_default_charset(columns, self.of_type(is_labelled), value),
                11 => read_charsets(columns, self.of_type(is_labelled), value),
                _ => Some(()),
            });
            read.ok_or_else(|| reader.cut("optional metadata of a TABLE_MAP event"))?;
        }
        Ok(())
    }

    /// MariaDB counts GEOMETRY among the columns with a character set, MySQL does not, and nothing tells which
    /// server wrote this. A table with such a column, and with several character sets, is left to its definition.
    fn read_default_charset(&self, columns: &mut [Column], value: &[u8]) -> Option<()> {
        if self.types.contains(&GEOMETRY) {
            return Some(());
        }
        read_default_charset(columns, self.of_type(is_character), value)
    }

    /// Here the number of collations tells.
    fn read_charsets(&self, columns: &mut [Column], value: &[u8]) -> Option<()> {
        let mut reader = Reader::new(value);
        let mut count = 0;
        while !reader.is_empty() {
            reader.lenenc()?;
            count += 1;
        }
        if self.of_type(is_character).count() == count {
            return read_charsets(columns, self.of_type(is_character), value);
        }
        let with_geometry = |number| is_character(number) || number == GEOMETRY;
        read_charsets(columns, self.of_type(with_geometry), value)
    }

    /// One bit for each numeric column, most significant first.
    fn read_signedness(&self, columns: &mut [Column], bits: &[u8]) -> Option<()> {
        for (nth, at) in self.of_type(is_numeric).enumerate() {
            let byte = *bits.get(nth / 8)?;
            columns.get_mut(at)?.unsigned = Some(byte >> (7 - nth % 8) & 1 == 1);
        }
        Some(())
    }
}

/// TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, YEAR, NEWDECIMAL: the columns with a signedness bit.
const fn is_numeric(number: u8) -> bool {
    matches!(number, 1..=5 | 8 | 9 | 13 | 246)
}

const GEOMETRY: u8 = 255;

/// VARCHAR, the BLOB family, VAR_STRING, STRING, VECTOR: the columns with a character set, be it `binary`.
const fn is_character(number: u8) -> bool {
    matches!(number, 15 | 140 | 141 | 242 | 249..=254) && !is_labelled(number)
}

/// ENUM and SET.
const fn is_labelled(number: u8) -> bool {
    matches!(number, 247 | 248)
}

fn read_names(columns: &mut [Column], value: &[u8]) -> Option<()> {
    let mut reader = Reader::new(value);
    for column in columns {
        column.name = Some(String::from_utf8_lossy(reader.lenenc_bytes()?).into());
    }
    Some(())
}

fn read_labels(
    columns: &mut [Column],
    labelled: impl Iterator<Item = usize>,
    value: &[u8],
) -> Option<()> {
    let mut reader = Reader::new(value);
    for at in labelled {
        let count = reader.length()?;
        // Each label takes a byte at least: no count reserves more than there is.
        let mut labels = Vec::with_capacity(count.min(reader.rest().len()));
        for _ in 0..count {
            labels.push(Box::from(reader.lenenc_bytes()?));
        }
        columns.get_mut(at)?.labels = Some(Labels::from(labels));
    }
    Some(())
}

/// One collation for all, then pairs of a number among these columns and its own collation.
fn read_default_charset(
    columns: &mut [Column],
    textual: impl Iterator<Item = usize>,
    value: &[u8],
) -> Option<()> {
    let mut reader = Reader::new(value);
    let default = u32::try_from(reader.lenenc()?).ok()?;
    let textual: Vec<usize> = textual.collect();
    for at in &textual {
        columns.get_mut(*at)?.collation = Some(default);
    }
    while !reader.is_empty() {
        let at = *textual.get(reader.length()?)?;
        columns.get_mut(at)?.collation = Some(u32::try_from(reader.lenenc()?).ok()?);
    }
    Some(())
}

/// One collation for each of these columns.
fn read_charsets(
    columns: &mut [Column],
    textual: impl Iterator<Item = usize>,
    value: &[u8],
) -> Option<()> {
    let mut reader = Reader::new(value);
    for at in textual {
        columns.get_mut(at)?.collation = Some(u32::try_from(reader.lenenc()?).ok()?);
    }
    Some(())
}
