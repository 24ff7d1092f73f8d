//! Documents written by hand, by a small encoder, and by chance.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn ignore<T>(_: T) {}

fn text(jsonb: &[u8]) -> Result<String, JsonbError> {
    let mut out = b"kept".to_vec();
    write_json(jsonb, &mut out)?;
    Ok(String::from_utf8(out)
        .unwrap()
        .strip_prefix("kept")
        .unwrap()
        .to_owned())
}

/// The server's encoding of a document, in the small format where it fits.
fn encode(value: &Value) -> Vec<u8> {
    let (kind, data) = encode_value(value);
    [vec![kind], data].concat()
}

fn encode_value(value: &Value) -> (u8, Vec<u8>) {
    match value {
        Value::Null => (kind::LITERAL, vec![0]),
        Value::Bool(flag) => (kind::LITERAL, vec![if *flag { 1 } else { 2 }]),
        Value::Number(number) => encode_number(number),
        Value::String(text) => (kind::STRING, encode_text(text.as_bytes())),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(|value| (None, value)).collect();
            encode_container(&values, [kind::SMALL_ARRAY, kind::LARGE_ARRAY])
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members
                .iter()
                .map(|(key, value)| (Some(key.as_bytes()), value))
                .collect();
            members.sort_by_key(|(key, _)| key.map(|key| (key.len(), key)));
            encode_container(&members, [kind::SMALL_OBJECT, kind::LARGE_OBJECT])
        }
    }
}

fn encode_number(number: &serde_json::Number) -> (u8, Vec<u8>) {
    if let Some(number) = number.as_i64() {
        if let Ok(number) = i16::try_from(number) {
            return (kind::INT16, number.to_le_bytes().to_vec());
        }
        if let Ok(number) = i32::try_from(number) {
            return (kind::INT32, number.to_le_bytes().to_vec());
        }
        return (kind::INT64, number.to_le_bytes().to_vec());
    }
    match number.as_u64() {
        Some(number) => (kind::UINT64, number.to_le_bytes().to_vec()),
        None => (
            kind::DOUBLE,
            number.as_f64().unwrap().to_le_bytes().to_vec(),
        ),
    }
}

fn encode_text(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut length = text.len();
    while length >= 0x80 {
        out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
    out.extend_from_slice(text);
    out
}

fn encode_container(members: &[(Option<&[u8]>, &Value)], [small, large]: [u8; 2]) -> (u8, Vec<u8>) {
    match encode_entries(members, Width::Small) {
        Some(data) => (small, data),
        None => (large, encode_entries(members, Width::Large).unwrap()),
    }
}

fn encode_entries(members: &[(Option<&[u8]>, &Value)], width: Width) -> Option<Vec<u8>> {
    let number = |number: usize| match width {
        Width::Small => u16::try_from(number)
            .ok()
            .map(|number| number.to_le_bytes().to_vec()),
        Width::Large => u32::try_from(number)
            .ok()
            .map(|number| number.to_le_bytes().to_vec()),
    };
    let offset_bytes = number(0)?.len();
    let keys = members.iter().filter(|(key, _)| key.is_some()).count();
    let header = 2 * offset_bytes + keys * width.key_entry() + members.len() * width.value_entry();
    let (mut key_entries, mut value_entries, mut tail) = (Vec::new(), Vec::new(), Vec::new());
    for key in members.iter().filter_map(|(key, _)| *key) {
        key_entries.extend(number(header + tail.len())?);
        key_entries.extend(u16::try_from(key.len()).unwrap().to_le_bytes());
        tail.extend(key);
    }
    for (_, value) in members {
        let (kind, data) = encode_value(value);
        value_entries.push(kind);
        if width.inlines(kind) {
            let mut inline = data;
            inline.resize(offset_bytes, 0);
            value_entries.extend(inline);
        } else {
            value_entries.extend(number(header + tail.len())?);
            tail.extend(data);
        }
    }
    let size = number(header + tail.len())?;
    Some(
        [
            number(members.len())?,
            size,
            key_entries,
            value_entries,
            tail,
        ]
        .concat(),
    )
}

fn opaque(field: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![kind::OPAQUE, field], encode_text(bytes)].concat()
}

#[test]
fn documents() {
    assert_eq!(text(&[]).as_deref(), Ok("null"));
    let document = json!({
        "b": [1, -1, 70_000, -5_000_000_000_i64, u64::MAX, 1.5, 2.0, -0.0],
        "": "empty key", "long key": "tab\tand \"quote\"", "a": null, "c": {"t": true, "f": false},
        "d": [], "e": {},
    });
    assert_eq!(
        text(&encode(&document)).as_deref(),
        Ok(concat!(
            r#"{"": "empty key", "a": null, "#,
            r#""b": [1, -1, 70000, -5000000000, 18446744073709551615, 1.5, 2.0, -0.0], "#,
            r#""c": {"f": false, "t": true}, "d": [], "#,
            r#""e": {}, "long key": "tab\tand \"quote\""}"#
        ))
    );
}

#[test]
fn unsigned_integers() {
    assert_eq!(text(&[kind::UINT16, 0xff, 0xff]).as_deref(), Ok("65535"));
    assert_eq!(
        text(&[kind::UINT32, 0xff, 0xff, 0xff, 0xff]).as_deref(),
        Ok("4294967295")
    );
}

#[test]
fn opaque_values() {
    let datetime = (((2026_i64 * 13 + 1) << 5 | 2) << 17 | 3 << 12 | 4 << 6 | 5) << 24 | 6;
    let time = (838_i64 << 12 | 59 << 6 | 59) << 24;
    for (field, bytes, expected) in [
        (opaque::NEWDECIMAL, vec![3, 2, 0x81, 10], "1.10"),
        (
            opaque::DATE,
            datetime.to_le_bytes().to_vec(),
            "\"2026-01-02\"",
        ),
        (
            opaque::DATETIME,
            datetime.to_le_bytes().to_vec(),
            "\"2026-01-02 03:04:05.000006\"",
        ),
        (
            opaque::TIMESTAMP,
            datetime.to_le_bytes().to_vec(),
            "\"2026-01-02 03:04:05.000006\"",
        ),
        (
            opaque::TIME,
            (-time).to_le_bytes().to_vec(),
            "\"-838:59:59.000000\"",
        ),
        (opaque::VAR_STRING, b"text".to_vec(), "\"text\""),
        (16, vec![5], "\"base64:type16:BQ==\""),
    ] {
        assert_eq!(
            text(&opaque(field, &bytes)).as_deref(),
            Ok(expected),
            "type {field}"
        );
    }
    for field in [
        opaque::NEWDECIMAL,
        opaque::DATE,
        opaque::DATETIME,
        opaque::TIME,
    ] {
        assert_eq!(text(&opaque(field, &[1])), Err(JsonbError::Opaque(field)));
    }
}

#[test]
fn depth_is_limited() {
    let nested = |levels: usize| (1..levels).fold(json!([]), |inner, _| json!([inner]));
    assert!(text(&encode(&nested(MAX_DEPTH))).is_ok());
    assert_eq!(
        text(&encode(&nested(MAX_DEPTH + 1))),
        Err(JsonbError::TooDeep)
    );
}

#[test]
fn values_used_twice_are_refused() {
    // Thirty arrays of two entries that both point at the next one: a billion values.
    let mut document = Vec::new();
    for level in 0..30_u16 {
        let size = 10 * (30 - level) + 4;
        document.extend([2, 0]);
        document.extend(size.to_le_bytes());
        for _ in 0..2 {
            document.extend([kind::SMALL_ARRAY, 10, 0]);
        }
    }
    document.extend([0, 0, 4, 0]);
    let jsonb = [vec![kind::SMALL_ARRAY], document].concat();
    assert_eq!(text(&jsonb), Err(JsonbError::Overlap));
}

#[test]
fn malformed_documents() {
    for (jsonb, error) in [
        (&[0x0d_u8][..], JsonbError::UnknownType(0x0d)),
        (&[kind::LITERAL], JsonbError::OutOfBounds),
        (&[kind::LITERAL, 3], JsonbError::UnknownLiteral(3)),
        (&[kind::STRING, 5, b'a'], JsonbError::OutOfBounds),
        (
            &[kind::STRING, 0x80, 0x80, 0x80, 0x80, 0x80, 0],
            JsonbError::OutOfBounds,
        ),
        (&[kind::SMALL_ARRAY, 0, 0, 5, 0], JsonbError::OutOfBounds),
        (
            &[kind::SMALL_ARRAY, 1, 0, 7, 0, kind::STRING, 4, 0],
            JsonbError::OutOfBounds,
        ),
        (
            &[kind::SMALL_ARRAY, 1, 0, 7, 0, kind::STRING, 9, 0],
            JsonbError::OutOfBounds,
        ),
        (
            &[kind::LARGE_OBJECT, 0xff, 0xff, 0xff, 0xff, 8, 0, 0, 0],
            JsonbError::OutOfBounds,
        ),
    ] {
        assert_eq!(text(jsonb), Err(error), "{jsonb:?}");
    }
}

fn documents_by_chance() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("finite", |value| value.is_finite())
            .prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        // Long enough, together, for the large format.
        "[a-z]{9000}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 10, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..10).prop_map(Value::from),
            proptest::collection::btree_map(".{0,9}", inner, 1..10)
                .prop_map(|members| Value::from(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Equal, but for the last place of a double, where serde_json's reader may be off by one.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(l, r)| same(l, r))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|((lk, l), (rk, r))| lk == rk && same(l, r))
        }
        (Value::Number(left), Value::Number(right)) if left.is_f64() || right.is_f64() => {
            let (left, right) = (left.as_f64().unwrap(), right.as_f64().unwrap());
            (left - right).abs() <= (left.abs() * f64::EPSILON).max(f64::MIN_POSITIVE)
        }
        _ => left == right,
    }
}

proptest! {
    #[test]
    fn documents_read_back(document in documents_by_chance()) {
        let text = text(&encode(&document)).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        prop_assert!(same(&read, &document), "{text}");
    }

    #[test]
    fn garbage_is_safe(jsonb: Vec<u8>) {
        let mut out = Vec::new();
        ignore(write_json(&jsonb, &mut out));
        prop_assert!(out.len() <= 64 + jsonb.len() * 20);
    }

    #[test]
    fn damaged_documents_are_safe(
        document in documents_by_chance(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut jsonb = encode(&document);
        for (at, byte) in damage {
            let at = at.index(jsonb.len());
            jsonb[at] = byte;
        }
        let mut out = Vec::new();
        ignore(write_json(&jsonb, &mut out));
        ignore(write_json(&jsonb[..cut.index(jsonb.len())], &mut out));
    }

    #[test]
    fn a_cut_document_is_an_error(document in documents_by_chance(), cut in any::<prop::sample::Index>()) {
        let jsonb = encode(&document);
        let cut = cut.index(jsonb.len());
        prop_assume!(cut > 0);
        prop_assert!(text(&jsonb[..cut]).is_err());
    }
}
