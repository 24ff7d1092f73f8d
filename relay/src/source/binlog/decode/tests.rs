//! Whole events: written by hand, damaged by chance.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::{DeflateEncoder, ZlibEncoder};
use proptest::prelude::*;

use super::*;
use crate::event::Datum;

/// A column of a fixture: type number, metadata, a value's bytes in a row (`None`: NULL), and what it decodes to.
struct Sample {
    number: u8,
    metadata: &'static [u8],
    value: Option<&'static [u8]>,
    datum: Datum,
}

fn sample(
    number: u8,
    metadata: &'static [u8],
    value: Option<&'static [u8]>,
    datum: Datum,
) -> Sample {
    Sample {
        number,
        metadata,
        value,
        datum,
    }
}

fn bytes(text: &str) -> Datum {
    Datum::Bytes(text.as_bytes().to_vec())
}

/// One column of about every type.
fn samples() -> Vec<Sample> {
    vec![
        sample(
            8,
            &[],
            Some(&[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            Datum::Int(-2),
        ),
        sample(1, &[], Some(&[0xff]), Datum::UInt(255)),
        sample(9, &[], Some(&[0, 0, 0x80]), Datum::Int(-8_388_608)),
        sample(15, &[0x2c, 1], Some(b"\x03\0abc"), bytes("abc")),
        sample(254, &[247, 1], Some(&[2]), bytes("two")),
        sample(3, &[], None, Datum::Null),
        sample(254, &[248, 1], Some(&[3]), bytes("a,b")),
        sample(246, &[10, 2], Some(&[0x80, 0, 0, 1, 10]), bytes("1.10")),
        sample(
            18,
            &[3],
            Some(&[0x99, 0xbb, 0x82, 0x97, 0x80, 4, 0xce]),
            Datum::Micros(1_796_117_400_123_000),
        ),
        sample(245, &[4], Some(&[3, 0, 0, 0, 5, 7, 0]), bytes("7")),
        sample(252, &[2], Some(b"\x02\0hi"), bytes("hi")),
        sample(
            254,
            &[254, 4],
            Some(b"\x02\x01\x02"),
            Datum::Bytes(vec![1, 2, 0, 0]),
        ),
        sample(13, &[], Some(&[126]), Datum::UInt(2026)),
        sample(16, &[2, 1], Some(&[1, 2]), Datum::UInt(258)),
        sample(4, &[4], Some(&[0, 0, 0xc0, 0x3f]), bytes("1.5")),
        sample(5, &[8], Some(&[0, 0, 0, 0, 0, 0, 0xf8, 0x3f]), bytes("1.5")),
        sample(10, &[], Some(&[0x21, 0xd4, 0x0f]), bytes("2026-01-01")),
        sample(19, &[0], Some(&[0x80, 0, 1]), bytes("00:00:01")),
        sample(17, &[0], Some(&[0, 0, 0, 1]), Datum::Micros(1_000_000)),
        sample(242, &[4], Some(b"\x04\0\0\0abcd"), bytes("abcd")),
        sample(255, &[4], Some(b"\x01\0\0\0g"), bytes("g")),
        sample(20, &[8], Some(&[2, 0, 0, 0, 4, 1]), bytes("true")),
        sample(141, &[0x2c, 1], Some(b"\x04\0\0raw"), bytes("raw")),
    ]
}

fn lenenc(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text].concat()
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    [vec![kind], lenenc(value)].concat()
}

/// `full`: with what `binlog_row_metadata = FULL` adds.
fn table_map(samples: &[Sample], full: bool) -> Vec<u8> {
    let count = samples.len();
    let types: Vec<u8> = samples.iter().map(|sample| sample.number).collect();
    let metadata: Vec<u8> = samples
        .iter()
        .flat_map(|s| s.metadata.iter().copied())
        .collect();
    let mut data = vec![9, 0, 0, 0, 0, 0, 1, 0];
    data.extend([lenenc(b"shop"), vec![0], lenenc(b"outbox"), vec![0]].concat());
    data.push(u8::try_from(count).unwrap());
    data.extend(types);
    data.extend(lenenc(&metadata));
    data.extend(vec![0xff; count.div_ceil(8)]);
    // Of the numeric columns BIGINT, TINYINT, MEDIUMINT, …, the second is unsigned.
    data.extend(tlv(1, &[0x40, 0]));
    // Of the text columns the second (BLOB) is latin1, the third (CHAR) is binary.
    data.extend(tlv(3, &[45, 8, 63, 63, 45]));
    data.extend(tlv(99, b"not invented yet"));
    if full {
        let names: Vec<u8> = (0..count)
            .flat_map(|at| lenenc(format!("c{at}").as_bytes()))
            .collect();
        data.extend(tlv(4, &names));
        data.extend(tlv(5, &[&[2][..], &lenenc(b"a"), &lenenc(b"b")].concat()));
        data.extend(tlv(
            6,
            &[&[2][..], &lenenc(b"one"), &lenenc(b"two")].concat(),
        ));
    }
    data
}

fn write_rows(samples: &[Sample], rows: usize, present: impl Fn(usize) -> bool) -> Vec<u8> {
    let mut data = vec![9, 0, 0, 0, 0, 0, 1, 0, 6, 0, 0xaa, 0xbb, 0xcc, 0xdd];
    data.push(u8::try_from(samples.len()).unwrap());
    data.extend(bitmap(samples.len(), &present));
    let shown: Vec<_> = samples
        .iter()
        .enumerate()
        .filter(|(at, _)| present(*at))
        .map(|(_, s)| s)
        .collect();
    for _ in 0..rows {
        data.extend(bitmap(shown.len(), &|at| shown[at].value.is_none()));
        data.extend(shown.iter().filter_map(|sample| sample.value).flatten());
    }
    data
}

fn bitmap(count: usize, is_set: &impl Fn(usize) -> bool) -> Vec<u8> {
    let mut bits = vec![0; count.div_ceil(8)];
    for at in (0..count).filter(|at| is_set(*at)) {
        bits[at / 8] |= 1 << (at % 8);
    }
    bits
}

fn all(_: usize) -> bool {
    true
}

fn plan(map: &[u8], wanted: &[ColumnRef]) -> Result<RowPlan, DecodeError> {
    RowPlan::new(&TableMap::parse(map)?, wanted)
}

fn every(count: usize) -> Vec<ColumnRef> {
    (0..count).map(|at| ColumnRef::new(at, at)).collect()
}

/// Rows of 23 columns, the samples' number.
fn decode(plan: &RowPlan, kind: u8, data: &[u8]) -> Result<Vec<[Datum; 23]>, DecodeError> {
    let mut rows = RowsEvent::parse(kind, data)?.rows(plan)?;
    std::iter::from_fn(|| rows.next_row()).collect()
}

#[test]
fn names_are_peeked_at() {
    let map = table_map(&samples(), true);
    let name = TableName::peek(&map).unwrap();
    assert_eq!(name.to_string(), "shop.outbox");
    assert_eq!(name.table_id, 9);
    assert_eq!(
        TableName::peek(&map[..12]).unwrap_err().to_string(),
        "TABLE_MAP event is cut short or malformed at byte 9"
    );
}

#[test]
fn table_maps() {
    let map = TableMap::parse(&table_map(&samples(), true)).unwrap();
    assert_eq!(
        (&*map.schema, &*map.table, map.table_id, map.flags),
        ("shop", "outbox", 9, 1)
    );
    assert_eq!(map.column("C4"), Some(4));
    assert_eq!(map.column("nope"), None);
    assert_eq!(map.columns[0].unsigned, Some(false));
    assert_eq!(map.columns[1].unsigned, Some(true));
    assert_eq!(map.columns[3].collation, Some(45));
    assert_eq!(map.columns[10].collation, Some(8));
    assert_eq!(map.columns[4].collation, None, "ENUM");
    let minimal = TableMap::parse(&table_map(&samples(), false)).unwrap();
    assert_eq!(minimal.columns[4].labels, None);
    assert_eq!(minimal.column("c4"), None);
}

#[test]
fn default_character_sets() {
    let map = |types: &[u8], charset: &[u8]| {
        let samples: Vec<_> = types
            .iter()
            .map(|number| match number {
                15 => sample(15, &[9, 0], None, Datum::Null),
                _ => sample(*number, &[4], None, Datum::Null),
            })
            .collect();
        let mut data = table_map(&samples, false);
        let end = data.len() - tlv(99, b"not invented yet").len() - tlv(3, &[0; 5]).len();
        data.truncate(end);
        data.extend(tlv(2, charset));
        let collations =
            |map: TableMap| map.columns.iter().map(|c| c.collation).collect::<Vec<_>>();
        TableMap::parse(&data).map(collations)
    };
    assert_eq!(
        map(&[15, 3, 252], &[45]),
        Ok(vec![Some(45), None, Some(45)])
    );
    assert_eq!(
        map(&[15, 245, 252], &[45, 1, 63]),
        Ok(vec![Some(45), None, Some(63)])
    );
    assert_eq!(
        map(&[242, 15, 252], &[63, 1, 8]),
        Ok(vec![Some(63), Some(8), Some(63)])
    );
    assert_eq!(
        map(&[255, 15, 252], &[63, 1, 8]),
        Ok(vec![None, None, None]),
        "of either server"
    );
    assert!(map(&[15], &[45, 1, 63]).is_err());
}

#[test]
fn rows_of_every_type() {
    let samples = samples();
    let plan = plan(&table_map(&samples, true), &every(samples.len())).unwrap();
    let rows = decode(&plan, event_type::WRITE_ROWS, &write_rows(&samples, 3, all)).unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        for (at, (datum, sample)) in row.iter().zip(&samples).enumerate() {
            assert_eq!(*datum, sample.datum, "column {at}");
        }
    }
}

#[test]
fn rows_of_version_1() {
    let samples = samples();
    let plan = plan(&table_map(&samples, true), &every(samples.len())).unwrap();
    let mut data = write_rows(&samples, 1, all);
    data.drain(8..14);
    assert_eq!(
        decode(&plan, event_type::WRITE_ROWS_V1, &data)
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn what_the_definition_says() {
    let samples = samples();
    let wanted = [
        ColumnRef::new(4, 0).declared_as("enum('x','y')", None),
        ColumnRef::new(1, 1).declared_as("tinyint", None),
        ColumnRef::new(11, 2).declared_as("uuid", None),
    ];
    let plan = plan(&table_map(&samples, false), &wanted).unwrap();
    let data = write_rows(&samples, 1, all);
    let mut rows = RowsEvent::parse(event_type::WRITE_ROWS, &data)
        .unwrap()
        .rows(&plan)
        .unwrap();
    let row = rows.next_row::<4>().unwrap().unwrap();
    let uuid = bytes("01020000-0000-0000-0000-000000000000");
    assert_eq!(row, [bytes("y"), Datum::UInt(255), uuid, Datum::Null]);
    assert!(rows.next_row::<4>().is_none());
}

#[test]
fn old_temporal_columns() {
    // 1,796,117,400 seconds.
    let samples = [
        sample(7, &[], Some(&[0x98, 0x93, 0x0e, 0x6b]), Datum::Null),
        sample(3, &[], Some(&[1, 0, 0, 0]), Datum::Null),
    ];
    let map = table_map(&samples, true);
    let undeclared = plan(&map, &[ColumnRef::new(1, 0)]).unwrap_err();
    assert!(
        undeclared
            .to_string()
            .starts_with("table shop.outbox: column c0 is stored in the")
    );
    let with_fraction = ColumnRef::new(0, 0).declared_as("timestamp(3)", None);
    assert!(plan(&map, &[with_fraction]).is_err());
    let without = ColumnRef::new(0, 0).declared_as("timestamp", None);
    let plan = plan(&map, &[without]).unwrap();
    let rows = decode(&plan, event_type::WRITE_ROWS, &write_rows(&samples, 1, all)).unwrap();
    assert_eq!(rows[0][0], Datum::Micros(1_796_117_400_000_000));
}

#[test]
fn absent_columns() {
    let samples = samples();
    let map = table_map(&samples, true);
    let wanted = [ColumnRef::new(0, 0), ColumnRef::new(10, 1)];
    let data = write_rows(&samples, 2, |at| at != 9 && at != 3);
    let some = plan(&map, &wanted).unwrap();
    let mut rows = RowsEvent::parse(event_type::WRITE_ROWS, &data)
        .unwrap()
        .rows(&some)
        .unwrap();
    for _ in 0..2 {
        assert_eq!(
            rows.next_row().unwrap().unwrap(),
            [Datum::Int(-2), bytes("hi")]
        );
    }
    assert!(rows.next_row::<2>().is_none());
    let payload = plan(&map, &[ColumnRef::new(9, 0)]).unwrap();
    let error = decode(&payload, event_type::WRITE_ROWS, &data).unwrap_err();
    assert_eq!(
        error.to_string(),
        "table shop.outbox: the row image holds no column c9"
    );
}

#[test]
fn rows_of_no_columns_end() {
    let samples = samples();
    let plan = plan(&table_map(&samples, true), &[]).unwrap();
    let mut data = write_rows(&samples, 1, |_| false);
    assert_eq!(decode(&plan, event_type::WRITE_ROWS, &data), Ok(vec![]));
    data.push(0);
    assert!(decode(&plan, event_type::WRITE_ROWS, &data).is_err());
}

#[test]
fn errors_name_what_failed() {
    let mut samples = samples();
    let map = table_map(&samples, true);
    let mine = plan(&map, &every(samples.len())).unwrap();
    let error = |result: Result<Vec<[Datum; 23]>, DecodeError>| result.unwrap_err().to_string();

    let data = write_rows(&samples, 1, all);
    assert_eq!(
        error(decode(
            &mine,
            event_type::WRITE_ROWS,
            &data[..data.len() - 1]
        )),
        "row 0 of table shop.outbox is cut short or malformed in column c22, at byte 94"
    );
    assert_eq!(
        error(decode(&mine, 31, &data)),
        "event type 31 is no WRITE_ROWS event"
    );
    let mut other = data.clone();
    other[0] = 8;
    assert!(
        error(decode(&mine, event_type::WRITE_ROWS, &other))
            .contains("is not of table shop.outbox")
    );

    samples[9].value = Some(&[1, 0, 0, 0, 0x0e]);
    let error = decode(&mine, event_type::WRITE_ROWS, &write_rows(&samples, 1, all)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "row 0 of table shop.outbox: column c9 holds no valid binary JSON"
    );
    assert!(std::error::Error::source(&error).is_some());

    let no_column = plan(&map, &[ColumnRef::new(23, 0)]).unwrap_err();
    assert_eq!(
        no_column.to_string(),
        "table shop.outbox has 23 columns, none of number 23 (from 0)"
    );

    let mut foreign = map.clone();
    let at = foreign.windows(2).position(|pair| pair == [45, 8]).unwrap();
    foreign[at] = 35;
    let charset = plan(&foreign, &[ColumnRef::new(3, 0)]).unwrap_err();
    assert!(
        charset
            .to_string()
            .contains("column c3 has a character set (collation 35)")
    );
    assert!(plan(&foreign, &[ColumnRef::new(0, 0)]).is_ok());

    samples[21].number = 241;
    let unknown = TableMap::parse(&table_map(&samples, true)).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "table shop.outbox: column c21 has the unknown type 241"
    );
    let unknown = TableMap::parse(&table_map(&samples, false)).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "table shop.outbox: column #21 has the unknown type 241"
    );
}

#[test]
fn latin1_becomes_utf8() {
    let mut samples = samples();
    samples[10].value = Some(b"\x02\0\xe9!");
    let plan = plan(&table_map(&samples, true), &[ColumnRef::new(10, 0)]).unwrap();
    let rows = decode(&plan, event_type::WRITE_ROWS, &write_rows(&samples, 1, all)).unwrap();
    assert_eq!(rows[0][0], bytes("é!"));
}

/// A compressed record, as MariaDB writes it.
fn record(plain: &[u8]) -> Vec<u8> {
    let mut record = vec![0x82];
    record.extend(u16::try_from(plain.len()).unwrap().to_be_bytes());
    let mut encoder = ZlibEncoder::new(record, Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_rows() {
    let samples = samples();
    let data = write_rows(&samples, 50, all);
    let head = 14 + 1 + 3;
    let packed = [&data[..head], &record(&data[head..])].concat();
    let kind = event_type::MARIADB_WRITE_ROWS_COMPRESSED;
    assert_eq!(
        uncompress_rows(kind, &packed),
        Ok((event_type::WRITE_ROWS, data.clone()))
    );

    let short = [&data[..8], &packed[14..]].concat();
    let (kind_1, plain) =
        uncompress_rows(event_type::MARIADB_WRITE_ROWS_COMPRESSED_V1, &short).unwrap();
    assert_eq!(kind_1, event_type::WRITE_ROWS_V1);
    assert_eq!(plain, [&data[..8], &data[14..]].concat());

    let mut lying = packed.clone();
    lying[head + 2] ^= 1;
    assert!(uncompress_rows(kind, &lying).is_err(), "another length");
    lying[head] = 0x84;
    lying.splice(head + 1..head + 3, [0xff; 4]);
    assert!(
        uncompress_rows(kind, &lying).is_err(),
        "4 GiB out of nothing"
    );
    assert!(uncompress_rows(kind, &packed[..packed.len() - 1]).is_err());
    assert!(uncompress_rows(event_type::WRITE_ROWS, &packed).is_err());
}

#[test]
fn compressed_queries() {
    let mut data = vec![0; 8];
    data.extend([1, 0, 0, 2, 0, 7, 7, b's', 0]);
    let head = data.len();
    data.extend(b"CREATE TABLE t (id INT)");
    let packed = [&data[..head], &record(&data[head..])].concat();
    assert_eq!(uncompress_query(&packed), Ok(data));
}

#[test]
fn compressed_columns() {
    let text = b"to be compressed, ".repeat(20);
    let length = u16::try_from(text.len()).unwrap().to_be_bytes();
    let mut zlib = ZlibEncoder::new([&[0x82], &length[..]].concat(), Compression::default());
    zlib.write_all(&text).unwrap();
    assert_eq!(
        compressed::column(&zlib.finish().unwrap()),
        Some(text.clone())
    );
    let mut raw = DeflateEncoder::new([&[0x8a], &length[..]].concat(), Compression::default());
    raw.write_all(&text).unwrap();
    assert_eq!(compressed::column(&raw.finish().unwrap()), Some(text));
    assert_eq!(compressed::column(&[]), Some(Vec::new()));
    assert_eq!(compressed::column(&[0x30, 1]), None);
}

fn ignore<T>(_: T) {}

/// Everything that takes bytes off the wire.
fn decode_all(plan: &RowPlan, data: &[u8]) {
    ignore(TableName::peek(data));
    if let Ok(map) = TableMap::parse(data) {
        ignore(RowPlan::new(&map, &every(map.columns.len())));
    }
    for kind in [event_type::WRITE_ROWS_V1, event_type::WRITE_ROWS] {
        ignore(decode(plan, kind, data));
    }
    for kind in [166, 169] {
        ignore(uncompress_rows(kind, data));
    }
    ignore(uncompress_query(data));
    ignore(Query::parse(data));
    ignore(Rotate::parse(data));
    ignore(Gtid::parse(data));
    ignore(MariaDbGtidEvent::parse(data));
    ignore(GtidList::parse(data));
    ignore(XaPrepare::parse(data));
    ignore(compressed::column(data));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn garbage_is_safe(data: Vec<u8>) {
        let samples = samples();
        decode_all(&plan(&table_map(&samples, true), &every(samples.len())).unwrap(), &data);
    }

    #[test]
    fn damaged_events_are_safe(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        full: bool,
    ) {
        let samples = samples();
        let map = table_map(&samples, full);
        let plan = plan(&map, &every(samples.len())).unwrap();
        let rows = write_rows(&samples, 2, all);
        let packed = [&rows[..18], &record(&rows[18..])].concat();
        for mut data in [map, rows, packed] {
            for (at, byte) in &damage {
                let at = at.index(data.len());
                data[at] = *byte;
            }
            decode_all(&plan, &data);
            decode_all(&plan, &data[..cut.index(data.len())]);
        }
    }
}
