//! Values.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use tests::inbox::{Header, Inbox};
use tests::scene::Scene;
use tests::servers::Flavor;

use crate::contract;

/// Payloads as SQL expressions, the same on both servers.
const EXPRESSIONS: &[&str] = &[
    "JSON_OBJECT('decimal', CAST(12.340 AS DECIMAL(10,3)), 'tiny', CAST(-0.000000001 AS DECIMAL(30,9)), \
      'huge', CAST(99999999999999999999999999999999999.000000000000000000000000000001 AS DECIMAL(65,30)))",
    "JSON_OBJECT('at', TIMESTAMP'2026-01-02 03:04:05.000006', 'day', DATE'2026-01-02', \
      'time', TIME'-12:34:56.789000', 'whole', TIMESTAMP'1999-12-31 23:59:59')",
    "JSON_ARRAY(18446744073709551615, -9223372036854775808, 9007199254740993, 65535, 65536, -32769, 0)",
    "JSON_ARRAY(1e300, CAST(0.1 AS DOUBLE), CAST(-2.5 AS DOUBLE), CAST(1e15 AS DOUBLE), CAST(1e16 AS DOUBLE))",
    "JSON_OBJECT('big', REPEAT('é', 1000000), 'after', JSON_ARRAY(1, 'x', NULL, TRUE))",
];

/// MySQL's own: binary values that its JSON keeps as they are.
const MYSQL_EXPRESSIONS: &[&str] = &[
    "JSON_OBJECT('blob', x'cafe00ff', 'bit', b'101')",
    "JSON_OBJECT('point', ST_AsGeoJSON(ST_GeomFromText('POINT(1.5 2)')))",
    "CAST(TIMESTAMP'2026-01-02 03:04:05.000006' AS JSON)",
];

/// Payloads as text.
fn texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "{}", "[]", "null", "true", "42", "-0", "\"text\"", "\"\"",
        "{\"\": {\"\": [\"\", {}]}}",
        "{\"b\": 1, \"aa\": 2, \"a\": 3, \"Z\": 4, \"é\": 5, \"🦀\": 6}",
        "[0.1, 1.0, -0.0, 1e-7, 1.7976931348623157e308, 5e-324, 123456789012345680.0, 1e21, 0.30000000000000004]",
        "[18446744073709551615, 9223372036854775808, -9223372036854775808, 1.0e2, 3.14]",
        "{\"escapes\": \"\\u0000 \\u001f \\b\\f\\n\\r\\t \\\" \\\\ \\/ \\u00e9 \\ud83e\\udd80\"}",
        "{\"text\": \"Зоя 漢字 🦀 \u{2028} ' \\\\' % _\"}",
        // MariaDB takes 32 levels.
        "[[[[[[[[[[[[[[{\"deep\": [[[[[[[[[[[[[[true]]]]]]]]]]]]]]}]]]]]]]]]]]]]]",
        "{\"same\": 1, \"same\": 2}",
    ]
    .map(str::to_owned)
    .into();
    // Lengths at which MySQL's binary JSON changes its encoding: 127/128 and 16383/16384 bytes for the
    // length of a string, 65535/65536 for small and large documents.
    for length in [127, 128, 16_383, 16_384, 65_500, 65_535, 65_536, 70_000] {
        texts.push(format!(
            "{{\"s\": \"{}\", \"n\": 70000}}",
            "x".repeat(length)
        ));
    }
    let mut many = "{\"k\": [".to_owned();
    for number in 0..20_000 {
        let comma = if number == 0 { "" } else { ", " };
        // Writing to a String can't fail.
        write!(many, "{comma}{number}").unwrap_or_default();
    }
    texts.push(format!("{many}]}}"));
    texts
}

const TIMES: [&str; 5] = [
    "2026-01-02 03:04:05.000001",
    "1999-12-31 23:59:59.999999",
    "2026-06-01 00:00:00.000000",
    "2024-02-29 12:00:00.500000",
    "1970-01-01 00:00:01.000010",
];

const AGGREGATES: [i64; 4] = [i64::MAX, i64::MIN, 0, -1];

const HEADERS: &str = "{\"traceparent\": \"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\", \
     \"tenant\": \"Зоя 🦀\", \"n\": 42, \"ok\": true, \"ratio\": 1.5, \"none\": null, \
     \"big\": 9223372036854775807}";

/// The body carries the bytes that SELECT shows; times keep their microseconds; the `headers` column
/// becomes headers.
pub(crate) async fn values_arrive_as_select_shows_them(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let mut relay = scene.relay().start().await?;
    let mut payloads: Vec<(String, Option<String>)> = texts()
        .into_iter()
        .map(|text| ("?".to_owned(), Some(text)))
        .collect();
    payloads.extend(EXPRESSIONS.iter().map(|sql| ((*sql).to_owned(), None)));
    if scene.database.flavor() == Flavor::Mysql {
        payloads.extend(
            MYSQL_EXPRESSIONS
                .iter()
                .map(|sql| ((*sql).to_owned(), None)),
        );
    }
    let mut conn = scene.database.connect().await?;
    for (number, (expression, text)) in payloads.iter().enumerate() {
        let pick = |length: usize| number.checked_rem(length).unwrap_or(0);
        let time = TIMES.get(pick(TIMES.len())).context("no time")?;
        let aggregate = AGGREGATES
            .get(pick(AGGREGATES.len()))
            .context("no aggregate")?;
        let mut parameters: Vec<mysql_async::Value> = vec![aggregate.into()];
        parameters.extend(text.iter().map(Into::into));
        parameters.extend([
            format!("ключ \"{number}\" \\ 🦀").into(),
            (*time).into(),
            (number % 2 == 0).then_some(HEADERS).into(),
        ]);
        let insert = format!(
            "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, \
             idempotency_key, created_at, headers) VALUES ('заказ', ?, 'Создан ✓', {expression}, ?, ?, ?)"
        );
        conn.exec_drop(insert, parameters)
            .await
            .with_context(|| format!("payload {number}"))?;
    }
    drop(conn);
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;

    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    let rows = scene.database.outbox().await?;
    ensure!(
        inbox.messages().len() == rows.len(),
        "{} messages",
        inbox.messages().len()
    );
    let own = [
        (
            "traceparent",
            Header::text("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ),
        ("tenant", Header::text("Зоя 🦀")),
        ("n", Header::Int(42)),
        ("ok", Header::Bool(true)),
        ("ratio", Header::Double(1.5)),
        ("big", Header::Int(i64::MAX)),
    ];
    for (number, row) in rows.iter().enumerate() {
        let message = inbox
            .get(&row.key)
            .with_context(|| format!("{} did not arrive", row.key))?;
        let extra = if number % 2 == 0 { &own[..] } else { &[] };
        contract::message_is(scene, row, message, extra)?;
    }
    Ok(())
}
