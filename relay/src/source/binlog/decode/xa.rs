//! XA transactions: an identifier comes in three forms, and all lead to one [`Xid`].

use std::fmt;

use super::DecodeError;
use super::reader::Reader;

/// `MAXGTRIDSIZE` and `MAXBQUALSIZE` of the XA specification.
const MAX_PART: usize = 64;

/// The identifier of an XA transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Xid {
    format: u32,
    gtrid: Box<[u8]>,
    bqual: Box<[u8]>,
}

impl Xid {
    /// An identifier of these parts, if they are of at most 64 bytes.
    pub fn new(format: u32, gtrid: &[u8], bqual: &[u8]) -> Option<Self> {
        let fits = gtrid.len() <= MAX_PART && bqual.len() <= MAX_PART;
        fits.then(|| Self {
            format,
            gtrid: gtrid.into(),
            bqual: bqual.into(),
        })
    }

    /// Both parts follow one another.
    pub(super) fn read_data(
        reader: &mut Reader<'_>,
        format: u32,
        gtrid: usize,
        bqual: usize,
    ) -> Option<Self> {
        let gtrid = reader.bytes(gtrid)?;
        let bqual = reader.bytes(bqual)?;
        Self::new(format, gtrid, bqual)
    }
}

/// `X'…',X'…',1`, as the servers write it into the binlog.
impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.gtrid, &self.bqual] {
            f.write_str("X'")?;
            for byte in part {
                write!(f, "{byte:02x}")?;
            }
            f.write_str("',")?;
        }
        self.format.fmt(f)
    }
}

/// An `XA_PREPARE_LOG_EVENT` (38): ends the rows of an XA transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XaPrepare {
    /// `XA COMMIT … ONE PHASE`: it is committed by this very event. Otherwise it is prepared only, and a later
    /// `XA COMMIT` or `XA ROLLBACK` decides.
    pub one_phase: bool,
    /// Which transaction.
    pub xid: Xid,
}

impl XaPrepare {
    /// Parses the body of an `XA_PREPARE_LOG_EVENT`.
    ///
    /// # Errors
    ///
    /// If the event is malformed.
    pub fn parse(data: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(data);
        Self::read(&mut reader).ok_or_else(|| reader.cut("XA_PREPARE event"))
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let one_phase = reader.u8()? != 0;
        let format = reader.u32()?;
        let gtrid = usize::try_from(reader.u32()?).ok()?;
        let bqual = usize::try_from(reader.u32()?).ok()?;
        Some(Self {
            one_phase,
            xid: Xid::read_data(reader, format, gtrid, bqual)?,
        })
    }
}

/// What an XA statement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XaVerb {
    /// `XA START` or `XA BEGIN`.
    Start,
    /// `XA END`.
    End,
    /// `XA PREPARE`.
    Prepare,
    /// `XA COMMIT`.
    Commit,
    /// `XA ROLLBACK`.
    Rollback,
}

/// An XA statement in a QUERY event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XaStatement {
    /// What it does.
    pub verb: XaVerb,
    /// To which transaction.
    pub xid: Xid,
    /// `ONE PHASE`.
    pub one_phase: bool,
}

impl XaStatement {
    /// Parses a statement such as `XA COMMIT X'61',X'',1`; `None` if it is no XA statement.
    ///
    /// The servers write the parts in hexadecimal; quoted text is understood too.
    pub fn parse(sql: &[u8]) -> Option<Self> {
        let mut rest = sql.trim_ascii();
        if !word(&mut rest)?.eq_ignore_ascii_case(b"XA") {
            return None;
        }
        let verb = word(&mut rest)?;
        let verb = [
            (&b"START"[..], XaVerb::Start),
            (b"BEGIN", XaVerb::Start),
            (b"END", XaVerb::End),
            (b"PREPARE", XaVerb::Prepare),
            (b"COMMIT", XaVerb::Commit),
            (b"ROLLBACK", XaVerb::Rollback),
        ]
        .into_iter()
        .find_map(|(name, found)| verb.eq_ignore_ascii_case(name).then_some(found))?;
        let gtrid = part(&mut rest)?;
        let bqual = if comma(&mut rest) {
            part(&mut rest)?
        } else {
            Vec::new()
        };
        let format = if comma(&mut rest) {
            number(&mut rest)?
        } else {
            1
        };
        let one_phase = rest.trim_ascii().eq_ignore_ascii_case(b"ONE PHASE");
        Some(Self {
            verb,
            xid: Xid::new(format, &gtrid, &bqual)?,
            one_phase,
        })
    }
}

/// Takes the letters at the front.
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text = rest.trim_ascii_start();
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (word, after) = text.split_at_checked(end)?;
    *rest = after;
    Some(word)
}

/// Takes a comma, if there is one.
fn comma(rest: &mut &[u8]) -> bool {
    let after = rest.trim_ascii_start().strip_prefix(b",");
    if let Some(after) = after {
        *rest = after;
    }
    after.is_some()
}

/// Takes a decimal number.
fn number(rest: &mut &[u8]) -> Option<u32> {
    let text = rest.trim_ascii_start();
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, after) = text.split_at_checked(end)?;
    *rest = after;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Takes `X'…'`, `0x…`, `'…'` or `"…"`.
fn part(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let text = rest.trim_ascii_start();
    let (quote, hexadecimal, text) = match *text {
        [b'x' | b'X', b'\'', ref text @ ..] => (Some(b'\''), true, text),
        [b'0', b'x' | b'X', ref text @ ..] => (None, true, text),
        [quote @ (b'\'' | b'"'), ref text @ ..] => (Some(quote), false, text),
        _ => return None,
    };
    let is_end = |byte: &u8| match quote {
        Some(quote) => *byte == quote,
        None => !byte.is_ascii_hexdigit(),
    };
    let end = text.iter().position(is_end);
    let end = if quote.is_some() {
        end?
    } else {
        end.unwrap_or(text.len())
    };
    let (bytes, after) = text.split_at_checked(end)?;
    *rest = if quote.is_some() {
        after.split_first()?.1
    } else {
        after
    };
    if hexadecimal {
        unhex(bytes)
    } else {
        Some(bytes.to_vec())
    }
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let nibble = |digit: u8| {
        char::from(digit)
            .to_digit(16)
            .and_then(|n| u8::try_from(n).ok())
    };
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs
        .map(|pair| match *pair {
            [high, low] => Some(nibble(high)? << 4 | nibble(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn statements() {
        let xid = Xid::new(1, b"ab", b"c").unwrap();
        for sql in [
            "XA COMMIT X'6162',X'63',1",
            "xa commit x'6162' , 0x63",
            "XA COMMIT 'ab',\"c\",1",
            " XA COMMIT 0x6162,'c',1 ",
        ] {
            let expected = XaStatement {
                verb: XaVerb::Commit,
                xid: xid.clone(),
                one_phase: false,
            };
            assert_eq!(XaStatement::parse(sql.as_bytes()), Some(expected), "{sql}");
        }
        let statement = XaStatement::parse(b"XA COMMIT X'61',X'',7 ONE PHASE").unwrap();
        assert_eq!(statement.xid, Xid::new(7, b"a", b"").unwrap());
        assert!(statement.one_phase);
        assert_eq!(
            XaStatement::parse(b"XA ROLLBACK 'a'").unwrap().verb,
            XaVerb::Rollback
        );
    }

    #[test]
    fn no_xa_statements() {
        for sql in [
            "",
            "BEGIN",
            "XA",
            "XA RECOVER",
            "XA COMMIT X'616",
            "XA COMMIT X'616'",
            "XAX",
        ] {
            assert_eq!(XaStatement::parse(sql.as_bytes()), None, "{sql}");
        }
        let long = format!("XA COMMIT X'{}'", "61".repeat(65));
        assert_eq!(XaStatement::parse(long.as_bytes()), None);
    }

    #[test]
    fn prepare_events() {
        let mut data = vec![0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0];
        data.extend(b"abc");
        let prepare = XaPrepare::parse(&data).unwrap();
        assert!(!prepare.one_phase);
        assert_eq!(prepare.xid.to_string(), "X'6162',X'63',1");
        for length in 0..data.len() {
            assert!(
                XaPrepare::parse(&data[..length]).is_err(),
                "cut at {length}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_xid_survives_its_text(
            format: u32,
            gtrid in proptest::collection::vec(any::<u8>(), 0..=64),
            bqual in proptest::collection::vec(any::<u8>(), 0..=64),
        ) {
            let xid = Xid::new(format, &gtrid, &bqual).unwrap();
            let sql = format!("XA ROLLBACK {xid}");
            prop_assert_eq!(XaStatement::parse(sql.as_bytes()).unwrap().xid, xid);
        }

        #[test]
        fn any_bytes_are_safe(bytes: Vec<u8>) {
            let _: Option<XaStatement> = XaStatement::parse(&bytes);
            let sql = [b"XA COMMIT ".as_slice(), &bytes].concat();
            let _: Option<XaStatement> = XaStatement::parse(&sql);
        }
    }
}
