//! FLOAT and DOUBLE as the servers print them (`my_gcvt` of `strings/dtoa.cc`).

use std::io::Write as _;

/// Decimal exponents up to this are printed without an `e` (`MAX_DECPT_FOR_F_FORMAT`, which is `DBL_DIG`).
const PLAIN_EXPONENT: i32 = 15;

/// Appends a DOUBLE: the shortest digits that read back as the same number.
pub(crate) fn write_double(value: f64, out: &mut Vec<u8>) {
    let start = out.len();
    // Writing to a Vec can't fail.
    write!(out, "{value:e}").unwrap_or_default();
    if may_tie(value) {
        break_tie(value, start, out);
    }
    rewrite(value, start, out);
}

/// Whether the value's exact decimal digits may end in a 5 just behind its shortest ones, so that two shortest
/// numbers are equally near. They are 18 at the most then.
fn may_tie(value: f64) -> bool {
    let bits = value.abs().to_bits();
    let (mantissa, exponent) = match bits >> 52 {
        0 => (bits, -1074),
        biased => (
            bits & 0x000f_ffff_ffff_ffff | 0x0010_0000_0000_0000,
            i64::try_from(biased).unwrap_or(0) - 1075,
        ),
    };
    let zeros = mantissa.trailing_zeros();
    let odd = mantissa.checked_shr(zeros).unwrap_or(0);
    let exponent = exponent + i64::from(zeros);
    match u32::try_from(-exponent) {
        // odd / 2^n is odd * 5^n / 10^n.
        Ok(negative) if negative > 0 => {
            5_u64.checked_pow(negative).and_then(|power| odd.checked_mul(power)).is_some()
        }
        Ok(_) | Err(_) => exponent < 64 && odd % 5 == 0,
    }
}

/// Of two shortest numbers that are equally near the server takes the one with the even last digit.
fn break_tie(value: f64, start: usize, out: &mut Vec<u8>) {
    let shortest = out.get(start..).unwrap_or_default();
    let digits = shortest.iter().take_while(|byte| **byte != b'e').filter(|b| b.is_ascii_digit());
    let decimals = digits.count().saturating_sub(1);
    let end = out.len();
    // Rounds half to even.
    write!(out, "{value:.decimals$e}").unwrap_or_default();
    let even = out.get(end..).and_then(|even| std::str::from_utf8(even).ok());
    if even.and_then(|even| even.parse().ok()) == Some(value) {
        out.drain(start..end);
    } else {
        out.truncate(end);
    }
}

/// Appends a FLOAT: six significant digits at most (`FLT_DIG`).
pub(crate) fn write_float(value: f32, out: &mut Vec<u8>) {
    let start = out.len();
    let value = f64::from(value);
    // Writing to a Vec can't fail.
    write!(out, "{value:.5e}").unwrap_or_default();
    rewrite(value, start, out);
}

/// Appends a number of a column declared with so many digits behind the point, as in `FLOAT(7,2)`.
pub(crate) fn write_fixed(value: f64, decimals: u8, out: &mut Vec<u8>) {
    if !value.is_finite() {
        out.push(b'0');
        return;
    }
    // Writing to a Vec can't fail.
    write!(out, "{value:.*}", usize::from(decimals)).unwrap_or_default();
}

/// Turns the `d.ddde-n` that stands from `start` on into the server's notation.
fn rewrite(value: f64, start: usize, out: &mut Vec<u8>) {
    if !value.is_finite() {
        out.truncate(start);
        out.push(b'0');
        return;
    }
    let mut digits = [0_u8; 24];
    let mut count = 0;
    let mut exponent = 0_i32;
    let mut exponent_sign = 0;
    for byte in out.get(start..).unwrap_or_default() {
        match byte {
            b'0'..=b'9' if exponent_sign == 0 => {
                if let Some(digit) = digits.get_mut(count) {
                    *digit = *byte;
                    count += 1;
                }
            }
            b'0'..=b'9' => exponent = exponent * 10 + i32::from(byte - b'0'),
            b'e' => exponent_sign = 1,
            b'-' if exponent_sign == 1 => exponent_sign = -1,
            _ => {}
        }
    }
    out.truncate(start);
    let digits = digits.get(..count).unwrap_or_default();
    // Trailing zeros are no significant digits; the first digit stays.
    let zeros = digits.iter().skip(1).rev().take_while(|digit| **digit == b'0').count();
    let digits = digits.get(..count - zeros).unwrap_or_default();
    if value.is_sign_negative() {
        out.push(b'-');
    }
    notate(digits, exponent * exponent_sign + 1, out);
}

/// Writes `0.digits × 10^point`.
fn notate(digits: &[u8], point: i32, out: &mut Vec<u8>) {
    // No more than 17 digits come in.
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let plain = point > -PLAIN_EXPONENT && (point <= PLAIN_EXPONENT || count > point);
    let (whole, fraction) =
        digits.split_at_checked(usize::try_from(point).unwrap_or(0)).unwrap_or((digits, &[]));
    if !plain {
        let (first, rest) = digits.split_at_checked(1).unwrap_or_default();
        out.extend_from_slice(first);
        if !rest.is_empty() {
            out.push(b'.');
            out.extend_from_slice(rest);
        }
        // Writing to a Vec can't fail.
        write!(out, "e{}", point - 1).unwrap_or_default();
    } else if point <= 0 {
        out.extend_from_slice(b"0.");
        out.extend((point..0).map(|_| b'0'));
        out.extend_from_slice(digits);
    } else {
        out.extend_from_slice(whole);
        out.extend((count..point).map(|_| b'0'));
        if !fraction.is_empty() {
            out.push(b'.');
            out.extend_from_slice(fraction);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn double(value: f64) -> String {
        let mut out = b"x".to_vec();
        write_double(value, &mut out);
        String::from_utf8(out).unwrap().split_off(1)
    }

    fn float(value: f32) -> String {
        let mut out = Vec::new();
        write_float(value, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn doubles() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (-1.5, "-1.5"),
            (100.0, "100"),
            (1e15, "1e15"),
            (123_456_789_012_345.0, "123456789012345"),
            (1_234_567_890_123_456.0, "1.234567890123456e15"),
            (1_234_567_890_123_456.7, "1234567890123456.8"),
            (1e100, "1e100"),
            (1.5e-10, "0.00000000015"),
            (1e-14, "0.00000000000001"),
            (1e-15, "0.000000000000001"),
            (1e-16, "1e-16"),
            (-2_047_511_944_058_323.25, "-2047511944058323.2"),
            (2_f64.powi(-25), "0.000000029802322387695312"),
            // Of these two only the odd one reads back.
            (2_f64.powi(-24), "0.00000005960464477539063"),
            (f64::MAX, "1.7976931348623157e308"),
            (5e-324, "5e-324"),
            (f64::NAN, "0"),
        ] {
            assert_eq!(double(value), text);
        }
    }

    #[test]
    fn floats() {
        for (value, text) in [
            (0.1, "0.1"),
            (2.236_068, "2.23607"),
            (16_777_216.0, "16777200"),
            (1e20, "1e20"),
            (-2.5e-30, "-2.5e-30"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    proptest! {
        #[test]
        fn any_double_reads_back(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(double(value).parse::<f64>().unwrap().to_bits(), bits);
        }
    }
}
