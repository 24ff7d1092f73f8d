//! Reads little-endian fields off the front of a byte slice; `None` where it ends too early.

use super::DecodeError;

/// A cursor over bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    len: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            len: bytes.len(),
        }
    }

    /// Bytes read so far.
    pub(crate) const fn offset(&self) -> usize {
        self.len - self.rest.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// What has not been read yet.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// That the bytes end too early, at this point.
    pub(crate) const fn cut(&self, what: &'static str) -> DecodeError {
        DecodeError::Cut {
            what,
            offset: self.offset(),
        }
    }

    #[inline]
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(count)?;
        self.rest = tail;
        Some(head)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.rest.split_first_chunk::<N>()?;
        self.rest = tail;
        Some(*head)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// An unsigned integer of `width` bytes, at most 8.
    #[inline]
    pub(crate) fn uint(&mut self, width: usize) -> Option<u64> {
        let mut wide = [0; 8];
        wide.get_mut(..width)?.copy_from_slice(self.bytes(width)?);
        Some(u64::from_le_bytes(wide))
    }

    /// A length-encoded integer (MySQL source documentation, "Protocol::LengthEncodedInteger").
    pub(crate) fn lenenc(&mut self) -> Option<u64> {
        match self.u8()? {
            small @ 0..=0xfa => Some(u64::from(small)),
            0xfc => self.uint(2),
            0xfd => self.uint(3),
            0xfe => self.uint(8),
            0xfb | 0xff => None,
        }
    }

    /// A length-encoded integer that counts bytes or columns at hand.
    pub(crate) fn length(&mut self) -> Option<usize> {
        usize::try_from(self.lenenc()?).ok()
    }

    /// Bytes behind their length-encoded length.
    pub(crate) fn lenenc_bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.bytes(length)
    }
}

/// A big-endian unsigned integer of at most 8 bytes.
#[inline]
pub(crate) fn big_endian(bytes: &[u8]) -> Option<u64> {
    if bytes.len() > 8 {
        return None;
    }
    Some(
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)),
    )
}

/// Whether bit `index` of a bitmap is set, least significant bit first.
#[inline]
pub(crate) fn bit(bitmap: &[u8], index: usize) -> bool {
    bitmap
        .get(index / 8)
        .is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers() {
        let mut reader = Reader::new(&[1, 2, 0, 3, 0, 0, 0, 4, 0, 0]);
        assert_eq!(reader.u8(), Some(1));
        assert_eq!(reader.u16(), Some(2));
        assert_eq!(reader.u32(), Some(3));
        assert_eq!(reader.offset(), 7);
        assert_eq!(reader.u32(), None);
        assert_eq!(reader.uint(3), Some(4));
        assert!(reader.is_empty());
        assert_eq!(reader.uint(0), Some(0));
        assert_eq!(Reader::new(&[0; 9]).uint(9), None);
        assert_eq!(big_endian(&[1, 2]), Some(258));
        assert_eq!(big_endian(&[0; 9]), None);
    }

    #[test]
    fn length_encoded_integers() {
        for (bytes, number) in [
            (&[0xfa_u8][..], Some(0xfa)),
            (&[0xfc, 1, 2], Some(0x201)),
            (&[0xfd, 1, 2, 3], Some(0x03_0201)),
            (
                &[0xfe, 1, 0, 0, 0, 0, 0, 0, 0x80],
                Some(0x8000_0000_0000_0001),
            ),
            (&[0xfb], None),
            (&[0xff], None),
            (&[0xfc, 1], None),
            (&[], None),
        ] {
            assert_eq!(Reader::new(bytes).lenenc(), number, "{bytes:?}");
        }
    }
}
