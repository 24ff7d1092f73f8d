//! Dates and times as stored in rows and in binary JSON.
//!
//! MySQL internals documentation, "Date and Time Data Type Representation"; `mysys/my_time.cc`.

use std::io::Write as _;

use super::reader::big_endian;

/// A point in time, whose parts are as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
}

/// A DATETIME or TIMESTAMP value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instant {
    /// `0000-00-00 00:00:00`, or a date without a month or a day: no point in time.
    Zero,
    /// Microseconds since 1970-01-01T00:00:00.
    Micros(i64),
}

const MICROS: i64 = 1_000_000;

impl Parts {
    /// `packed >> 24` is `(((year * 13 + month) << 5 | day) << 17) | hour << 12 | minute << 6 | second`,
    /// the rest are microseconds.
    const fn of_packed(packed: i64) -> Self {
        let (whole, micros) = (packed >> 24, packed & 0xff_ffff);
        let date = whole >> 17;
        let months = date >> 5;
        Self {
            year: months / 13,
            month: months % 13,
            day: date & 0x1f,
            hour: whole >> 12 & 0x1f,
            minute: whole >> 6 & 0x3f,
            second: whole & 0x3f,
            micros,
        }
    }

    fn instant(self) -> Option<Instant> {
        let Self {
            year,
            month,
            day,
            hour,
            minute,
            second,
            micros,
        } = self;
        let in_range = year <= 9999
            && month <= 12
            && day <= 31
            && hour < 24
            && minute < 60
            && second < 60
            && micros < MICROS;
        if !in_range {
            return None;
        }
        if month == 0 || day == 0 {
            return Some(Instant::Zero);
        }
        let seconds = (days_from_civil(year, month, day) * 24 + hour) * 3600 + minute * 60 + second;
        Some(Instant::Micros(seconds * MICROS + micros))
    }
}

/// Days from 1970-01-01 to a date of the proleptic Gregorian calendar (Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms"): years start in March, eras are 400 of them.
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Microseconds of the fraction bytes behind a DATETIME or TIMESTAMP: two digits a byte.
fn fraction(bytes: &[u8]) -> Option<i64> {
    let unit = match bytes.len() {
        0 => return Some(0),
        1 => 10_000,
        2 => 100,
        3 => 1,
        _ => return None,
    };
    Some(i64::try_from(big_endian(bytes)?).ok()? * unit)
}

/// A DATETIME of MySQL 5.6 and later: 40 bits, the first always set, then the fraction.
pub(crate) fn datetime(bytes: &[u8]) -> Option<Instant> {
    let (whole, rest) = bytes.split_at_checked(5)?;
    let whole = i64::try_from(big_endian(whole)?)
        .ok()?
        .checked_sub(0x80_0000_0000)?;
    if whole < 0 {
        return None;
    }
    let parts = Parts::of_packed(whole << 24);
    Parts {
        micros: fraction(rest)?,
        ..parts
    }
    .instant()
}

/// A DATETIME before MySQL 5.6: the number YYYYMMDDhhmmss.
pub(crate) fn old_datetime(bytes: &[u8]) -> Option<Instant> {
    let number = i64::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()?;
    let (date, time) = (number / 1_000_000, number % 1_000_000);
    let parts = Parts {
        year: date / 10_000,
        month: date / 100 % 100,
        day: date % 100,
        hour: time / 10_000,
        minute: time / 100 % 100,
        second: time % 100,
        micros: 0,
    };
    parts.instant()
}

/// A TIMESTAMP of MySQL 5.6 and later: seconds since 1970, then the fraction. 0 is the zero date.
pub(crate) fn timestamp(bytes: &[u8]) -> Option<Instant> {
    let (seconds, rest) = bytes.split_at_checked(4)?;
    let seconds = i64::try_from(big_endian(seconds)?).ok()?;
    let micros = fraction(rest)?;
    if micros >= MICROS {
        return None;
    }
    Some(match seconds {
        0 => Instant::Zero,
        _ => Instant::Micros(seconds * MICROS + micros),
    })
}

/// A TIMESTAMP before MySQL 5.6: seconds, little-endian.
pub(crate) fn old_timestamp(bytes: &[u8]) -> Option<Instant> {
    let mut big = <[u8; 4]>::try_from(bytes).ok()?;
    big.reverse();
    timestamp(&big)
}

/// Appends a DATE: year, month, day in 15, 4 and 5 bits.
pub(crate) fn write_date(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let [low, middle, high] = *bytes else {
        return None;
    };
    let date = i64::from(u32::from_le_bytes([low, middle, high, 0]));
    write_ymd(date >> 9, date >> 5 & 0xf, date & 0x1f, out)
}

fn write_ymd(year: i64, month: i64, day: i64, out: &mut Vec<u8>) -> Option<()> {
    write!(out, "{year:04}-{month:02}-{day:02}").ok()
}

/// Appends a TIME of MySQL 5.6 and later with its `digits` fractional digits.
///
/// Whole and fraction are one big-endian number with an offset of half its range, so that a negative TIME
/// sorts first: its magnitude has 10, 6 and 6 bits for hours, minutes and seconds, then the fraction's bytes.
pub(crate) fn write_time(bytes: &[u8], digits: u8, out: &mut Vec<u8>) -> Option<()> {
    let fraction_bytes = bytes.len().checked_sub(3)?;
    let raw = i64::try_from(big_endian(bytes).filter(|_| fraction_bytes <= 3)?).ok()?;
    let fraction_bits = 8 * fraction_bytes;
    let value = raw - (0x80_0000 << fraction_bits);
    let magnitude = value.abs();
    let whole = magnitude >> fraction_bits;
    let unit = match fraction_bytes {
        0 => 0,
        1 => 10_000,
        2 => 100,
        _ => 1,
    };
    let micros = (magnitude & ((1 << fraction_bits) - 1)) * unit;
    write_hms(value < 0, whole, out)?;
    write_fraction(micros, digits, out)
}

/// `whole` is hours, minutes and seconds in 10, 6 and 6 bits.
fn write_hms(negative: bool, whole: i64, out: &mut Vec<u8>) -> Option<()> {
    let (hour, minute, second) = (whole >> 12 & 0x3ff, whole >> 6 & 0x3f, whole & 0x3f);
    let sign = if negative { "-" } else { "" };
    write!(out, "{sign}{hour:02}:{minute:02}:{second:02}").ok()
}

/// A point and the first `digits` of six.
fn write_fraction(micros: i64, digits: u8, out: &mut Vec<u8>) -> Option<()> {
    let dropped = 6_u32.checked_sub(u32::from(digits))?;
    if micros >= MICROS {
        return None;
    }
    if digits > 0 {
        let shown = micros / 10_i64.pow(dropped);
        write!(out, ".{shown:0width$}", width = usize::from(digits)).ok()?;
    }
    Some(())
}

/// Appends a TIME before MySQL 5.6: the signed number hhmmss.
pub(crate) fn write_old_time(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let [low, middle, high] = *bytes else {
        return None;
    };
    // Shifts the sign bit of 24 to its place in 32.
    let number = i32::from_le_bytes([0, low, middle, high]) >> 8;
    let sign = if number < 0 { "-" } else { "" };
    let number = number.abs();
    let (hour, minute, second) = (number / 10_000, number / 100 % 100, number % 100);
    write!(out, "{sign}{hour:02}:{minute:02}:{second:02}").ok()
}

/// Appends a DATE, or a DATETIME with six fractional digits, out of binary JSON.
pub(crate) fn write_packed_datetime(
    bytes: &[u8],
    only_date: bool,
    out: &mut Vec<u8>,
) -> Option<()> {
    let packed = i64::from_le_bytes(bytes.try_into().ok()?);
    let parts = Parts::of_packed(packed.checked_abs()?);
    write_ymd(parts.year, parts.month, parts.day, out)?;
    if only_date {
        return Some(());
    }
    out.push(b' ');
    let Parts {
        hour,
        minute,
        second,
        ..
    } = parts;
    write!(out, "{hour:02}:{minute:02}:{second:02}").ok()?;
    write_fraction(parts.micros, 6, out)
}

/// Appends a TIME with six fractional digits out of binary JSON.
pub(crate) fn write_packed_time(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let packed = i64::from_le_bytes(bytes.try_into().ok()?);
    let magnitude = packed.checked_abs()?;
    write_hms(packed < 0, magnitude >> 24, out)?;
    write_fraction(magnitude & 0xff_ffff, 6, out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>) -> Option<()>) -> Option<String> {
        let mut out = Vec::new();
        write(&mut out)?;
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn dates() {
        assert_eq!(
            text(|out| write_date(&[0x21, 0xd4, 0x0f], out)).as_deref(),
            Some("2026-01-01")
        );
        assert_eq!(
            text(|out| write_date(&[0, 0, 0], out)).as_deref(),
            Some("0000-00-00")
        );
        assert_eq!(text(|out| write_date(&[0, 0], out)), None);
    }

    #[test]
    fn datetimes() {
        // 2026-12-01 09:30:00.123456
        let packed: u64 = 0x80_0000_0000 | ((2026 * 13 + 12) << 22 | 1 << 17 | 9 << 12 | 30 << 6);
        let mut bytes = packed.to_be_bytes()[3..].to_vec();
        let whole = 1_796_117_400_000_000;
        assert_eq!(datetime(&bytes), Some(Instant::Micros(whole)));
        bytes.push(12);
        assert_eq!(datetime(&bytes), Some(Instant::Micros(whole + 120_000)));
        *bytes.last_mut().unwrap() = 0x01;
        bytes.extend([0xe2, 0x40]);
        assert_eq!(datetime(&bytes), Some(Instant::Micros(whole + 123_456)));
        assert_eq!(datetime(&[0x80, 0, 0, 0, 0]), Some(Instant::Zero));
        assert_eq!(datetime(&[0; 5]), None);
        assert_eq!(
            old_datetime(&20_261_201_093_000_u64.to_le_bytes()),
            Some(Instant::Micros(whole))
        );
        assert_eq!(old_datetime(&u64::MAX.to_le_bytes()), None);
    }

    #[test]
    fn timestamps() {
        assert_eq!(timestamp(&[0, 0, 0, 1]), Some(Instant::Micros(MICROS)));
        assert_eq!(
            timestamp(&[0xff; 4]),
            Some(Instant::Micros(i64::from(u32::MAX) * MICROS))
        );
        assert_eq!(timestamp(&[0, 0, 0, 0, 0]), Some(Instant::Zero));
        assert_eq!(old_timestamp(&[1, 0, 0, 0]), Some(Instant::Micros(MICROS)));
        assert_eq!(timestamp(&[0, 0, 0, 1, 0xff, 0xff, 0xff]), None);
    }

    #[test]
    fn times() {
        for (bytes, digits, expected) in [
            (&[0x80, 0, 0][..], 0, "00:00:00"),
            (&[0x7f, 0xff, 0xff], 0, "-00:00:01"),
            (&[0x7f, 0xff, 0xff, 0xf6], 2, "-00:00:00.10"),
            (&[0xb4, 0x6e, 0xfb], 0, "838:59:59"),
            (&[0x80, 0, 1, 0x04, 0xd2], 4, "00:00:01.1234"),
            (&[0x80, 0, 1, 0x01, 0xe2, 0x40], 6, "00:00:01.123456"),
        ] {
            assert_eq!(
                text(|out| write_time(bytes, digits, out)).as_deref(),
                Some(expected)
            );
        }
        let old = |number: i32| number.to_le_bytes()[..3].to_vec();
        assert_eq!(
            text(|out| write_old_time(&old(-8_385_959), out)).as_deref(),
            Some("-838:59:59")
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe(bytes in proptest::collection::vec(any::<u8>(), 0..10), digits: u8) {
            let mut out = Vec::new();
            let _: Option<Instant> = datetime(&bytes);
            let _: Option<Instant> = timestamp(&bytes);
            let _: Option<Instant> = old_datetime(&bytes);
            let _: Option<Instant> = old_timestamp(&bytes);
            for write in [write_date, write_old_time, write_packed_time] {
                let _: Option<()> = write(&bytes, &mut out);
            }
            let _: Option<()> = write_time(&bytes, digits, &mut out);
            let _: Option<()> = write_packed_datetime(&bytes, false, &mut out);
        }

        #[test]
        fn days_match_the_calendar(days in -719_162_i64..2_932_896) {
            let micros = days * 86_400 * MICROS;
            let text = crate::event::rfc3339(micros);
            let number = |range: std::ops::Range<usize>| {
                text.get(range).unwrap().parse::<i64>().unwrap()
            };
            prop_assert_eq!(days_from_civil(number(0..4), number(5..7), number(8..10)), days);
        }
    }
}
