//! Times as the relay writes them: `2026-01-02T03:04:05.000006Z` (pure).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads a UTC time from 1970 on, with up to nine digits of fraction; nothing if it is another text.
pub(crate) fn parse(text: &str) -> Option<SystemTime> {
    let text = text.strip_suffix('Z')?;
    let (date, clock) = text.split_once('T')?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    // 60 is a leap second.
    let valid = year >= 1970
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !valid || fraction.len() > 9 || !digits(fraction) {
        return None;
    }
    let nanoseconds: u32 = format!("{fraction:0<9}").parse().ok()?;
    let seconds = (days(year, month, day) * 24 + hour) * 3600 + minute * 60 + second;
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}

fn numbers(text: &str, separator: char, widths: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; 3];
    for (number, width) in numbers.iter_mut().zip(widths) {
        let part = parts
            .next()
            .filter(|part| part.len() == width && digits(part))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Days from 1970-01-01 in the Gregorian calendar; the year begins in March, so that leap days end it.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let from_march = (month + 9) % 12;
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    // 719,468 days lie between 0000-03-01 and 1970-01-01.
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<f64> {
        Some(parse(text)?.duration_since(UNIX_EPOCH).ok()?.as_secs_f64())
    }

    #[test]
    fn known_times() {
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0.0));
        assert_eq!(seconds("2000-02-29T12:00:00.5Z"), Some(951_825_600.5));
        assert_eq!(
            seconds("2026-01-02T03:04:05.000006Z"),
            Some(1_767_323_045.000_006)
        );
        assert_eq!(seconds("2100-03-01T00:00:00Z"), Some(4_107_542_400.0));
    }

    #[test]
    fn other_texts_are_none() {
        for text in [
            "",
            "Z",
            "2026-01-02",
            "2026-01-02T03:04:05",
            "2026-01-02 03:04:05Z",
            "2026-13-02T03:04:05Z",
            "2026-01-02T03:04:05.Z",
            "2026-01-02T03:04:05.0000000001Z",
            "1969-12-31T23:59:59Z",
            "2026-1-2T03:04:05Z",
            "2026-01-02T+3:04:05Z",
            "٢٠٢٦-01-02T03:04:05Z",
            "2026-01-02-01T03:04:05Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(text in "\\PC*") {
            parse(&text);
        }

        #[test]
        fn every_valid_time_is_in_order(
            a in (1970_u64..9999, 1_u64..=12, 1_u64..=28), b in (1970_u64..9999, 1_u64..=12, 1_u64..=28),
        ) {
            let day = |(y, m, d): (u64, u64, u64)| days(y, m, d);
            proptest::prop_assert_eq!(day(a).cmp(&day(b)), a.cmp(&b));
        }
    }
}
