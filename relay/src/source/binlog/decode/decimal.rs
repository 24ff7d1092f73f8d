//! DECIMAL as stored in rows and in binary JSON, to its text.
//!
//! Digits go in groups of nine, each a big-endian integer of four bytes; the outermost groups of either side
//! take fewer. The first bit is the inverted sign, and a negative number has all its bits inverted
//! (`decimal2bin` of both servers).

/// The most digits that the format can carry (`DECIMAL_MAX_PRECISION` is 65, the buffers are of nine groups).
pub(crate) const MAX_PRECISION: u8 = 81;

/// Bytes of a group of so many digits.
const GROUP_BYTES: [u8; 10] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4];

fn group_bytes(digits: u8) -> u8 {
    GROUP_BYTES.get(usize::from(digits)).copied().unwrap_or(4)
}

/// Bytes of a stored DECIMAL.
pub(crate) fn stored_length(precision: u8, scale: u8) -> u8 {
    let side = |digits: u8| digits / 9 * 4 + group_bytes(digits % 9);
    side(precision.saturating_sub(scale)) + side(scale)
}

/// Appends a stored DECIMAL as the server prints it: no leading zeros, all of its `scale` digits.
///
/// `None` if the bytes are no DECIMAL of that precision and scale.
pub(crate) fn write_decimal(
    bytes: &[u8],
    precision: u8,
    scale: u8,
    out: &mut Vec<u8>,
) -> Option<()> {
    let whole = precision.checked_sub(scale)?;
    if precision == 0
        || precision > MAX_PRECISION
        || bytes.len() != usize::from(stored_length(precision, scale))
    {
        return None;
    }
    let negative = bytes.first()? & 0x80 == 0;
    let mut groups = Groups {
        rest: bytes,
        first: 0x80,
        invert: if negative { 0xff } else { 0 },
    };
    let mut digits = Digits {
        bytes: [0; MAX_PRECISION as usize + 9],
        len: 0,
    };
    digits.push(groups.next(whole % 9)?, whole % 9)?;
    for _ in 0..whole / 9 {
        digits.push(groups.next(9)?, 9)?;
    }
    if negative {
        out.push(b'-');
    }
    let text = digits.as_slice();
    let zeros = text.iter().take_while(|digit| **digit == b'0').count();
    let text = text
        .get(zeros..)
        .filter(|text| !text.is_empty())
        .unwrap_or(b"0");
    out.extend_from_slice(text);
    if scale > 0 {
        out.push(b'.');
        digits.len = 0;
        for _ in 0..scale / 9 {
            digits.push(groups.next(9)?, 9)?;
        }
        digits.push(groups.next(scale % 9)?, scale % 9)?;
        out.extend_from_slice(digits.as_slice());
    }
    Some(())
}

struct Groups<'a> {
    rest: &'a [u8],
    /// Flips the sign bit of the very first byte.
    first: u8,
    invert: u8,
}

impl Groups<'_> {
    fn next(&mut self, digits: u8) -> Option<u32> {
        let (group, rest) = self
            .rest
            .split_at_checked(usize::from(group_bytes(digits)))?;
        let mut value = 0;
        for byte in group {
            value = value << 8 | u32::from(byte ^ self.first ^ self.invert);
            self.first = 0;
        }
        self.rest = rest;
        (value < 10_u32.pow(u32::from(digits))).then_some(value)
    }
}

struct Digits {
    bytes: [u8; MAX_PRECISION as usize + 9],
    len: usize,
}

impl Digits {
    fn push(&mut self, mut value: u32, digits: u8) -> Option<()> {
        let end = self.len + usize::from(digits);
        for digit in self.bytes.get_mut(self.len..end)?.iter_mut().rev() {
            // A remainder of ten fits.
            *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
            value /= 10;
        }
        self.len = end;
        Some(())
    }

    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8], precision: u8, scale: u8) -> Option<String> {
        let mut out = Vec::new();
        write_decimal(bytes, precision, scale, &mut out)?;
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn decimals() {
        // The example of the MySQL manual's `decimal2bin`: 1234567890.1234 as DECIMAL(14,4).
        let stored = [0x81, 0x0d, 0xfb, 0x38, 0xd2, 0x04, 0xd2];
        assert_eq!(text(&stored, 14, 4).as_deref(), Some("1234567890.1234"));
        let negative = stored.map(|byte| !byte);
        assert_eq!(text(&negative, 14, 4).as_deref(), Some("-1234567890.1234"));
        assert_eq!(text(&[0x80, 0, 0, 0, 5], 10, 2).as_deref(), Some("0.05"));
        assert_eq!(text(&[0x8c], 2, 2).as_deref(), Some("0.12"));
        assert_eq!(text(&[0x80, 0], 4, 0).as_deref(), Some("0"));
    }

    #[test]
    fn malformed_decimals() {
        assert_eq!(text(&[], 0, 0), None);
        assert_eq!(text(&[0x80], 10, 2), None, "cut");
        assert_eq!(text(&[0x80], 2, 3), None, "scale over precision");
        assert_eq!(text(&[0xe4], 2, 0), None, "100 in two digits");
        assert_eq!(text(&[0x80; 40], 90, 2), None, "too many digits");
    }
}
