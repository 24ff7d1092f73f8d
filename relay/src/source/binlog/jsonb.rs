//! MySQL's binary JSON → the text that `SELECT` of the column sends, byte for byte (pure).
//!
//! The text is written as the bytes are walked: no tree, no allocation but the output's. The walk is bounded
//! whatever the input: 100 levels deep as in the server, and every header and text byte is paid for out of a
//! budget of the document's own length, so that entries which point at the same place over and over end it.
//!
//! Format: `sql-common/json_binary.h`; text: `wrapper_to_string` in `sql-common/json_dom.cc` of MySQL 8.

mod container;
#[cfg(test)]
mod tests;
mod text;

use thiserror::Error;

use super::decode::{
    Reader, write_decimal, write_double, write_packed_datetime, write_packed_time,
};
use container::{Container, Width};
use text::{write_base64, write_int, write_string, write_uint};

/// Levels of arrays and objects (`JSON_DOCUMENT_MAX_DEPTH`).
const MAX_DEPTH: usize = 100;

/// Bytes that are no binary JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum JsonbError {
    /// A value ends too early, or points outside of what contains it.
    #[error("a length or an offset points outside of the document")]
    OutOfBounds,
    /// A type that is not in the format.
    #[error("unknown value type {0}")]
    UnknownType(u8),
    /// A literal that is not in the format.
    #[error("unknown literal {0}")]
    UnknownLiteral(u8),
    /// A DECIMAL, date or time within the document is malformed.
    #[error("malformed opaque value of type {0}")]
    Opaque(u8),
    /// Too many levels.
    #[error("more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// Parts of the document are used more than once.
    #[error("its values overlap")]
    Overlap,
}

mod kind {
    pub(super) const SMALL_OBJECT: u8 = 0x00;
    pub(super) const LARGE_OBJECT: u8 = 0x01;
    pub(super) const SMALL_ARRAY: u8 = 0x02;
    pub(super) const LARGE_ARRAY: u8 = 0x03;
    pub(super) const LITERAL: u8 = 0x04;
    pub(super) const INT16: u8 = 0x05;
    pub(super) const UINT16: u8 = 0x06;
    pub(super) const INT32: u8 = 0x07;
    pub(super) const UINT32: u8 = 0x08;
    pub(super) const INT64: u8 = 0x09;
    pub(super) const UINT64: u8 = 0x0a;
    pub(super) const DOUBLE: u8 = 0x0b;
    pub(super) const STRING: u8 = 0x0c;
    pub(super) const OPAQUE: u8 = 0x0f;
}

/// Column types of opaque values (`enum_field_types`).
mod opaque {
    pub(super) const TIMESTAMP: u8 = 7;
    pub(super) const DATE: u8 = 10;
    pub(super) const TIME: u8 = 11;
    pub(super) const DATETIME: u8 = 12;
    pub(super) const NEWDECIMAL: u8 = 246;
    pub(super) const VAR_STRING: u8 = 253;
}

/// Appends the text of a binary JSON document. `out` holds an incomplete text after an error.
///
/// No bytes at all are JSON `null`, as in the server: `INSERT IGNORE` leaves such a value in a NOT NULL column.
///
/// # Errors
///
/// If the document is malformed.
pub fn write_json(jsonb: &[u8], out: &mut Vec<u8>) -> Result<(), JsonbError> {
    let Some((kind, data)) = jsonb.split_first() else {
        out.extend_from_slice(b"null");
        return Ok(());
    };
    Writer {
        out,
        budget: jsonb.len(),
    }
    .value(*kind, data, 0)
}

struct Writer<'o> {
    out: &'o mut Vec<u8>,
    budget: usize,
}

impl Writer<'_> {
    /// Pays for bytes of the document. Those of a well-formed one are never used twice.
    fn pay(&mut self, bytes: usize) -> Result<(), JsonbError> {
        self.budget = self.budget.checked_sub(bytes).ok_or(JsonbError::Overlap)?;
        Ok(())
    }

    fn value(&mut self, kind: u8, data: &[u8], depth: usize) -> Result<(), JsonbError> {
        match kind {
            kind::SMALL_OBJECT => self.object(data, Width::Small, depth),
            kind::LARGE_OBJECT => self.object(data, Width::Large, depth),
            kind::SMALL_ARRAY => self.array(data, Width::Small, depth),
            kind::LARGE_ARRAY => self.array(data, Width::Large, depth),
            _ => self.scalar(kind, Reader::new(data)),
        }
    }

    fn scalar(&mut self, kind: u8, mut data: Reader<'_>) -> Result<(), JsonbError> {
        const CUT: JsonbError = JsonbError::OutOfBounds;
        match kind {
            kind::LITERAL => self.literal(data.u8().ok_or(CUT)?),
            kind::INT16 => {
                write_int(
                    i16::from_le_bytes(data.array().ok_or(CUT)?).into(),
                    self.out,
                );
                Ok(())
            }
            kind::INT32 => {
                write_int(
                    i32::from_le_bytes(data.array().ok_or(CUT)?).into(),
                    self.out,
                );
                Ok(())
            }
            kind::INT64 => {
                write_int(i64::from_le_bytes(data.array().ok_or(CUT)?), self.out);
                Ok(())
            }
            kind::UINT16 => {
                write_uint(data.u16().ok_or(CUT)?.into(), self.out);
                Ok(())
            }
            kind::UINT32 => {
                write_uint(data.u32().ok_or(CUT)?.into(), self.out);
                Ok(())
            }
            kind::UINT64 => {
                write_uint(data.u64().ok_or(CUT)?, self.out);
                Ok(())
            }
            kind::DOUBLE => {
                self.double(f64::from_le_bytes(data.array().ok_or(CUT)?));
                Ok(())
            }
            kind::STRING => {
                let bytes = variable(&mut data)?;
                self.string(bytes)
            }
            kind::OPAQUE => {
                let field = data.u8().ok_or(CUT)?;
                let bytes = variable(&mut data)?;
                self.opaque(field, bytes)
            }
            _ => Err(JsonbError::UnknownType(kind)),
        }
    }

    fn literal(&mut self, literal: u8) -> Result<(), JsonbError> {
        let text: &[u8] = match literal {
            0 => b"null",
            1 => b"true",
            2 => b"false",
            _ => return Err(JsonbError::UnknownLiteral(literal)),
        };
        self.out.extend_from_slice(text);
        Ok(())
    }

    /// A double without a fraction keeps a `.0`, which tells it from an integer.
    fn double(&mut self, value: f64) {
        let start = self.out.len();
        write_double(value, self.out);
        if !self
            .out
            .iter()
            .skip(start)
            .any(|byte| matches!(byte, b'.' | b'e'))
        {
            self.out.extend_from_slice(b".0");
        }
    }

    fn string(&mut self, bytes: &[u8]) -> Result<(), JsonbError> {
        self.pay(bytes.len())?;
        write_string(bytes, self.out);
        Ok(())
    }

    /// A value of a type that JSON does not have.
    fn opaque(&mut self, field: u8, bytes: &[u8]) -> Result<(), JsonbError> {
        if field == opaque::VAR_STRING {
            return self.string(bytes);
        }
        self.pay(bytes.len())?;
        let written = match field {
            opaque::NEWDECIMAL => match bytes {
                [precision, scale, digits @ ..] => {
                    write_decimal(digits, *precision, *scale, self.out)
                }
                _ => None,
            },
            opaque::DATE => self.quoted(|out| write_packed_datetime(bytes, true, out)),
            opaque::DATETIME | opaque::TIMESTAMP => {
                self.quoted(|out| write_packed_datetime(bytes, false, out))
            }
            opaque::TIME => self.quoted(|out| write_packed_time(bytes, out)),
            _ => {
                write_base64(field, bytes, self.out);
                Some(())
            }
        };
        written.ok_or(JsonbError::Opaque(field))
    }

    fn quoted(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<()>) -> Option<()> {
        self.out.push(b'"');
        write(self.out)?;
        self.out.push(b'"');
        Some(())
    }

    fn array(&mut self, data: &[u8], width: Width, depth: usize) -> Result<(), JsonbError> {
        let container = self.open(data, width, 0, depth)?;
        self.out.push(b'[');
        for (nth, entry) in container
            .values
            .chunks_exact(width.value_entry())
            .enumerate()
        {
            if nth > 0 {
                self.out.extend_from_slice(b", ");
            }
            self.element(&container, entry, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, data: &[u8], width: Width, depth: usize) -> Result<(), JsonbError> {
        let container = self.open(data, width, width.key_entry(), depth)?;
        self.out.push(b'{');
        let keys = container.keys.chunks_exact(width.key_entry());
        let values = container.values.chunks_exact(width.value_entry());
        for (nth, (key, value)) in keys.zip(values).enumerate() {
            if nth > 0 {
                self.out.extend_from_slice(b", ");
            }
            let mut key = Reader::new(key);
            let (offset, length) = width.read(&mut key).zip(key.u16()).unwrap_or_default();
            let key = container.from(offset)?.get(..usize::from(length));
            self.string(key.ok_or(JsonbError::OutOfBounds)?)?;
            self.out.extend_from_slice(b": ");
            self.element(&container, value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    /// A value entry: the type, then the value itself if it is small enough, or else its offset.
    fn element(
        &mut self,
        container: &Container<'_>,
        entry: &[u8],
        depth: usize,
    ) -> Result<(), JsonbError> {
        let mut entry = Reader::new(entry);
        let kind = entry.u8().ok_or(JsonbError::OutOfBounds)?;
        if container.width.inlines(kind) {
            return self.scalar(kind, entry);
        }
        let offset = container
            .width
            .read(&mut entry)
            .ok_or(JsonbError::OutOfBounds)?;
        self.value(kind, container.from(offset)?, depth + 1)
    }

    /// Element count, size in bytes, key entries (offset and length), value entries.
    fn open<'a>(
        &mut self,
        data: &'a [u8],
        width: Width,
        key_entry: usize,
        depth: usize,
    ) -> Result<Container<'a>, JsonbError> {
        if depth >= MAX_DEPTH {
            return Err(JsonbError::TooDeep);
        }
        let container = Container::read(data, width, key_entry).ok_or(JsonbError::OutOfBounds)?;
        self.pay(container.header)?;
        Ok(container)
    }
}

/// A length in groups of seven bits, least significant first, then as many bytes.
fn variable<'a>(data: &mut Reader<'a>) -> Result<&'a [u8], JsonbError> {
    let mut length = 0_usize;
    // Five groups hold 32 bits.
    for group in 0..5 {
        let byte = data.u8().ok_or(JsonbError::OutOfBounds)?;
        length |= usize::from(byte & 0x7f) << (7 * group);
        if byte & 0x80 == 0 {
            return data.bytes(length).ok_or(JsonbError::OutOfBounds);
        }
    }
    Err(JsonbError::OutOfBounds)
}
