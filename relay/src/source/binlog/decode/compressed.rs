//! MariaDB's compressed events and columns.
//!
//! With `log_bin_compress` the rows, or the statement, of an event are a compressed record: a byte with the
//! high bit set, the algorithm in bits 4 to 6 (0 is zlib) and the number of length bytes in bits 0 to 2;
//! the original length, big-endian; then the zlib stream (`binlog_buf_uncompress` in `sql/log_event.cc`).

use std::io::Read as _;

use flate2::read::{DeflateDecoder, ZlibDecoder};

use super::reader::{Reader, big_endian};
use super::rows::{skip_columns_bitmap, skip_rows_header};
use super::statement::skip_query_header;
use super::{DecodeError, event_type};

/// No deflate stream yields more than so many bytes for each of its own.
const MAX_RATIO: usize = 1032;

/// The body of a compressed WRITE_ROWS event uncompressed, and the type of the event that it is then.
///
/// # Errors
///
/// If the event is of another type, malformed, or its compressed part is.
pub fn uncompress_rows(event_type: u8, data: &[u8]) -> Result<(u8, Vec<u8>), DecodeError> {
    const WHAT: &str = "compressed WRITE_ROWS event";
    let plain = match event_type {
        event_type::MARIADB_WRITE_ROWS_COMPRESSED_V1 => event_type::WRITE_ROWS_V1,
        event_type::MARIADB_WRITE_ROWS_COMPRESSED => event_type::WRITE_ROWS,
        found => {
            return Err(DecodeError::EventType {
                expected: WHAT,
                found,
            });
        }
    };
    let mut reader = Reader::new(data);
    skip_rows_header(plain, &mut reader)
        .and_then(|()| skip_columns_bitmap(&mut reader))
        .ok_or_else(|| reader.cut(WHAT))?;
    Ok((plain, replace_rest(WHAT, data, reader)?))
}

/// The body of a QUERY_COMPRESSED event as that of a QUERY event.
///
/// # Errors
///
/// If the event is malformed, or its compressed part is.
pub fn uncompress_query(data: &[u8]) -> Result<Vec<u8>, DecodeError> {
    const WHAT: &str = "QUERY_COMPRESSED event";
    let mut reader = Reader::new(data);
    skip_query_header(&mut reader).ok_or_else(|| reader.cut(WHAT))?;
    replace_rest(WHAT, data, reader)
}

/// What has been read stays, the rest is a compressed record.
fn replace_rest(
    what: &'static str,
    data: &[u8],
    mut reader: Reader<'_>,
) -> Result<Vec<u8>, DecodeError> {
    let failed = |why| DecodeError::Compression { what, why };
    let head = data.get(..reader.offset()).unwrap_or_default();
    let header = reader.u8().ok_or(failed("it is cut short"))?;
    if header & 0x80 == 0 {
        return Err(failed("it is not marked as compressed"));
    }
    if header & 0x70 != 0 {
        return Err(failed("its algorithm is unknown"));
    }
    let length = usize::from(header & 0x07);
    let length = reader
        .bytes(length)
        .filter(|_| (1..=4).contains(&length))
        .and_then(big_endian);
    let length = length.ok_or(failed("its length is malformed"))?;
    let mut plain = head.to_vec();
    inflate(
        ZlibDecoder::new(reader.rest()),
        reader.rest().len(),
        length,
        &mut plain,
    )
    .ok_or(failed("its stream does not yield what its length says"))?;
    Ok(plain)
}

/// Appends a stream that yields exactly `length` bytes.
fn inflate(
    stream: impl std::io::Read,
    compressed: usize,
    length: u64,
    out: &mut Vec<u8>,
) -> Option<()> {
    let wanted = usize::try_from(length).ok()?;
    if wanted > compressed.checked_mul(MAX_RATIO)? {
        return None;
    }
    let start = out.len();
    out.reserve_exact(wanted);
    // One byte more than wanted, to see that there is none.
    stream.take(length.checked_add(1)?).read_to_end(out).ok()?;
    (out.len() - start == wanted).then_some(())
}

/// The value of a COMPRESSED column: a byte with the method in its upper half (0: none, 8: deflate), bit 3 set
/// where the stream has no zlib header, and the number of length bytes in bits 0 to 2; then the original
/// length, big-endian, and the stream. An empty value has no bytes at all (`sql/field_comp.cc`).
pub(crate) fn column(bytes: &[u8]) -> Option<Vec<u8>> {
    let Some((header, rest)) = bytes.split_first() else {
        return Some(Vec::new());
    };
    match header >> 4 {
        0 => return Some(rest.to_vec()),
        8 => {}
        _ => return None,
    }
    let (length, stream) = rest.split_at_checked(usize::from(header & 0x07))?;
    let length = big_endian(length)?;
    let mut out = Vec::new();
    if header & 0x08 == 0 {
        inflate(ZlibDecoder::new(stream), stream.len(), length, &mut out)?;
    } else {
        inflate(DeflateDecoder::new(stream), stream.len(), length, &mut out)?;
    }
    Some(out)
}
