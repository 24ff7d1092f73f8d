//! Binary JSON of MySQL against its own text.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail, ensure};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Value};
use relay::source::binlog::decode::{ColumnRef, TableMap};

use crate::server::{Scratch, Text, as_text, scratch, shown};

/// Hundreds of documents, thousands of doubles: each decodes to what `SELECT` sends.
pub(crate) async fn torture(variable: &str) -> Result<()> {
    let seed = fastrand::u64(..);
    fastrand::seed(seed);
    let result = scratch(variable, async |scratch| {
        let sql = "CREATE TABLE docs (id INT PRIMARY KEY AUTO_INCREMENT, payload JSON NOT NULL)";
        scratch.run(sql).await?;
        let place = scratch.place().await?;
        insert_documents(scratch).await?;
        let originals = select_documents(scratch).await?;
        // Documents with gaps, left by updates in place; and an empty value.
        scratch
            .run("UPDATE docs SET payload = JSON_REPLACE(payload, '$[0]', 1)")
            .await?;
        scratch
            .run("INSERT INTO docs (payload) SELECT payload FROM docs")
            .await?;
        scratch
            .run("INSERT IGNORE INTO docs (payload) VALUES (NULL), (NULL)")
            .await?;
        let mut selected = select_documents(scratch).await?;
        selected.splice(..originals.len(), originals);

        let wanted = |_: &TableMap| vec![ColumnRef::new(0, 0), ColumnRef::new(1, 1)];
        let decoded = scratch.rows(&place, "docs", wanted).await?;
        ensure!(decoded.rows.len() == selected.len());
        let mut differences = String::new();
        for (decoded, (id, expected)) in decoded.rows.iter().zip(&selected) {
            ensure!(as_text(&decoded[0]) == *id, "ids");
            let found = as_text(&decoded[1]);
            if found != *expected {
                writeln!(differences, "{}", first_difference(&found, expected))?;
            }
        }
        ensure!(differences.is_empty(), "{differences}");
        Ok(())
    });
    result
        .await
        .with_context(|| format!("fastrand::seed({seed})"))
}

async fn insert_documents(scratch: &mut Scratch) -> Result<()> {
    for expression in expressions() {
        scratch
            .run(format!("INSERT INTO docs (payload) VALUES ({expression})"))
            .await?;
    }
    for chunk in doubles().chunks(500) {
        let places = vec!["?"; chunk.len()].join(",");
        let sql = format!("INSERT INTO docs (payload) VALUES (JSON_ARRAY({places}))");
        let values = chunk.iter().map(|double| Value::from(*double)).collect();
        scratch
            .conn
            .exec_drop(sql, Params::Positional(values))
            .await?;
    }
    for _ in 0..200 {
        let sql = "INSERT INTO docs (payload) VALUES (?)";
        scratch.conn.exec_drop(sql, (by_chance(0),)).await?;
    }
    Ok(())
}

async fn select_documents(scratch: &mut Scratch) -> Result<Vec<(Text, Text)>> {
    let sql = "SELECT id, payload, CAST(payload AS CHAR) FROM docs ORDER BY id";
    let rows = scratch.select(sql).await?;
    rows.into_iter()
        .map(|row| match <[Text; 3]>::try_from(row) {
            Ok([id, payload, cast]) if payload == cast => Ok((id, payload)),
            other => bail!("two ways to select differ: {other:?}"),
        })
        .collect()
}

fn first_difference(found: &Text, expected: &Text) -> String {
    let (found, expected) = (shown(found), shown(expected));
    let at = found
        .chars()
        .zip(expected.chars())
        .take_while(|(l, r)| l == r)
        .count();
    let near = |text: &str| {
        text.chars()
            .skip(at.saturating_sub(20))
            .take(60)
            .collect::<String>()
    };
    format!("at {at}: …{}… is not …{}…", near(&found), near(&expected))
}

/// Documents as SQL expressions.
fn expressions() -> Vec<String> {
    let mut expressions: Vec<String> = [
        "JSON_OBJECT('d', CAST(1.10 AS DECIMAL(10,2)), 't', CAST('-12:34:56.789' AS TIME(3)))",
        "JSON_ARRAY(CAST(0.00001 AS DECIMAL(5,5)), CAST(-0.5 AS DECIMAL(3,1)), 1e0, 1.0, 100, -0.0)",
        "JSON_ARRAY(12345678901234567890.123456789, -99999999999999999999999999999999999999999999.9)",
        "JSON_ARRAY(CAST('2026-01-02' AS DATE), CAST('2026-01-02 03:04:05.678901' AS DATETIME(6)))",
        "JSON_ARRAY(CAST('838:59:59' AS TIME), CAST('-838:59:59' AS TIME), CAST('00:00:00' AS TIME))",
        "JSON_ARRAY(CAST('0000-00-00' AS DATE), CAST('2026-01-02 03:04:05' AS DATETIME))",
        "JSON_ARRAY(TIMESTAMP('2026-01-02 03:04:05'), CURRENT_TIMESTAMP(6), CURRENT_DATE, CURRENT_TIME(6))",
        "JSON_ARRAY(-9223372036854775808, 9223372036854775807, 18446744073709551615, 0, -1)",
        "JSON_ARRAY(32767, 32768, -32768, -32769, 65535, 65536, 2147483647, 2147483648, -2147483649)",
        "JSON_ARRAY(4294967295, 4294967296, 9223372036854775808)",
        "JSON_ARRAY(TRUE, FALSE, NULL)",
        "JSON_ARRAY()",
        "JSON_OBJECT()",
        "JSON_OBJECT('', '', 'a', '', 'aa', JSON_OBJECT('', NULL))",
        "CAST(x'00ff10' AS JSON)",
        "JSON_OBJECT('blob', x'', 'long', REPEAT(x'00ff', 500))",
        "JSON_ARRAY(REPEAT(x'ab', 57), REPEAT(x'ab', 58), REPEAT(x'ab', 114))",
        "JSON_ARRAY(b'101', CAST('x' AS BINARY))",
        "JSON_ARRAY(ST_GeomFromText('POINT(1 2.5)'))",
        "CAST(ST_GeomFromText('LINESTRING(0 0,1 1)') AS JSON)",
        "JSON_QUOTE('scalar text')",
        "'\"a scalar\"'",
        "'null'",
        "'true'",
        "'-0.0'",
        "'[1.0, 1e5, 1E-7, 123456789012345678901234567890, 0.1e1, -0, 1.7976931348623157e308]'",
        "'{\"dup\": 1, \"dup\": 2, \"b\": 0, \"aaa\": 0, \"aa\": 0}'",
        r#"'["\\u0000\\u0001\\u001f\\u007f\\u0080\\b\\f\\n\\r\\t\\"\\\\\\/ \\u2028 \\ud83e\\udd80 é"]'"#,
        "JSON_OBJECT('é🦀\\t\"\\\\', '🦀')",
        "JSON_OBJECT(REPEAT('k', 60000), 1)",
        "JSON_ARRAY(REPEAT('x', 127), REPEAT('x', 128), REPEAT('x', 16383), REPEAT('x', 16384))",
        "JSON_ARRAY(REPEAT('large', 20000), 70000, -70000, 4294967295, 1.5, 'tail', NULL)",
        "JSON_OBJECT('big', REPEAT('🦀', 600000), 'i', 100000, 'nested', JSON_ARRAY(JSON_OBJECT('x', 1)))",
        "JSON_SET(JSON_OBJECT('a', REPEAT('x', 100), 'b', 2), '$.a', 'y')",
        "CAST(CAST('2026-01-02' AS DATE) AS JSON)",
        "CAST(CAST(-1.500 AS DECIMAL(6,3)) AS JSON)",
        "CAST(1.5e0 AS JSON)",
        "CAST(18446744073709551615 AS JSON)",
        "CAST(CAST(2026 AS YEAR) AS JSON)",
        "JSON_ARRAY(CAST(1.1 AS FLOAT), CAST(16777217 AS FLOAT), CAST(1e30 AS FLOAT))",
    ]
    .map(str::to_owned)
    .into();
    // The deepest that the server takes, of either kind.
    for levels in [1, 50, 99, 100] {
        expressions.push(format!("'{}{}'", "[".repeat(levels), "]".repeat(levels)));
        expressions.push(format!(
            "'{}1{}'",
            "{\"k\":".repeat(levels),
            "}".repeat(levels)
        ));
    }
    // Many members: the small format ends at 64 KiB.
    for members in [1, 2, 100, 3000, 7000, 10_000, 70_000] {
        expressions.push(format!("CONCAT('[0', REPEAT(',1', {members}), ']')"));
        expressions.push(format!(
            "CONCAT('[\"s\"', REPEAT(',\"two\"', {members}), ']')"
        ));
    }
    let object: Vec<String> = (0..5000)
        .map(|at| format!("\"key{at}\":{}", at * 1000))
        .collect();
    expressions.push(format!("'{{{}}}'", object.join(",")));
    expressions
}

/// Doubles of every kind.
fn doubles() -> Vec<f64> {
    let mut doubles = vec![
        0.0,
        -0.0,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        f64::EPSILON,
        1.0 / 3.0,
    ];
    doubles.extend((-324..=308).map(|exponent| 10_f64.powi(exponent)));
    doubles.extend((-1074..=1023).map(|exponent| 2_f64.powi(exponent)));
    doubles.extend((0..53).map(|bits| 9_007_199_254_740_991_f64 / 2_f64.powi(bits)));
    doubles.extend((1..=18).map(|digits| {
        "123456789012345678"
            .split_at(digits)
            .0
            .parse()
            .unwrap_or(0.0)
    }));
    doubles.extend((0..2000).map(|_| f64::from_bits(fastrand::u64(..))));
    doubles.extend((0..1000).map(|_| f64::from(fastrand::i32(..)) / 100.0));
    doubles.extend((0..1000).map(|_| fastrand::f64() * 10_f64.powi(fastrand::i32(-20..20))));
    doubles.retain(|double| double.is_finite());
    doubles
}

/// A random document as text.
fn by_chance(depth: usize) -> String {
    let text = || {
        let length = fastrand::usize(..30);
        let text: String = (0..length)
            .map(|_| fastrand::char('\0'..='\u{1f9ff}'))
            .collect();
        serde_json::Value::from(text).to_string()
    };
    let count = fastrand::usize(..6);
    match fastrand::u8(..if depth > 5 { 6 } else { 8 }) {
        0 => "null".to_owned(),
        1 => fastrand::bool().to_string(),
        2 => fastrand::i64(..).to_string(),
        3 => (fastrand::i64(..) >> fastrand::u32(..64)).to_string(),
        4 => fastrand::u64(..).to_string(),
        5 => text(),
        6 => {
            let items: Vec<String> = (0..count).map(|_| by_chance(depth + 1)).collect();
            format!("[{}]", items.join(","))
        }
        _ => {
            let member = |_| format!("{}:{}", text(), by_chance(depth + 1));
            let members: Vec<String> = (0..count).map(member).collect();
            format!("{{{}}}", members.join(","))
        }
    }
}
