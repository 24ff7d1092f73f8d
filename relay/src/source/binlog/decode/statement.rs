//! QUERY and ROTATE events.

use super::DecodeError;
use super::reader::Reader;

/// A QUERY event: a statement that the server replicates as text (BEGIN, DDL, XA).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query<'a> {
    /// Default database of the statement.
    pub schema: &'a [u8],
    /// The statement.
    pub sql: &'a [u8],
}

impl<'a> Query<'a> {
    /// Parses the body of a QUERY event.
    ///
    /// # Errors
    ///
    /// If the event is malformed.
    pub fn parse(data: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(data);
        read_query_header(&mut reader)
            .map(|schema| Self {
                schema,
                sql: reader.rest(),
            })
            .ok_or_else(|| reader.cut("QUERY event"))
    }
}

/// Reads over all that comes before the statement.
pub(super) fn skip_query_header(reader: &mut Reader<'_>) -> Option<()> {
    read_query_header(reader).map(|_| ())
}

/// Thread id, execution time, length of the schema's name, error code, length of the status variables,
/// these variables, the name, a zero byte.
fn read_query_header<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    reader.bytes(8)?;
    let schema = usize::from(reader.u8()?);
    reader.u16()?;
    let variables = usize::from(reader.u16()?);
    reader.bytes(variables)?;
    let schema = reader.bytes(schema)?;
    reader.u8()?;
    Some(schema)
}

/// A ROTATE event: the next event is at this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotate<'a> {
    /// Offset in the file.
    pub position: u64,
    /// Name of the binlog file.
    pub file: &'a [u8],
}

impl<'a> Rotate<'a> {
    /// Parses the body of a ROTATE event.
    ///
    /// # Errors
    ///
    /// If the event is malformed.
    pub fn parse(data: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(data);
        let position = reader.u64().ok_or_else(|| reader.cut("ROTATE event"))?;
        Ok(Self {
            position,
            file: reader.rest(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let mut data = vec![9, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 3, 0, 0xaa, 0xbb, 0xcc];
        data.extend(b"shop\0BEGIN");
        assert_eq!(
            Query::parse(&data),
            Ok(Query {
                schema: b"shop",
                sql: b"BEGIN"
            })
        );
        for length in 0..data.len() - 5 {
            assert!(Query::parse(&data[..length]).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn rotations() {
        let data = b"\x04\0\0\0\0\0\0\0binlog.000002";
        assert_eq!(
            Rotate::parse(data),
            Ok(Rotate {
                position: 4,
                file: b"binlog.000002"
            })
        );
        assert!(Rotate::parse(&data[..7]).is_err());
    }
}
