//! Column types as a TABLE_MAP event describes them, and how many bytes their values take in a row.

use std::sync::Arc;

use super::reader::Reader;

/// The labels of an ENUM or SET column, in their order.
pub(crate) type Labels = Arc<[Box<[u8]>]>;

/// A column of a table, as far as the binlog describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its type.
    pub kind: ColumnKind,
    /// Whether it may be NULL.
    pub nullable: bool,
    /// Whether it is unsigned; `None` where the server sends no signedness (MySQL before 8.0, MariaDB before 10.5).
    pub unsigned: Option<bool>,
    /// Collation of a text, ENUM or SET column, where the server sends it.
    pub collation: Option<u32>,
    /// Its name, with `binlog_row_metadata = FULL`.
    pub name: Option<Box<str>>,
    /// Labels of an ENUM or SET column, in the column's character set, with `binlog_row_metadata = FULL`.
    pub labels: Option<Labels>,
}

/// A column's type, with what its metadata adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// TINYINT, SMALLINT, MEDIUMINT, INT, BIGINT of so many bytes.
    Integer(u8),
    /// FLOAT.
    Float,
    /// DOUBLE.
    Double,
    /// DECIMAL.
    Decimal {
        /// Digits in all.
        precision: u8,
        /// Digits behind the point.
        scale: u8,
    },
    /// A column that is always NULL.
    Null,
    /// YEAR.
    Year,
    /// DATE.
    Date,
    /// TIME as stored before MySQL 5.6.
    OldTime,
    /// DATETIME as stored before MySQL 5.6.
    OldDateTime,
    /// TIMESTAMP as stored before MySQL 5.6.
    OldTimestamp,
    /// TIME with so many fractional digits.
    Time(u8),
    /// DATETIME with so many fractional digits.
    DateTime(u8),
    /// TIMESTAMP with so many fractional digits.
    Timestamp(u8),
    /// BIT in so many bytes.
    Bit(u8),
    /// ENUM in so many bytes.
    Enum(u8),
    /// SET in so many bytes.
    Set(u8),
    /// CHAR or BINARY of at most so many bytes; INET6 and UUID of MariaDB too.
    Char(u16),
    /// VARCHAR or VARBINARY of at most so many bytes.
    VarChar(u16),
    /// The BLOB and TEXT family, whose length takes so many bytes.
    Blob(u8),
    /// JSON of MySQL.
    Json,
    /// GEOMETRY and its subtypes.
    Geometry,
    /// VECTOR of MySQL.
    Vector,
    /// The hidden column of a multi-valued index.
    TypedArray,
    /// VARCHAR … COMPRESSED of MariaDB.
    CompressedVarChar(u16),
    /// BLOB and TEXT … COMPRESSED of MariaDB.
    CompressedBlob(u8),
}

/// How a value's bytes are found in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Always so many bytes.
    Fixed(u8),
    /// A little-endian length of so many bytes, then as many bytes as it says.
    Prefixed(u8),
}

impl Layout {
    /// Takes one value off the row.
    #[inline]
    pub(crate) fn take<'a>(self, row: &mut Reader<'a>) -> Option<&'a [u8]> {
        let length = match self {
            Layout::Fixed(length) => usize::from(length),
            Layout::Prefixed(1) => usize::from(row.u8()?),
            Layout::Prefixed(2) => usize::from(row.u16()?),
            Layout::Prefixed(4) => usize::try_from(row.u32()?).ok()?,
            Layout::Prefixed(width) => usize::try_from(row.uint(usize::from(width))?).ok()?,
        };
        row.bytes(length)
    }
}

/// Bytes of a column's metadata, where its type number is known.
///
/// MySQL source documentation, `Table_map_event`, "Table_map_event column types: numerical identifier and
/// metadata".
const fn metadata_length(number: u8) -> Option<usize> {
    match number {
        1..=3 | 6..=14 => Some(0),
        4 | 5 | 17..=19 | 140 | 242 | 245 | 249..=252 | 255 => Some(1),
        15 | 16 | 141 | 246..=248 | 253 | 254 => Some(2),
        _ => None,
    }
}

/// What is wrong with a column's metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadType {
    /// No such type number is known.
    Unknown(u8),
    /// The metadata end too early, or don't fit the type.
    Metadata,
}

impl ColumnKind {
    /// Reads the metadata of a column whose type number is `number`.
    pub(crate) fn read(number: u8, metadata: &mut Reader<'_>) -> Result<Self, BadType> {
        // MYSQL_TYPE_TYPED_ARRAY: the element type comes first, with its own metadata behind it
        // (three bytes for VARCHAR); values are binary JSON.
        if number == 20 {
            let element = metadata.u8().ok_or(BadType::Metadata)?;
            let length = match element {
                15 => 3,
                _ => metadata_length(element).ok_or(BadType::Unknown(element))?,
            };
            metadata.bytes(length).ok_or(BadType::Metadata)?;
            return Ok(ColumnKind::TypedArray);
        }
        let length = metadata_length(number).ok_or(BadType::Unknown(number))?;
        let (low, high) = match *metadata.bytes(length).ok_or(BadType::Metadata)? {
            [] => (0, 0),
            [low] => (low, 0),
            [low, high, ..] => (low, high),
        };
        Self::of(number, low, high).ok_or(BadType::Metadata)
    }

    /// The type of number `number` with the metadata bytes `low` and `high`.
    fn of(number: u8, low: u8, high: u8) -> Option<Self> {
        let wide = u16::from_le_bytes([low, high]);
        let prefix = (1..=4).contains(&low).then_some(low);
        let fraction = (low <= 6).then_some(low);
        Some(match number {
            1 => ColumnKind::Integer(1),
            2 => ColumnKind::Integer(2),
            3 => ColumnKind::Integer(4),
            4 if low == 8 => ColumnKind::Double,
            4 => ColumnKind::Float,
            5 => ColumnKind::Double,
            6 => ColumnKind::Null,
            7 => ColumnKind::OldTimestamp,
            8 => ColumnKind::Integer(8),
            9 => ColumnKind::Integer(3),
            10 | 14 => ColumnKind::Date,
            11 => ColumnKind::OldTime,
            12 => ColumnKind::OldDateTime,
            13 => ColumnKind::Year,
            15 | 253 => ColumnKind::VarChar(wide),
            16 => {
                let bytes = high.checked_add(u8::from(low > 0))?;
                (bytes <= 8).then_some(ColumnKind::Bit(bytes))?
            }
            17 => ColumnKind::Timestamp(fraction?),
            18 => ColumnKind::DateTime(fraction?),
            19 => ColumnKind::Time(fraction?),
            140 => ColumnKind::CompressedBlob(prefix?),
            141 => ColumnKind::CompressedVarChar(wide),
            242 => ColumnKind::Vector,
            245 => ColumnKind::Json,
            246 if (1..=super::decimal::MAX_PRECISION).contains(&low) && high <= low => {
                ColumnKind::Decimal {
                    precision: low,
                    scale: high,
                }
            }
            249..=252 => ColumnKind::Blob(prefix?),
            254 => Self::of_string(low, high)?,
            255 => ColumnKind::Geometry,
            247 | 248 => Self::of_string(number, high)?,
            _ => return None,
        })
    }

    /// `MYSQL_TYPE_STRING` stands for CHAR, ENUM and SET: the first metadata byte tells which, and lends two
    /// of its bits, inverted, to the length (`Field_string::do_save_field_metadata`).
    fn of_string(real: u8, length: u8) -> Option<Self> {
        let (number, extra) = if real & 0x30 == 0x30 {
            (real, 0)
        } else {
            (real | 0x30, (real & 0x30) ^ 0x30)
        };
        match number {
            247 => matches!(length, 1 | 2).then_some(ColumnKind::Enum(length)),
            248 => matches!(length, 1..=8).then_some(ColumnKind::Set(length)),
            254 | 253 => Some(ColumnKind::Char(u16::from(extra) << 4 | u16::from(length))),
            _ => None,
        }
    }

    /// How its values are laid out in a row.
    pub(crate) fn layout(self) -> Layout {
        let text = |length: u16| Layout::Prefixed(if length > 255 { 2 } else { 1 });
        // Two digits a byte.
        let fraction = |digits: u8| digits.div_ceil(2);
        match self {
            ColumnKind::Integer(bytes)
            | ColumnKind::Bit(bytes)
            | ColumnKind::Enum(bytes)
            | ColumnKind::Set(bytes) => Layout::Fixed(bytes),
            ColumnKind::Float | ColumnKind::OldTimestamp => Layout::Fixed(4),
            ColumnKind::Double | ColumnKind::OldDateTime => Layout::Fixed(8),
            ColumnKind::Decimal { precision, scale } => {
                Layout::Fixed(super::decimal::stored_length(precision, scale))
            }
            ColumnKind::Null => Layout::Fixed(0),
            ColumnKind::Year => Layout::Fixed(1),
            ColumnKind::Date | ColumnKind::OldTime => Layout::Fixed(3),
            ColumnKind::Time(digits) => Layout::Fixed(3 + fraction(digits)),
            ColumnKind::DateTime(digits) => Layout::Fixed(5 + fraction(digits)),
            ColumnKind::Timestamp(digits) => Layout::Fixed(4 + fraction(digits)),
            ColumnKind::Char(length)
            | ColumnKind::VarChar(length)
            | ColumnKind::CompressedVarChar(length) => text(length),
            ColumnKind::Blob(prefix) | ColumnKind::CompressedBlob(prefix) => {
                Layout::Prefixed(prefix)
            }
            ColumnKind::Json
            | ColumnKind::Geometry
            | ColumnKind::Vector
            | ColumnKind::TypedArray => Layout::Prefixed(4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(number: u8, metadata: &[u8]) -> Result<ColumnKind, BadType> {
        ColumnKind::read(number, &mut Reader::new(metadata))
    }

    #[test]
    fn types_and_metadata() {
        for (number, metadata, kind, layout) in [
            (8, &[][..], ColumnKind::Integer(8), Layout::Fixed(8)),
            (
                15,
                &[0xff, 0],
                ColumnKind::VarChar(255),
                Layout::Prefixed(1),
            ),
            (15, &[0, 1], ColumnKind::VarChar(256), Layout::Prefixed(2)),
            (
                246,
                &[10, 2],
                ColumnKind::Decimal {
                    precision: 10,
                    scale: 2,
                },
                Layout::Fixed(5),
            ),
            (254, &[247, 1], ColumnKind::Enum(1), Layout::Fixed(1)),
            (254, &[248, 8], ColumnKind::Set(8), Layout::Fixed(8)),
            (254, &[254, 40], ColumnKind::Char(40), Layout::Prefixed(1)),
            // CHAR(255) in utf8mb4: 1020 = 0x3fc bytes.
            (
                254,
                &[0xce, 0xfc],
                ColumnKind::Char(1020),
                Layout::Prefixed(2),
            ),
            (16, &[1, 1], ColumnKind::Bit(2), Layout::Fixed(2)),
            (16, &[0, 8], ColumnKind::Bit(8), Layout::Fixed(8)),
            (18, &[6], ColumnKind::DateTime(6), Layout::Fixed(8)),
            (17, &[3], ColumnKind::Timestamp(3), Layout::Fixed(6)),
            (19, &[1], ColumnKind::Time(1), Layout::Fixed(4)),
            (252, &[4], ColumnKind::Blob(4), Layout::Prefixed(4)),
            (242, &[4], ColumnKind::Vector, Layout::Prefixed(4)),
            (
                20,
                &[15, 1, 2, 3],
                ColumnKind::TypedArray,
                Layout::Prefixed(4),
            ),
            (20, &[8], ColumnKind::TypedArray, Layout::Prefixed(4)),
        ] {
            let read = read(number, metadata).unwrap();
            assert_eq!((read, read.layout()), (kind, layout), "type {number}");
        }
    }

    #[test]
    fn unknown_and_malformed_types() {
        assert_eq!(read(241, &[1, 2, 3]), Err(BadType::Unknown(241)));
        assert_eq!(read(20, &[241]), Err(BadType::Unknown(241)));
        assert_eq!(read(15, &[1]), Err(BadType::Metadata));
        assert_eq!(read(18, &[7]), Err(BadType::Metadata));
        assert_eq!(read(252, &[5]), Err(BadType::Metadata));
        assert_eq!(read(246, &[2, 3]), Err(BadType::Metadata));
        assert_eq!(read(16, &[7, 8]), Err(BadType::Metadata));
        assert_eq!(read(254, &[247, 3]), Err(BadType::Metadata));
    }
}
