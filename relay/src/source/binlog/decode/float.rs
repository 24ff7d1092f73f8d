//! FLOAT and DOUBLE as the servers print them (`my_gcvt` of `strings/dtoa.cc`).

use std::io::Write as _;

/// Decimal exponents up to this are printed without an `e` (`MAX_DECPT_FOR_F_FORMAT`, which is `DBL_DIG`).
const PLAIN_EXPONENT: i32 = 15;

/// Appends a DOUBLE: the shortest digits that read back as the same number.
pub(crate) fn write_double(value: f64, out: &mut Vec<u8>) {
    match Number::shortest(value, out) {
        Some(number) => number.notate(out),
        None => out.push(b'0'),
    }
}

/// Appends a FLOAT: six significant digits at most (`FLT_DIG`).
pub(crate) fn write_float(value: f32, out: &mut Vec<u8>) {
    let start = out.len();
    // Writing to a Vec can't fail.
    write!(out, "{:.5e}", f64::from(value)).unwrap_or_default();
    match Number::take(start, out) {
        Some(number) => number.notate(out),
        None => out.push(b'0'),
    }
}

/// Appends a number of a column declared with so many digits behind the point, as in `FLOAT(7,2)`: the shortest digits
/// and zeros, or as many digits as there is place for.
pub(crate) fn write_fixed(value: f64, decimals: u8, out: &mut Vec<u8>) {
    let Some(number) = Number::shortest(value, out) else {
        return out.push(b'0');
    };
    let decimals = usize::from(decimals);
    let behind = i64::try_from(number.count).unwrap_or(0) - i64::from(number.point);
    // Writing to a Vec can't fail.
    match usize::try_from(behind.max(0)) {
        Ok(behind) if behind <= decimals => {
            number.plain(out);
            if behind == 0 && decimals > 0 {
                out.push(b'.');
            }
            out.resize(out.len() + decimals - behind, b'0');
        }
        Ok(_) | Err(_) => write!(out, "{value:.decimals$}").unwrap_or_default(),
    }
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
        Ok(negative) if negative > 0 => 5_u64
            .checked_pow(negative)
            .and_then(|power| odd.checked_mul(power))
            .is_some(),
        Ok(_) | Err(_) => exponent < 64 && odd.is_multiple_of(5),
    }
}

/// Of two shortest numbers that are equally near the server takes the one with the even last digit. The other may
/// stand from `start` on.
fn break_tie(value: f64, decimals: usize, start: usize, out: &mut Vec<u8>) {
    let end = out.len();
    // Rounds half to even.
    write!(out, "{value:.decimals$e}").unwrap_or_default();
    let even = out
        .get(end..)
        .and_then(|even| std::str::from_utf8(even).ok());
    if even.and_then(|even| even.parse().ok()) == Some(value) {
        out.drain(start..end);
    } else {
        out.truncate(end);
    }
}

/// `0.digits × 10^point`.
struct Number {
    negative: bool,
    digits: [u8; 24],
    /// How many of them; the last is not zero, unless it is the only one.
    count: usize,
    point: i32,
}

impl Number {
    /// `None` for what is no number. Uses the end of `out` as scratch.
    fn shortest(value: f64, out: &mut Vec<u8>) -> Option<Self> {
        if let Some(number) = Self::few_decimals(value) {
            return Some(number);
        }
        let start = out.len();
        // Writing to a Vec can't fail.
        write!(out, "{value:e}").unwrap_or_default();
        // Shorter numbers are too far apart to be equally near.
        let digits = out
            .iter()
            .skip(start)
            .take_while(|b| **b != b'e')
            .filter(|b| b.is_ascii_digit());
        let digits = digits.count();
        if digits >= 16 && may_tie(value) {
            break_tie(value, digits - 1, start, out);
        }
        Self::take(start, out)
    }

    /// The common case, quickly: a number below 10^9 with six decimals at most. No other number of up to 15 digits
    /// reads back as the same double, so that these are the shortest digits.
    fn few_decimals(value: f64) -> Option<Self> {
        const SCALE: f64 = 1e6;
        const DECIMALS: i32 = 6;
        let scaled = (value.abs() * SCALE).round();
        if !(1.0..1e15).contains(&scaled) || scaled / SCALE != value.abs() {
            return None;
        }
        let negative = value.is_sign_negative();
        let mut number = Self {
            negative,
            digits: [0; 24],
            count: 0,
            point: 0,
        };
        // In range, and without a fraction.
        let mut rest = scaled as u64;
        let mut zeros = 0;
        while rest.is_multiple_of(10) {
            rest /= 10;
            zeros += 1;
        }
        number.count = usize::try_from(rest.ilog10()).ok()? + 1;
        for digit in number.digits.get_mut(..number.count)?.iter_mut().rev() {
            // A remainder of ten fits.
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
        number.point = i32::try_from(number.count).ok()? + zeros - DECIMALS;
        Some(number)
    }

    /// Takes the `d.ddde-n` that stands from `start` on away.
    fn take(start: usize, out: &mut Vec<u8>) -> Option<Self> {
        let mut number = Self {
            negative: false,
            digits: [0; 24],
            count: 0,
            point: 0,
        };
        let mut exponent_sign = 0;
        for byte in out.get(start..).unwrap_or_default() {
            match byte {
                b'0'..=b'9' if exponent_sign == 0 => {
                    *number.digits.get_mut(number.count)? = *byte;
                    number.count += 1;
                }
                b'0'..=b'9' => number.point = number.point * 10 + i32::from(byte - b'0'),
                b'e' => exponent_sign = 1,
                b'-' if exponent_sign == 0 => number.negative = true,
                b'-' => exponent_sign = -1,
                _ => {}
            }
        }
        out.truncate(start);
        number.point = number.point * exponent_sign + 1;
        let zeros = number
            .digits()
            .iter()
            .rev()
            .take_while(|digit| **digit == b'0')
            .count();
        // NaN and infinity have no digits.
        number.count = number
            .count
            .checked_sub(zeros.min(number.count.checked_sub(1)?))?;
        Some(number)
    }

    fn digits(&self) -> &[u8] {
        self.digits.get(..self.count).unwrap_or_default()
    }

    /// As the server writes it, with or without an exponent.
    fn notate(&self, out: &mut Vec<u8>) {
        // There are no more than 17 digits.
        let count = i32::try_from(self.count).unwrap_or(i32::MAX);
        let in_range = self.point > -PLAIN_EXPONENT && self.point <= PLAIN_EXPONENT;
        if in_range || (self.point > 0 && count > self.point) {
            return self.plain(out);
        }
        self.sign(out);
        let (first, rest) = self.digits().split_at_checked(1).unwrap_or_default();
        out.extend_from_slice(first);
        if !rest.is_empty() {
            out.push(b'.');
            out.extend_from_slice(rest);
        }
        // Writing to a Vec can't fail.
        write!(out, "e{}", self.point - 1).unwrap_or_default();
    }

    fn plain(&self, out: &mut Vec<u8>) {
        self.sign(out);
        let digits = self.digits();
        let Some(whole) = usize::try_from(self.point).ok().filter(|whole| *whole > 0) else {
            out.extend_from_slice(b"0.");
            out.extend((self.point..0).map(|_| b'0'));
            return out.extend_from_slice(digits);
        };
        match digits.split_at_checked(whole) {
            Some((whole, [])) => out.extend_from_slice(whole),
            Some((whole, fraction)) => {
                out.extend_from_slice(whole);
                out.push(b'.');
                out.extend_from_slice(fraction);
            }
            None => {
                out.extend_from_slice(digits);
                out.extend((self.count..whole).map(|_| b'0'));
            }
        }
    }

    fn sign(&self, out: &mut Vec<u8>) {
        if self.negative {
            out.push(b'-');
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
            (-19.99, "-19.99"),
            (999_999_999.999_999, "999999999.999999"),
            (0.000_001, "0.000001"),
            (1e15, "1e15"),
            (123_456_789_012_345.0, "123456789012345"),
            (1_234_567_890_123_456.0, "1.234567890123456e15"),
            (1_234_567_890_123_456.7, "1234567890123456.8"),
            (1e100, "1e100"),
            (1.5e-10, "0.00000000015"),
            (1e-14, "0.00000000000001"),
            (1e-15, "0.000000000000001"),
            (1e-16, "1e-16"),
            (-2_047_511_944_058_323.2, "-2047511944058323.2"),
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

    #[test]
    fn fixed_decimals() {
        for (value, decimals, text) in [
            (349_598_773_538.333_3, 5, "349598773538.33330"),
            (0.0, 2, "0.00"),
            (12_345.678_710_937_5, 2, "12345.68"),
            (-0.004_999, 2, "-0.00"),
            (1e20, 1, "100000000000000000000.0"),
            (1e-7, 0, "0"),
            (7.0, 0, "7"),
            (f64::INFINITY, 3, "0"),
        ] {
            let mut out = Vec::new();
            write_fixed(value, decimals, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    proptest! {
        #[test]
        fn few_decimals_are_the_shortest(units in -10_i64.pow(15)..10_i64.pow(15)) {
            let value = units as f64 / 1e6;
            let mut quick = Vec::new();
            if let Some(number) = Number::few_decimals(value) {
                number.plain(&mut quick);
                prop_assert_eq!(String::from_utf8(quick).unwrap(), value.to_string());
            } else {
                prop_assert!(units == 0 || value.to_string().len() > 15, "{}", value);
            }
        }

        #[test]
        fn any_double_reads_back(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(double(value).parse::<f64>().unwrap().to_bits(), bits);
        }
    }
}
