//! Character sets of text columns: the binlog holds a column's own bytes, `SELECT` sends UTF-8.

/// A character set whose bytes are turned into UTF-8 here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charset {
    /// UTF-8, ascii or binary: the bytes stay as they are.
    Utf8,
    /// `latin1`, which is windows-1252 (MySQL manual, "West European Character Sets").
    Latin1,
}

/// Windows-1252 from 0x80 to 0x9f. The five bytes that it leaves undefined are the control characters of the
/// same number for MySQL.
const WINDOWS_1252: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}',
    '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

impl Charset {
    /// The character set of a collation, by its number (`information_schema.COLLATIONS`), if it is one of these.
    ///
    /// MariaDB numbers its NO PAD collations 1024 higher, and its UCA 14.0.0 collations in blocks of 256 a
    /// character set from 2048.
    pub const fn of_collation(number: u32) -> Option<Self> {
        let padded = if number > 1024 && number < 2048 {
            number - 1024
        } else {
            number
        };
        match padded {
            5 | 8 | 15 | 31 | 47 | 48 | 49 | 94 => Some(Charset::Latin1),
            // ascii, utf8mb3, binary; utf8mb4 from 224, but gb18030 is 248 to 250.
            11 | 65 | 33 | 76 | 83 | 192..=215 | 223 | 63 => Some(Charset::Utf8),
            45 | 46 | 224..=247 | 255..=323 => Some(Charset::Utf8),
            // MariaDB's own: utf8mb3 and utf8mb4, then UCA 14.0.0 of both.
            576..=578 | 608..=610 | 2048..=2559 => Some(Charset::Utf8),
            _ => None,
        }
    }

    /// The character set of this name (`information_schema.COLUMNS.CHARACTER_SET_NAME`), if it is one of these.
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "utf8mb4" | "utf8mb3" | "utf8" | "ascii" | "binary" => Some(Charset::Utf8),
            "latin1" => Some(Charset::Latin1),
            _ => None,
        }
    }

    /// The bytes of a column as `SELECT` sends them to a connection that asked for UTF-8.
    pub(crate) fn to_utf8(self, bytes: &[u8]) -> Vec<u8> {
        if self == Charset::Utf8 || bytes.is_ascii() {
            return bytes.to_vec();
        }
        let mut text = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            let special = byte
                .checked_sub(0x80)
                .and_then(|at| WINDOWS_1252.get(usize::from(at)));
            text.push(special.copied().unwrap_or(char::from(*byte)));
        }
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latin1_becomes_utf8() {
        assert_eq!(
            Charset::Latin1.to_utf8(b"caf\xe9 \x80\x81\xff"),
            "café €\u{81}ÿ".as_bytes()
        );
        assert_eq!(Charset::Latin1.to_utf8(b"plain"), b"plain");
        assert_eq!(Charset::Utf8.to_utf8(&[0xff]), [0xff]);
    }

    #[test]
    fn collations() {
        assert_eq!(Charset::of_collation(8), Some(Charset::Latin1));
        assert_eq!(Charset::of_collation(255), Some(Charset::Utf8));
        assert_eq!(Charset::of_collation(248), None, "gb18030");
        assert_eq!(Charset::of_collation(8 + 1024), Some(Charset::Latin1));
        assert_eq!(Charset::of_collation(35), None, "ucs2");
    }
}
