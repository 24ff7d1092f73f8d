//! Strings, numbers and base64 in JSON text, as MySQL writes them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Appends a string in quotes: quotes, backslashes and control characters are escaped, nothing else is
/// (`double_quote` in `json_dom.cc`).
pub(super) fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = bytes;
    loop {
        let plain = plain_prefix(rest);
        let (head, tail) = rest.split_at_checked(plain).unwrap_or((rest, &[]));
        out.extend_from_slice(head);
        let Some((special, after)) = tail.split_first() else {
            break;
        };
        escape(*special, out);
        rest = after;
    }
    out.push(b'"');
}

const fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// How many bytes at the front need no escape: eight at a time, as long as none of them does.
fn plain_prefix(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    // The high bit of some byte is set if one of them is zero (Hacker's Delight, 6-1).
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    let repeat = |byte: u8| u64::from_le_bytes([byte; 8]);
    let mut at = 0;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        let control = word.wrapping_sub(repeat(0x20)) & !word & HIGH;
        let hit = control | zero(word ^ repeat(b'"')) | zero(word ^ repeat(b'\\'));
        if hit != 0 {
            break;
        }
        at += 8;
    }
    let tail = bytes.get(at..).unwrap_or_default();
    at + tail
        .iter()
        .position(|byte| is_special(*byte))
        .unwrap_or(tail.len())
}

fn escape(byte: u8, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let letter = match byte {
        0x08 => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        0x0c => b'f',
        b'\r' => b'r',
        b'"' | b'\\' => byte,
        _ => {
            let digit = |nibble: u8| HEX.get(usize::from(nibble & 0xf)).copied().unwrap_or(b'0');
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte)]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', letter]);
}

/// Appends a signed integer.
pub(super) fn write_int(number: i64, out: &mut Vec<u8>) {
    if number < 0 {
        out.push(b'-');
    }
    write_uint(number.unsigned_abs(), out);
}

/// Appends an unsigned integer.
pub(super) fn write_uint(mut number: u64, out: &mut Vec<u8>) {
    // u64::MAX has 20 digits.
    let mut digits = [0_u8; 20];
    let mut count = 0;
    for slot in digits.iter_mut().rev() {
        // A remainder of ten fits.
        *slot = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        count += 1;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(digits.len() - count..).unwrap_or_default());
}

/// Appends `"base64:type15:…"`. The server breaks the base64 into lines of 76 characters, and escapes the line
/// feeds.
pub(super) fn write_base64(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    // 57 bytes make a line.
    const LINE: usize = 57;
    out.extend_from_slice(b"\"base64:type");
    write_uint(field.into(), out);
    out.push(b':');
    let mut line = [0; LINE.div_ceil(3) * 4];
    for (nth, chunk) in bytes.chunks(LINE).enumerate() {
        if nth > 0 {
            out.extend_from_slice(b"\\n");
        }
        // The line is long enough.
        let length = STANDARD.encode_slice(chunk, &mut line).unwrap_or(0);
        out.extend_from_slice(line.get(..length).unwrap_or_default());
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn string(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_string(bytes, &mut out);
        out
    }

    #[test]
    fn escapes() {
        assert_eq!(
            string(b"\x08\t\n\x0c\r\"\\/\x00\x1f\x7f'"),
            br#""\b\t\n\f\r\"\\/\u0000\u001f"#.iter().chain(b"\x7f'\"").copied().collect::<Vec<_>>()
        );
        assert_eq!(string("é🦀".as_bytes()), "\"é🦀\"".as_bytes());
    }

    #[test]
    fn base64_lines() {
        let mut out = Vec::new();
        write_base64(15, &[0; 58], &mut out);
        let expected = format!("\"base64:type15:{}\\nAA==\"", "A".repeat(76));
        assert_eq!(out, expected.as_bytes());
        out.clear();
        write_base64(16, &[], &mut out);
        assert_eq!(out, b"\"base64:type16:\"");
    }

    proptest! {
        #[test]
        fn strings_read_back(text in ".*") {
            let json = string(text.as_bytes());
            prop_assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text);
        }

        #[test]
        fn eight_at_a_time_is_one_at_a_time(bytes: Vec<u8>) {
            let expected =
                bytes.iter().position(|byte| is_special(*byte)).unwrap_or(bytes.len());
            prop_assert_eq!(plain_prefix(&bytes), expected);
        }

        #[test]
        fn integers(number: i64) {
            let mut out = Vec::new();
            write_int(number, &mut out);
            prop_assert_eq!(String::from_utf8(out).unwrap(), number.to_string());
        }
    }
}
