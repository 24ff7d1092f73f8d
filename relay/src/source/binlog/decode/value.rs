//! A column's bytes → [`Datum`].

use super::charset::Charset;
use super::column::{Column, ColumnKind, Labels};
use super::declared::{Declared, Special};
use super::reader::big_endian;
use super::temporal::{self, Instant};
use super::{compressed, decimal, float};
use crate::event::Datum;
use crate::source::binlog::jsonb::{JsonbError, write_json};

/// How the bytes of a wanted column become a [`Datum`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decoder {
    Signed,
    Unsigned,
    Float(Option<u8>),
    Double(Option<u8>),
    Decimal {
        precision: u8,
        scale: u8,
    },
    Null,
    Year,
    Bit,
    Enum(Option<Labels>),
    Set(Option<Labels>),
    Text(Charset),
    /// BINARY: the row leaves out trailing zero bytes, `SELECT` does not.
    Padded(usize),
    Special(Special),
    CompressedText(Charset),
    Json,
    Date,
    OldTime,
    Time(u8),
    DateTime,
    OldDateTime,
    Timestamp,
    OldTimestamp,
}

/// Why bytes are no value.
#[derive(Debug)]
pub(crate) enum BadValue {
    /// Not of the column's type.
    Kind,
    /// Malformed binary JSON.
    Json(JsonbError),
}

/// A character set that [`Charset`] does not know, by its collation.
pub(crate) struct UnknownCharset(pub(crate) u32);

/// What `collation` says in a TABLE_MAP, `binary`.
const BINARY: u32 = 63;

impl Decoder {
    /// Picks the decoder for a column. What the event says comes first, then what the server's schema says.
    pub(crate) fn of(column: &Column, declared: &Declared) -> Result<Self, UnknownCharset> {
        let charset = || match (column.collation, declared.charset) {
            (Some(collation), _) => {
                Charset::of_collation(collation).ok_or(UnknownCharset(collation))
            }
            (None, Some(charset)) => Ok(charset),
            (None, None) => Ok(Charset::Utf8),
        };
        let labels = || -> Result<Option<Labels>, UnknownCharset> {
            let Some(labels) = &column.labels else {
                return Ok(declared.labels.clone());
            };
            let charset = charset()?;
            Ok(Some(
                labels
                    .iter()
                    .map(|label| charset.to_utf8(label).into_boxed_slice())
                    .collect(),
            ))
        };
        Ok(match column.kind {
            ColumnKind::Integer(_) if column.unsigned.unwrap_or(declared.unsigned) => {
                Decoder::Unsigned
            }
            ColumnKind::Integer(_) => Decoder::Signed,
            ColumnKind::Float => Decoder::Float(declared.decimals),
            ColumnKind::Double => Decoder::Double(declared.decimals),
            ColumnKind::Decimal { precision, scale } => Decoder::Decimal { precision, scale },
            ColumnKind::Null => Decoder::Null,
            ColumnKind::Year => Decoder::Year,
            ColumnKind::Date => Decoder::Date,
            ColumnKind::OldTime => Decoder::OldTime,
            ColumnKind::OldDateTime => Decoder::OldDateTime,
            ColumnKind::OldTimestamp => Decoder::OldTimestamp,
            ColumnKind::Time(digits) => Decoder::Time(digits),
            ColumnKind::DateTime(_) => Decoder::DateTime,
            ColumnKind::Timestamp(_) => Decoder::Timestamp,
            ColumnKind::Bit(_) => Decoder::Bit,
            ColumnKind::Enum(_) => Decoder::Enum(labels()?),
            ColumnKind::Set(_) => Decoder::Set(labels()?),
            ColumnKind::Char(length) => match declared.special {
                Some(special) => Decoder::Special(special),
                None if column.collation.map_or(declared.binary, |id| id == BINARY) => {
                    Decoder::Padded(usize::from(length))
                }
                None => Decoder::Text(charset()?),
            },
            ColumnKind::VarChar(_) | ColumnKind::Blob(_) => Decoder::Text(charset()?),
            ColumnKind::CompressedVarChar(_) | ColumnKind::CompressedBlob(_) => {
                Decoder::CompressedText(charset()?)
            }
            ColumnKind::Json | ColumnKind::TypedArray => Decoder::Json,
            ColumnKind::Geometry | ColumnKind::Vector => Decoder::Text(Charset::Utf8),
        })
    }

    /// What a column's bytes should be, for errors.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Decoder::Signed | Decoder::Unsigned => "integer",
            Decoder::Float(_) => "FLOAT",
            Decoder::Double(_) => "DOUBLE",
            Decoder::Decimal { .. } => "DECIMAL",
            Decoder::Null => "NULL",
            Decoder::Year => "YEAR",
            Decoder::Bit => "BIT",
            Decoder::Enum(_) => "ENUM",
            Decoder::Set(_) => "SET",
            Decoder::Text(_) => "text",
            Decoder::Padded(_) => "BINARY",
            Decoder::Special(_) => "UUID or network address",
            Decoder::CompressedText(_) => "compressed text",
            Decoder::Json => "binary JSON",
            Decoder::Date => "DATE",
            Decoder::OldTime | Decoder::Time(_) => "TIME",
            Decoder::DateTime | Decoder::OldDateTime => "DATETIME",
            Decoder::Timestamp | Decoder::OldTimestamp => "TIMESTAMP",
        }
    }

    /// The value of a column's bytes.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<Datum, BadValue> {
        if matches!(self, Decoder::Json) {
            // Text is about as long as its binary form.
            let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 8 + 16);
            return match write_json(bytes, &mut out) {
                Ok(()) => Ok(Datum::Bytes(out)),
                Err(error) => Err(BadValue::Json(error)),
            };
        }
        self.scalar(bytes).ok_or(BadValue::Kind)
    }

    fn scalar(&self, bytes: &[u8]) -> Option<Datum> {
        let text = |write: &dyn Fn(&mut Vec<u8>) -> Option<()>| {
            let mut out = Vec::with_capacity(32);
            write(&mut out).map(|()| Datum::Bytes(out))
        };
        match self {
            Decoder::Signed => signed(bytes).map(Datum::Int),
            Decoder::Unsigned => unsigned(bytes).map(Datum::UInt),
            Decoder::Float(decimals) => {
                let value = f32::from_le_bytes(bytes.try_into().ok()?);
                let mut out = Vec::with_capacity(16);
                match decimals {
                    Some(decimals) => float::write_fixed(value.into(), *decimals, &mut out),
                    None => float::write_float(value, &mut out),
                }
                Some(Datum::Bytes(out))
            }
            Decoder::Double(decimals) => {
                let value = f64::from_le_bytes(bytes.try_into().ok()?);
                let mut out = Vec::with_capacity(32);
                match decimals {
                    Some(decimals) => float::write_fixed(value, *decimals, &mut out),
                    None => float::write_double(value, &mut out),
                }
                Some(Datum::Bytes(out))
            }
            Decoder::Decimal { precision, scale } => {
                text(&|out| decimal::write_decimal(bytes, *precision, *scale, out))
            }
            Decoder::Null => Some(Datum::Null),
            Decoder::Year => match *bytes {
                [0] => Some(Datum::UInt(0)),
                [year] => Some(Datum::UInt(1900 + u64::from(year))),
                _ => None,
            },
            Decoder::Bit => big_endian(bytes).map(Datum::UInt),
            Decoder::Enum(labels) => unsigned(bytes).map(|index| label(index, labels.as_deref())),
            Decoder::Set(labels) => unsigned(bytes).map(|bits| members(bits, labels.as_deref())),
            Decoder::Text(charset) => Some(Datum::Bytes(charset.to_utf8(bytes))),
            Decoder::Padded(length) => {
                let mut padded = bytes.to_vec();
                padded.resize((*length).max(bytes.len()), 0);
                Some(Datum::Bytes(padded))
            }
            Decoder::Special(special) => text(&|out| special.write(bytes, out)),
            Decoder::CompressedText(charset) => {
                compressed::column(bytes).map(|bytes| Datum::Bytes(charset.to_utf8(&bytes)))
            }
            Decoder::Json => None,
            Decoder::Date => text(&|out| temporal::write_date(bytes, out)),
            Decoder::OldTime => text(&|out| temporal::write_old_time(bytes, out)),
            Decoder::Time(digits) => text(&|out| temporal::write_time(bytes, *digits, out)),
            Decoder::DateTime => temporal::datetime(bytes).map(instant),
            Decoder::OldDateTime => temporal::old_datetime(bytes).map(instant),
            Decoder::Timestamp => temporal::timestamp(bytes).map(instant),
            Decoder::OldTimestamp => temporal::old_timestamp(bytes).map(instant),
        }
    }
}

/// A zero date is no point in time: NULL, as drivers that can't express it make of it.
const fn instant(instant: Instant) -> Datum {
    match instant {
        Instant::Zero => Datum::Null,
        Instant::Micros(micros) => Datum::Micros(micros),
    }
}

fn unsigned(bytes: &[u8]) -> Option<u64> {
    let mut wide = [0; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(wide))
}

fn signed(bytes: &[u8]) -> Option<i64> {
    // At the upper end, so that the shift back extends the sign.
    let unused = 8_usize.checked_sub(bytes.len())?;
    let mut wide = [0; 8];
    wide.get_mut(unused..)?.copy_from_slice(bytes);
    let shift = u32::try_from(unused).ok()? * 8;
    Some(i64::from_le_bytes(wide).checked_shr(shift).unwrap_or(0))
}

/// ENUM values count from 1; 0 stands for a value that was not one of them, and prints as nothing.
fn label(index: u64, labels: Option<&[Box<[u8]>]>) -> Datum {
    let Some(labels) = labels else {
        return Datum::UInt(index);
    };
    let Some(at) = index.checked_sub(1) else {
        return Datum::Bytes(Vec::new());
    };
    usize::try_from(at)
        .ok()
        .and_then(|at| labels.get(at))
        .map_or(Datum::UInt(index), |label| Datum::Bytes(label.to_vec()))
}

/// The members of a SET, joined by commas.
fn members(bits: u64, labels: Option<&[Box<[u8]>]>) -> Datum {
    let Some(labels) = labels else {
        return Datum::UInt(bits);
    };
    if bits
        .checked_shr(u32::try_from(labels.len()).unwrap_or(64))
        .unwrap_or(0)
        != 0
    {
        return Datum::UInt(bits);
    }
    let mut text = Vec::new();
    for (_, label) in labels
        .iter()
        .enumerate()
        .filter(|(at, _)| bits >> at & 1 == 1)
    {
        if !text.is_empty() {
            text.push(b',');
        }
        text.extend_from_slice(label);
    }
    Datum::Bytes(text)
}
