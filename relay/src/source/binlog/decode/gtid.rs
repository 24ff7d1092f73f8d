//! GTID events of both servers.

use super::DecodeError;
use super::reader::Reader;
use super::xa::Xid;

/// A GTID event of MySQL, without a tag (types 33 and 34): the transaction that follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gtid {
    /// Uuid of the server that committed it first; zeros if anonymous.
    pub sid: [u8; 16],
    /// Its number; 0 if anonymous.
    pub gno: u64,
    /// When this server committed it, in microseconds since 1970 (from MySQL 8.0 on).
    pub immediate_commit: Option<u64>,
    /// When the first server committed it, in microseconds since 1970 (from MySQL 8.0 on).
    pub original_commit: Option<u64>,
}

/// Type code of the logical timestamps, which the commit timestamps follow.
const LOGICAL_TIMESTAMPS: u8 = 2;
/// Bit 55 of the commit timestamp: an original one follows, which differs.
const HAS_ORIGINAL: u64 = 1 << 55;

impl Gtid {
    /// Parses the body of a `GTID_LOG_EVENT` or `ANONYMOUS_GTID_LOG_EVENT`.
    ///
    /// # Errors
    ///
    /// If the event is malformed.
    pub fn parse(data: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(data);
        Self::read(&mut reader).ok_or_else(|| reader.cut("GTID event"))
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u8()?;
        let sid = reader.array()?;
        let gno = reader.u64()?;
        let mut gtid = Self {
            sid,
            gno,
            immediate_commit: None,
            original_commit: None,
        };
        // What follows came with MySQL 5.7 and 8.0: an event that ends here is whole.
        if reader.u8() == Some(LOGICAL_TIMESTAMPS)
            && reader.bytes(16).is_some()
            && let Some(immediate) = reader.uint(7)
        {
            let stamp = immediate & !HAS_ORIGINAL;
            gtid.immediate_commit = Some(stamp);
            gtid.original_commit = Some(if immediate & HAS_ORIGINAL == 0 {
                stamp
            } else {
                reader.uint(7)?
            });
        }
        Some(gtid)
    }
}

/// A GTID event of MariaDB: the transaction, or the statement, that follows. Its server id is in the event's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MariaDbGtidEvent {
    /// Replication domain.
    pub domain: u32,
    /// Sequence number within the domain.
    pub sequence: u64,
    /// The XA transaction that it prepares or ends, if it does.
    pub xid: Option<Xid>,
    flags: u8,
}

mod flag {
    pub(super) const STANDALONE: u8 = 1;
    pub(super) const GROUP_COMMIT_ID: u8 = 2;
    pub(super) const PREPARED_XA: u8 = 64;
    pub(super) const COMPLETED_XA: u8 = 128;
}

impl MariaDbGtidEvent {
    /// Parses the body of a `GTID_EVENT` (162).
    ///
    /// # Errors
    ///
    /// If the event is malformed.
    pub fn parse(data: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(data);
        Self::read(&mut reader).ok_or_else(|| reader.cut("MariaDB GTID event"))
    }

    /// `FL_STANDALONE`: a single statement follows (DDL), which no commit event ends.
    pub const fn is_standalone(&self) -> bool {
        self.flags & flag::STANDALONE != 0
    }

    /// `FL_PREPARED_XA`: what follows is only prepared, by the `XA PREPARE` of [`MariaDbGtidEvent::xid`].
    pub const fn is_prepared_xa(&self) -> bool {
        self.flags & flag::PREPARED_XA != 0
    }

    /// `FL_COMPLETED_XA`: the `XA COMMIT` or `XA ROLLBACK` of [`MariaDbGtidEvent::xid`] follows.
    pub const fn is_completed_xa(&self) -> bool {
        self.flags & flag::COMPLETED_XA != 0
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let sequence = reader.u64()?;
        let domain = reader.u32()?;
        let flags = reader.u8()?;
        if flags & flag::GROUP_COMMIT_ID != 0 {
            reader.u64()?;
        }
        let mut gtid = Self {
            domain,
            sequence,
            xid: None,
            flags,
        };
        if gtid.is_prepared_xa() || gtid.is_completed_xa() {
            let format = reader.u32()?;
            let (gtrid, bqual) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
            gtid.xid = Some(Xid::read_data(reader, format, gtrid, bqual)?);
        }
        Some(gtid)
    }
}

/// The last transaction of one domain and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GtidListEntry {
    /// Replication domain.
    pub domain: u32,
    /// Server that committed it first.
    pub server_id: u32,
    /// Sequence number within the domain.
    pub sequence: u64,
}

/// A `GTID_LIST_EVENT` of MariaDB: what the binlog holds before this file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GtidList {
    /// The last transaction of each domain and server; of several of a domain, the last is the newest.
    pub entries: Vec<GtidListEntry>,
}

impl GtidList {
    /// Parses the body of a `GTID_LIST_EVENT` (163).
    ///
    /// # Errors
    ///
    /// If the event is malformed.
    pub fn parse(data: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(data);
        Self::read(&mut reader).ok_or_else(|| reader.cut("MariaDB GTID_LIST event"))
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        // The upper four bits are flags.
        let count = usize::try_from(reader.u32()? & 0x0fff_ffff).ok()?;
        let mut list = Reader::new(reader.bytes(count.checked_mul(16)?)?);
        let mut entries = Vec::with_capacity(count);
        while !list.is_empty() {
            entries.push(GtidListEntry {
                domain: list.u32()?,
                server_id: list.u32()?,
                sequence: list.u64()?,
            });
        }
        Some(Self { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mysql() {
        let mut data = vec![1];
        data.extend([7; 16]);
        data.extend(42_u64.to_le_bytes());
        let bare = Gtid {
            sid: [7; 16],
            gno: 42,
            immediate_commit: None,
            original_commit: None,
        };
        assert_eq!(Gtid::parse(&data), Ok(bare.clone()));
        data.push(2);
        data.extend([0; 16]);
        assert_eq!(Gtid::parse(&data), Ok(bare.clone()), "MySQL 5.7");
        let stamp = 1_764_581_400_123_456_u64;
        let mut same = data.clone();
        same.extend(&stamp.to_le_bytes()[..7]);
        let gtid = Gtid::parse(&same).unwrap();
        assert_eq!(
            (gtid.immediate_commit, gtid.original_commit),
            (Some(stamp), Some(stamp))
        );
        data.extend(&(stamp | HAS_ORIGINAL).to_le_bytes()[..7]);
        assert!(Gtid::parse(&data).is_err());
        data.extend(&(stamp - 5).to_le_bytes()[..7]);
        let gtid = Gtid::parse(&data).unwrap();
        assert_eq!(
            (gtid.immediate_commit, gtid.original_commit),
            (Some(stamp), Some(stamp - 5))
        );
        assert!(Gtid::parse(&data[..24]).is_err());
    }

    #[test]
    fn mariadb() {
        let mut data = 2003_u64.to_le_bytes().to_vec();
        data.extend(5_u32.to_le_bytes());
        let mut plain = data.clone();
        plain.extend([flag::STANDALONE, 0, 0, 0, 0, 0, 0]);
        let gtid = MariaDbGtidEvent::parse(&plain).unwrap();
        assert_eq!((gtid.domain, gtid.sequence), (5, 2003));
        assert!(gtid.is_standalone() && !gtid.is_prepared_xa() && !gtid.is_completed_xa());
        assert_eq!(gtid.xid, None);

        data.push(flag::PREPARED_XA | flag::GROUP_COMMIT_ID);
        data.extend([0; 8]);
        data.extend([1, 0, 0, 0, 2, 1]);
        data.extend(b"abc");
        let gtid = MariaDbGtidEvent::parse(&data).unwrap();
        assert_eq!(gtid.xid, Some(Xid::new(1, b"ab", b"c").unwrap()));
        assert!(gtid.is_prepared_xa() && !gtid.is_completed_xa() && !gtid.is_standalone());
        for length in 0..data.len() {
            assert!(
                MariaDbGtidEvent::parse(&data[..length]).is_err(),
                "cut at {length}"
            );
        }
    }

    #[test]
    fn mariadb_list() {
        let mut data = vec![1, 0, 0, 0x10];
        data.extend([3, 0, 0, 0, 9, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0]);
        let entry = GtidListEntry {
            domain: 3,
            server_id: 9,
            sequence: 1800,
        };
        assert_eq!(
            GtidList::parse(&data),
            Ok(GtidList {
                entries: vec![entry]
            })
        );
        data[0] = 2;
        assert!(GtidList::parse(&data).is_err());
    }
}
