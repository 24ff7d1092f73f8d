//! What a column's definition tells and the binlog does not, or not always.

use std::io::Write as _;
use std::net::Ipv4Addr;

use super::charset::Charset;
use super::column::Labels;

/// A column's definition in the server's schema.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) unsigned: bool,
    /// Digits behind the point of `FLOAT(7,2)` and `DOUBLE(7,2)`.
    pub(crate) decimals: Option<u8>,
    /// Fractional digits of a TIME, DATETIME or TIMESTAMP.
    pub(crate) fraction: Option<u8>,
    /// Labels of an ENUM or SET, in UTF-8.
    pub(crate) labels: Option<Labels>,
    /// Whether it is BINARY rather than CHAR.
    pub(crate) binary: bool,
    pub(crate) special: Option<Special>,
    pub(crate) charset: Option<Charset>,
}

impl Declared {
    /// Reads `COLUMN_TYPE` and `CHARACTER_SET_NAME` of `information_schema.COLUMNS`.
    pub(crate) fn parse(column_type: &str, character_set: Option<&str>) -> Self {
        let (name, rest) = column_type.split_once('(').unwrap_or((column_type, ""));
        let word = |word: &str| column_type.split([' ', ')']).any(|other| other == word);
        let name = name.split(' ').next().unwrap_or(name);
        Self {
            unsigned: matches!(
                name,
                "tinyint" | "smallint" | "mediumint" | "int" | "bigint"
            ) && word("unsigned"),
            decimals: match name {
                "float" | "double" => decimals(rest),
                _ => None,
            },
            fraction: match name {
                "time" | "datetime" | "timestamp" => Some(
                    rest.split_once(')')
                        .and_then(|(n, _)| n.parse().ok())
                        .unwrap_or(0),
                ),
                _ => None,
            },
            labels: match name {
                "enum" | "set" => Some(labels(rest)),
                _ => None,
            },
            binary: name == "binary",
            special: match name {
                "uuid" => Some(Special::Uuid),
                "inet6" => Some(Special::Inet6),
                "inet4" => Some(Special::Inet4),
                _ => None,
            },
            charset: character_set.and_then(Charset::of_name),
        }
    }
}

/// `7,2) unsigned` → 2.
fn decimals(rest: &str) -> Option<u8> {
    rest.split_once(')')?
        .0
        .split_once(',')?
        .1
        .trim()
        .parse()
        .ok()
}

/// `'a','it''s')` → a, it's. A quote within a label is doubled.
fn labels(rest: &str) -> Labels {
    let mut labels = Vec::new();
    let mut label: Option<Vec<u8>> = None;
    let mut bytes = rest.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match (&mut label, byte) {
            (None, b'\'') => label = Some(Vec::new()),
            (None, b')') => break,
            (None, _) => {}
            (Some(text), b'\'') if bytes.peek() == Some(&b'\'') => {
                bytes.next();
                text.push(b'\'');
            }
            (Some(_), b'\'') => labels.extend(label.take().map(Vec::into_boxed_slice)),
            (Some(text), _) => text.push(byte),
        }
    }
    labels.into()
}

/// MariaDB's types that are fixed binary strings in the binlog and text in `SELECT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    /// `UUID`.
    Uuid,
    /// `INET6`.
    Inet6,
    /// `INET4`.
    Inet4,
}

impl Special {
    /// Appends the text of a value. The row leaves out its trailing zero bytes.
    pub(crate) fn write(self, bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
        match self {
            Special::Uuid => write_uuid(padded(bytes)?, out),
            Special::Inet6 => write_inet6(padded(bytes)?, out),
            Special::Inet4 => write!(out, "{}", Ipv4Addr::from(padded::<4>(bytes)?)).ok(),
        }
    }
}

fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut padded = [0; N];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(padded)
}

/// UUIDs of versions 1 to 5 are stored with their parts in reverse order, so that those of one node sort by
/// time (`sql/sql_type_uuid.h` of MariaDB: `record_to_memory`).
fn write_uuid(stored: [u8; 16], out: &mut Vec<u8>) -> Option<()> {
    let [
        n0,
        n1,
        n2,
        n3,
        n4,
        n5,
        s0,
        s1,
        h0,
        h1,
        m0,
        m1,
        l0,
        l1,
        l2,
        l3,
    ] = stored;
    let swapped = s0 & 0x80 != 0 && (1..=0x80).contains(&h0);
    let bytes = if swapped {
        [
            l0, l1, l2, l3, m0, m1, h0, h1, s0, s1, n0, n1, n2, n3, n4, n5,
        ]
    } else {
        stored
    };
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        write!(out, "{byte:02x}").ok()?;
    }
    Some(())
}

/// As MariaDB prints it, not quite as RFC 5952 has it: a single zero becomes `::` too, and IPv4-compatible addresses
/// end in dots as IPv4-mapped ones do (`Inet6::to_string` in `sql/sql_type_inet.cc`).
fn write_inet6(stored: [u8; 16], out: &mut Vec<u8>) -> Option<()> {
    let bits = u128::from_be_bytes(stored);
    let group = |at: usize| bits >> (112 - 16 * at) & 0xffff;
    let (gap, length) = longest_zeros(group);
    let is_ipv4 = gap == 0 && (length == 6 || (length == 5 && group(5) == 0xffff));
    let mut at = 0;
    while at < 8 {
        if at == gap && length > 0 {
            out.extend_from_slice(if at == 0 { b"::" } else { b":" });
            at += length;
            continue;
        }
        if at == 6 && is_ipv4 {
            let [.., a, b, c, d] = stored;
            return write!(out, "{}", Ipv4Addr::new(a, b, c, d)).ok();
        }
        write!(out, "{:x}", group(at)).ok()?;
        if at < 7 {
            out.push(b':');
        }
        at += 1;
    }
    Some(())
}

/// The first longest run of zero groups: where, and how many.
fn longest_zeros(group: impl Fn(usize) -> u128) -> (usize, usize) {
    let mut longest = (0, 0);
    let mut run = 0;
    for at in 0..8 {
        run = if group(at) == 0 { run + 1 } else { 0 };
        if run > longest.1 {
            longest = (at + 1 - run, run);
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions() {
        assert!(Declared::parse("bigint unsigned", None).unsigned);
        assert!(Declared::parse("int(10) unsigned zerofill", None).unsigned);
        assert!(!Declared::parse("enum('unsigned')", None).unsigned);
        assert!(!Declared::parse("bigint(20)", None).unsigned);
        assert_eq!(
            Declared::parse("float(7,2) unsigned", None).decimals,
            Some(2)
        );
        assert_eq!(Declared::parse("double", None).decimals, None);
        assert_eq!(Declared::parse("decimal(7,2)", None).decimals, None);
        assert_eq!(Declared::parse("datetime(6)", None).fraction, Some(6));
        assert_eq!(Declared::parse("timestamp", None).fraction, Some(0));
        assert_eq!(
            Declared::parse("time /* mariadb-5.3 */", None).fraction,
            Some(0)
        );
        assert_eq!(Declared::parse("date", None).fraction, None);
        assert!(Declared::parse("binary(16)", None).binary);
        assert!(!Declared::parse("varbinary(16)", None).binary);
        assert_eq!(Declared::parse("uuid", None).special, Some(Special::Uuid));
        assert_eq!(
            Declared::parse("varchar(8)", Some("latin1")).charset,
            Some(Charset::Latin1)
        );
    }

    #[test]
    fn labels_of_a_definition() {
        let labels = |definition| {
            let labels = Declared::parse(definition, None).labels.unwrap();
            labels
                .iter()
                .map(|l| String::from_utf8(l.to_vec()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(labels("enum('PENDING','FAILED')"), ["PENDING", "FAILED"]);
        assert_eq!(
            labels("set('it''s','a,b','(c)','','é')"),
            ["it's", "a,b", "(c)", "", "é"]
        );
        assert_eq!(labels("enum('cut"), [""; 0]);
    }

    #[test]
    fn network_addresses() {
        for (stored, expected) in [
            (0, "::"),
            (1, "::1"),
            (0x0102_0304, "::1.2.3.4"),
            (0xffff_0102_0304, "::ffff:1.2.3.4"),
            (0xfe80 << 112, "fe80::"),
            (0x0001_0000_0000_0002_0000_0000_0000_0003, "1:0:0:2::3"),
            (0x0001_0002_0003_0004_0005_0006_0000_0008, "1:2:3:4:5:6::8"),
            (u128::MAX, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let mut out = Vec::new();
            write_inet6(u128::to_be_bytes(stored), &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        let mut out = Vec::new();
        Special::Inet4.write(&[10], &mut out).unwrap();
        assert_eq!(out, b"10.0.0.0");
    }

    #[test]
    fn uuids() {
        let text = |stored: u128| {
            let mut out = Vec::new();
            write_uuid(stored.to_be_bytes(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            text(0x4466_5544_0000_a716_41d4_e29b_550e_8400),
            "550e8400-e29b-41d4-a716-446655440000"
        );
        // Version 7 stays as it is.
        assert_eq!(
            text(0x0190_a5c8_1f2e_7abc_9def_0123_4567_89ab),
            "0190a5c8-1f2e-7abc-9def-0123456789ab"
        );
    }
}
