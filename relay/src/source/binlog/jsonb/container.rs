//! Arrays and objects: a header of entries, then the keys and the values that the entries point at.

use super::{JsonbError, kind};
use crate::source::binlog::decode::Reader;

/// Whether counts and offsets of a container take two bytes or four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Small,
    Large,
}

impl Width {
    const fn bytes(self) -> usize {
        match self {
            Width::Small => 2,
            Width::Large => 4,
        }
    }

    /// An offset, and a length of always two bytes.
    pub(super) const fn key_entry(self) -> usize {
        self.bytes() + 2
    }

    /// A type, and an offset or the value itself.
    pub(super) const fn value_entry(self) -> usize {
        self.bytes() + 1
    }

    pub(super) fn read(self, data: &mut Reader<'_>) -> Option<usize> {
        match self {
            Width::Small => data.u16().map(usize::from),
            Width::Large => data.u32().and_then(|number| usize::try_from(number).ok()),
        }
    }

    /// Whether values of this type stand in the entry.
    pub(super) const fn inlines(self, kind: u8) -> bool {
        match kind {
            kind::LITERAL | kind::INT16 | kind::UINT16 => true,
            kind::INT32 | kind::UINT32 => matches!(self, Width::Large),
            _ => false,
        }
    }
}

/// An array or an object, cut into its parts.
pub(super) struct Container<'a> {
    pub(super) width: Width,
    /// All of it: offsets count from its start.
    data: &'a [u8],
    /// Bytes up to the end of the value entries.
    pub(super) header: usize,
    pub(super) keys: &'a [u8],
    pub(super) values: &'a [u8],
}

impl<'a> Container<'a> {
    pub(super) fn read(data: &'a [u8], width: Width, key_entry: usize) -> Option<Self> {
        let mut reader = Reader::new(data);
        let count = width.read(&mut reader)?;
        let size = width.read(&mut reader)?;
        let data = data.get(..size)?;
        let mut reader = Reader::new(data);
        reader.bytes(2 * width.bytes())?;
        let keys = reader.bytes(count.checked_mul(key_entry)?)?;
        let values = reader.bytes(count.checked_mul(width.value_entry())?)?;
        Some(Self {
            width,
            data,
            header: reader.offset(),
            keys,
            values,
        })
    }

    /// From an offset to its end. Nothing but its header stands before the end of the header.
    pub(super) fn from(&self, offset: usize) -> Result<&'a [u8], JsonbError> {
        if offset < self.header {
            return Err(JsonbError::OutOfBounds);
        }
        self.data.get(offset..).ok_or(JsonbError::OutOfBounds)
    }
}
