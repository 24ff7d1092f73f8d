//! The decoders against real servers: what they make of the binlog is what `SELECT` sends.
//!
//! Needs `MYSQL_URL` and `MARIADB_URL`: `eval "$(scripts/services env)"`.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::StreamExt as _;
use mysql_async::prelude::Queryable as _;
use mysql_async::{BinlogStreamRequest, Conn, Opts, Params, Row, Value};
use relay::event::Datum;
use relay::source::binlog::decode::{
    Charset, ColumnRef, DecodeError, Gtid, GtidList, MariaDbGtidEvent, Query, Rotate, RowPlan,
    RowsEvent, TableMap, TableName, XaPrepare, XaStatement, XaVerb, Xid, event_type,
    uncompress_query, uncompress_rows,
};

/// Reading what is there already takes no longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// A connection, and a database of the test's own.
struct Scratch {
    conn: Conn,
    opts: Opts,
    database: String,
    is_mariadb: bool,
}

/// Runs a test in a database of its own, which is dropped whatever comes of it.
async fn scratch<F>(variable: &str, test: F) -> Result<()>
where
    F: AsyncFnOnce(&mut Scratch) -> Result<()>,
{
    let Ok(url) = std::env::var(variable) else {
        bail!("{variable} is not set: scripts/services up && eval \"$(scripts/services env)\"");
    };
    let opts = Opts::from_url(&url).with_context(|| format!("{variable} is no URL"))?;
    let mut conn = Conn::new(opts.clone())
        .await
        .with_context(|| format!("connect to {variable}"))?;
    let database = format!("decode_{}_{:08x}", std::process::id(), fastrand::u32(..));
    conn.query_drop(format!("CREATE DATABASE {database} CHARACTER SET utf8mb4"))
        .await?;
    conn.query_drop(format!("USE {database}")).await?;
    conn.query_drop("SET NAMES utf8mb4, time_zone = '+00:00', sql_mode = ''")
        .await?;
    let version: String = conn
        .query_first("SELECT VERSION()")
        .await?
        .context("no version")?;
    let is_mariadb = version.contains("MariaDB");
    let mut scratch = Scratch {
        conn,
        opts,
        database,
        is_mariadb,
    };
    let result = test(&mut scratch).await;
    let Scratch {
        mut conn, database, ..
    } = scratch;
    conn.query_drop(format!("DROP DATABASE {database}")).await?;
    conn.disconnect().await?;
    result
}

/// One event as the decoders take it: its type, its body, and the server id of its header.
struct Event {
    kind: u8,
    server_id: u32,
    data: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Place {
    file: String,
    position: u64,
}

impl Scratch {
    /// Where the next event will be.
    async fn place(&mut self) -> Result<Place> {
        let statement = if self.is_mariadb {
            "SHOW MASTER STATUS"
        } else {
            "SHOW BINARY LOG STATUS"
        };
        let row: Row = self
            .conn
            .query_first(statement)
            .await?
            .context("the binlog is off")?;
        let file = row.get(0).context("no file")?;
        Ok(Place {
            file,
            position: row.get(1).context("no position")?,
        })
    }

    /// All events from there to the end of the binlog.
    async fn events(&self, from: &Place) -> Result<Vec<Event>> {
        let mut conn = Conn::new(self.opts.clone()).await?;
        if self.is_mariadb {
            conn.query_drop("SET @mariadb_slave_capability = 4").await?;
        }
        let request = BinlogStreamRequest::new(fastrand::u32(1_000_000..))
            .with_filename(from.file.as_bytes())
            .with_pos(from.position)
            .with_non_blocking();
        let read = async {
            let mut stream = conn.get_binlog_stream(request).await?;
            let mut events = Vec::new();
            while let Some(event) = stream.next().await {
                let event = event?;
                let header = event.header();
                events.push(Event {
                    kind: header.event_type_raw(),
                    server_id: header.server_id(),
                    data: event.data().to_vec(),
                });
            }
            stream.close().await?;
            anyhow::Ok(events)
        };
        tokio::time::timeout(DEADLINE, read)
            .await
            .context("the binlog does not end")?
    }

    /// The rows inserted into a table of this database, and the last map of it.
    async fn rows(&mut self, from: &Place, table: &str, wanted: Wanted<'_>) -> Result<Decoded> {
        let mut decoded = Decoded {
            map: None,
            rows: Vec::new(),
            compressed: 0,
        };
        let mut plan = None;
        for event in self.events(from).await? {
            if event.kind == event_type::TABLE_MAP {
                let name = TableName::peek(&event.data)?;
                if name.schema == self.database.as_bytes() && name.table == table.as_bytes() {
                    let map = TableMap::parse(&event.data)?;
                    plan = Some(RowPlan::new(&map, &wanted(&map))?);
                    decoded.map = Some(map);
                } else {
                    plan = None;
                }
                continue;
            }
            let Some(plan) = &plan else { continue };
            let (kind, data) = match event.kind {
                event_type::MARIADB_WRITE_ROWS_COMPRESSED_V1
                | event_type::MARIADB_WRITE_ROWS_COMPRESSED => {
                    decoded.compressed += 1;
                    uncompress_rows(event.kind, &event.data)?
                }
                event_type::WRITE_ROWS_V1 | event_type::WRITE_ROWS => (event.kind, event.data),
                _ => continue,
            };
            let mut rows = RowsEvent::parse(kind, &data)?.rows(plan)?;
            loop {
                let mut row = vec![Datum::Null; 128];
                match rows.next_into(&mut row) {
                    Some(result) => result?,
                    None => break,
                }
                decoded.rows.push(row);
            }
        }
        Ok(decoded)
    }

    /// `COLUMN_TYPE` and `CHARACTER_SET_NAME` of a table's columns.
    async fn definitions(&mut self, table: &str) -> Result<Vec<(String, Option<String>)>> {
        let (database, table) = (self.database.clone(), table.to_owned());
        Ok(self
            .conn
            .exec(
                "SELECT COLUMN_TYPE, CHARACTER_SET_NAME FROM information_schema.COLUMNS
                 WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION",
                (database, table),
            )
            .await?)
    }

    /// What `SELECT` sends, as text.
    async fn select(&mut self, sql: &str) -> Result<Vec<Vec<Option<Vec<u8>>>>> {
        let rows: Vec<Row> = self.conn.query(sql).await?;
        rows.into_iter()
            .map(|row| {
                row.unwrap()
                    .into_iter()
                    .map(|value| match value {
                        Value::NULL => Ok(None),
                        Value::Bytes(bytes) => Ok(Some(bytes)),
                        other => bail!("{other:?} is no text"),
                    })
                    .collect()
            })
            .collect()
    }
}

/// Picks the columns once the map is known.
type Wanted<'w> = &'w dyn Fn(&TableMap) -> Vec<ColumnRef>;

struct Decoded {
    map: Option<TableMap>,
    rows: Vec<Vec<Datum>>,
    compressed: usize,
}

fn as_text(datum: &Datum) -> Option<Vec<u8>> {
    match datum {
        Datum::Null => None,
        Datum::Int(number) => Some(number.to_string().into_bytes()),
        Datum::UInt(number) => Some(number.to_string().into_bytes()),
        Datum::Micros(micros) => Some(micros.to_string().into_bytes()),
        Datum::Bytes(bytes) => Some(bytes.clone()),
    }
}

fn shown(text: Option<&Vec<u8>>) -> String {
    text.map_or("NULL".to_owned(), |text| {
        String::from_utf8_lossy(text).into_owned()
    })
}

/// A column: its type, values to put in, and how to select it so that it compares.
struct Sample {
    definition: &'static str,
    values: &'static [&'static str],
    selected: &'static str,
}

const fn plain(definition: &'static str, values: &'static [&'static str]) -> Sample {
    Sample {
        definition,
        values,
        selected: "{}",
    }
}

const fn number(definition: &'static str, values: &'static [&'static str]) -> Sample {
    Sample {
        definition,
        values,
        selected: "{} + 0",
    }
}

const fn instant(definition: &'static str, values: &'static [&'static str]) -> Sample {
    Sample {
        definition,
        values,
        selected: "IF({} = 0, NULL, TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {}))",
    }
}

const TIMES: &[&str] = &[
    "'00:00:00'",
    "'-00:00:00.123456'",
    "'-838:59:59'",
    "'838:59:58.999999'",
    "'-01:00:00.000001'",
    "'12:34:56.7'",
    "NULL",
];
const INSTANTS: &[&str] = &[
    "'2026-12-01 09:30:00.123456'",
    "'1970-01-01 00:00:01'",
    "'2038-01-19 03:14:07.49'",
    "'2000-02-29 23:59:59.949999'",
    "0",
    "NULL",
];
const DATETIMES: &[&str] = &[
    "'9999-12-31 23:59:59'",
    "'1000-01-01'",
    "'1969-12-31 23:59:59.999999'",
    "'0000-00-00'",
    "'2026-12-01 09:30:00.123456'",
    "NULL",
];

/// Both servers know these.
const SAMPLES: &[Sample] = &[
    plain("TINYINT", &["-128", "127", "NULL"]),
    plain("TINYINT UNSIGNED", &["255", "0"]),
    number("YEAR", &["1901", "2155", "0", "2026"]),
    plain("SMALLINT", &["-32768", "32767"]),
    plain("SMALLINT UNSIGNED", &["65535"]),
    plain("MEDIUMINT", &["-8388608", "8388607", "-1"]),
    plain("MEDIUMINT UNSIGNED", &["16777215"]),
    plain("INT", &["-2147483648", "2147483647"]),
    plain("INT UNSIGNED", &["4294967295"]),
    plain(
        "BIGINT",
        &["-9223372036854775808", "9223372036854775807", "NULL"],
    ),
    plain("BIGINT UNSIGNED", &["18446744073709551615"]),
    plain(
        "FLOAT",
        &[
            "0.1",
            "-3.40282e38",
            "1e-30",
            "16777216",
            "123456.5",
            "1.5",
            "0",
        ],
    ),
    plain("FLOAT UNSIGNED", &["3.14159265"]),
    plain(
        "DOUBLE",
        &[
            "0.1",
            "-1.7976931348623157e308",
            "5e-324",
            "1e15",
            "1e14",
            "-0e0",
            "1/3",
        ],
    ),
    plain("FLOAT(7,2)", &["12345.678", "-0.005", "1"]),
    plain("DOUBLE(12,4)", &["-1234567.89015", "2.00005"]),
    plain(
        "DECIMAL(65,30)",
        &[
            "-12345678901234567890123456789012345.123456789012345678901234567890",
            "0",
            "1e-30",
        ],
    ),
    plain("DECIMAL(10,0)", &["-9999999999", "0", "7"]),
    plain("DECIMAL(5,5)", &["0.12345", "-0.00001"]),
    plain(
        "DECIMAL(20,10) UNSIGNED",
        &["1234567890.0123456789", "NULL"],
    ),
    plain(
        "DECIMAL(18,9)",
        &["999999999.999999999", "-100000000.000000001"],
    ),
    plain(
        "DATE",
        &[
            "'2026-12-01'",
            "'0000-00-00'",
            "'9999-12-31'",
            "'2026-00-00'",
        ],
    ),
    plain("TIME", TIMES),
    plain("TIME(1)", TIMES),
    plain("TIME(2)", TIMES),
    plain("TIME(3)", TIMES),
    plain("TIME(4)", TIMES),
    plain("TIME(5)", TIMES),
    plain("TIME(6)", TIMES),
    instant("DATETIME", DATETIMES),
    instant("DATETIME(1)", DATETIMES),
    instant("DATETIME(2)", DATETIMES),
    instant("DATETIME(3)", DATETIMES),
    instant("DATETIME(4)", DATETIMES),
    instant("DATETIME(5)", DATETIMES),
    instant("DATETIME(6)", DATETIMES),
    instant("TIMESTAMP NULL", INSTANTS),
    instant("TIMESTAMP(1) NULL", INSTANTS),
    instant("TIMESTAMP(2) NULL", INSTANTS),
    instant("TIMESTAMP(3) NULL", INSTANTS),
    instant("TIMESTAMP(4) NULL", INSTANTS),
    instant("TIMESTAMP(5) NULL", INSTANTS),
    instant("TIMESTAMP(6) NULL", INSTANTS),
    number("BIT(1)", &["b'1'", "b'0'", "NULL"]),
    number("BIT(13)", &["b'1000000000001'"]),
    number("BIT(64)", &["0xfedcba9876543210"]),
    plain(
        "ENUM('PENDING','it''s','é','a,b','')",
        &["'it''s'", "'é'", "'a,b'", "''", "'none of them'"],
    ),
    plain(
        "SET('a','b c','é','it''s')",
        &["'a,é'", "''", "'it''s,b c'", "NULL"],
    ),
    plain("ENUM('a','café') CHARACTER SET latin1", &["'café'", "'a'"]),
    plain("CHAR(10)", &["'ab  '", "'  ü'", "''"]),
    plain("CHAR(255)", &["REPEAT('🦀', 255)", "'short'"]),
    plain("VARCHAR(10)", &["'ab  '", "'🦀'", "NULL"]),
    plain("VARCHAR(300)", &["REPEAT('x', 300)", "''"]),
    plain(
        "BINARY(16)",
        &["0x00112233445566778899aabbccddee00", "0x00", "''", "NULL"],
    ),
    plain("VARBINARY(300)", &["0x00ff00", "REPEAT(0x00, 300)"]),
    plain("TINYTEXT", &["'tiny'"]),
    plain("TEXT", &["REPEAT('text', 1000)", "''"]),
    plain("MEDIUMTEXT", &["REPEAT('medium', 20000)"]),
    plain("LONGTEXT", &["'long'"]),
    plain("TINYBLOB", &["0x00ff"]),
    plain("BLOB", &["0xdeadbeef", "NULL"]),
    plain("MEDIUMBLOB", &["REPEAT(0xff, 70000)"]),
    plain("LONGBLOB", &["''"]),
    plain(
        "VARCHAR(40) CHARACTER SET latin1",
        &["'naïve €'", "'plain'"],
    ),
    plain("CHAR(4) CHARACTER SET latin1", &["'éé'"]),
    plain("TEXT CHARACTER SET latin1", &["'Ÿ'"]),
    plain("VARCHAR(9) CHARACTER SET ascii", &["'ascii'"]),
    plain("VARCHAR(9) CHARACTER SET utf8mb3", &["'ü'"]),
    plain("GEOMETRY", &["ST_GeomFromText('POINT(1 2)')", "NULL"]),
    plain(
        "POLYGON",
        &["ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))', 0)"],
    ),
    plain("INT GENERATED ALWAYS AS (7) VIRTUAL", &["DEFAULT"]),
    plain("INT GENERATED ALWAYS AS (8) STORED", &["DEFAULT"]),
];

const MYSQL_SAMPLES: &[Sample] = &[
    plain("JSON", &[r#"'{"b":[1,2.50,"x"],"a":null}'"#, "'7'", "NULL"]),
    plain("VECTOR(3)", &["TO_VECTOR('[1,2.5,-3]')", "NULL"]),
    plain("POINT SRID 4326", &["ST_GeomFromText('POINT(1 2)', 4326)"]),
    plain("INT INVISIBLE", &["5"]),
    plain("VARCHAR(20) CHARACTER SET latin1", &["'derrière'"]),
];

const MARIADB_SAMPLES: &[Sample] = &[
    plain("JSON", &[r#"'{"b":[1,2.50,"x"],"a":null}'"#, "'7'", "NULL"]),
    plain(
        "UUID",
        &[
            "'550e8400-e29b-41d4-a716-446655440000'",
            "'0190a5c8-1f2e-7abc-9def-012345678900'",
            "'00000000-0000-0000-0000-000000000000'",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
            "'2c5ea4c0-4067-11e9-8bad-9b1deb4d3b7d'",
            "NULL",
        ],
    ),
    plain(
        "INET6",
        &[
            "'2001:db8::ff00:42:8329'",
            "'::1'",
            "'::'",
            "'::ffff:1.2.3.4'",
            "'fe80::'",
            "'::1.2.3.4'",
            "'1:0:0:2:0:0:0:3'",
            "'1:2:3:4:5:6:0:8'",
        ],
    ),
    plain("INET4", &["'127.0.0.1'", "'10.0.0.0'", "NULL"]),
    plain(
        "VARCHAR(900) COMPRESSED",
        &["REPEAT('vc', 300)", "'short'", "''", "NULL"],
    ),
    plain("TEXT COMPRESSED", &["REPEAT('tüxt', 300)", "''"]),
    plain("BLOB COMPRESSED", &["REPEAT(0x0001, 300)"]),
    plain("VARCHAR(20) CHARACTER SET latin1", &["'derrière'"]),
    plain("INT INVISIBLE", &["5"]),
];

/// A table of all samples, with a row for each of a column's values.
async fn create_zoo(scratch: &mut Scratch, samples: &[&Sample]) -> Result<()> {
    let mut columns = String::new();
    for (at, sample) in samples.iter().enumerate() {
        write!(columns, ", c{at} {}", sample.definition)?;
    }
    scratch
        .conn
        .query_drop("SET innodb_strict_mode = OFF")
        .await?;
    let engine = if scratch.is_mariadb {
        ""
    } else {
        ", KEY ((CAST(j->'$.tags' AS UNSIGNED ARRAY)))"
    };
    let json = if scratch.is_mariadb { "" } else { ", j JSON" };
    let sql = format!("CREATE TABLE zoo (id INT PRIMARY KEY{columns}{json}{engine})");
    scratch
        .conn
        .query_drop(sql)
        .await
        .context("create the table")?;
    Ok(())
}

async fn fill_zoo(scratch: &mut Scratch, samples: &[&Sample]) -> Result<()> {
    let names: String = (0..samples.len()).map(|at| format!(", c{at}")).collect();
    let rows = samples
        .iter()
        .map(|sample| sample.values.len())
        .max()
        .unwrap_or(0);
    scratch.conn.query_drop("DELETE FROM zoo").await?;
    for row in 0..rows {
        let values: String = samples
            .iter()
            .map(|sample| format!(", {}", sample.values[row % sample.values.len()]))
            .collect();
        let sql = format!("INSERT INTO zoo (id{names}) VALUES ({row}{values})");
        scratch
            .conn
            .query_drop(&sql)
            .await
            .with_context(|| sql.chars().take(3000).collect::<String>())?;
    }
    Ok(())
}

/// Selects what the samples' columns should decode to.
async fn select_zoo(
    scratch: &mut Scratch,
    samples: &[&Sample],
) -> Result<Vec<Vec<Option<Vec<u8>>>>> {
    let columns: String = samples
        .iter()
        .enumerate()
        .map(|(at, sample)| format!(", {}", sample.selected.replace("{}", &format!("c{at}"))))
        .collect();
    scratch
        .select(&format!("SELECT id{columns} FROM zoo ORDER BY id"))
        .await
}

fn compare(
    samples: &[&Sample],
    decoded: &[Vec<Datum>],
    selected: &[Vec<Option<Vec<u8>>>],
) -> Result<()> {
    ensure!(
        decoded.len() == selected.len(),
        "{} rows of {}",
        decoded.len(),
        selected.len()
    );
    let mut differences = String::new();
    for (row, (decoded, selected)) in decoded.iter().zip(selected).enumerate() {
        for (at, expected) in selected.iter().enumerate() {
            let found = decoded.get(at).and_then(as_text);
            if found != *expected {
                let definition = if at == 0 {
                    "id"
                } else {
                    samples[at - 1].definition
                };
                let (found, expected) = (shown(found.as_ref()), shown(expected.as_ref()));
                writeln!(
                    differences,
                    "row {row}, {definition}: {found:?} is not {expected:?}"
                )?;
            }
        }
    }
    ensure!(differences.is_empty(), "{differences}");
    Ok(())
}

/// Runs with `binlog_row_metadata` set: it is global, other tests may set it as well, so that it is checked and
/// tried again.
async fn with_metadata<T>(
    scratch: &mut Scratch,
    mode: &str,
    mut run: impl AsyncFnMut(&mut Scratch) -> Result<(TableMap, T)>,
) -> Result<T> {
    let before: String = scratch
        .conn
        .query_first("SELECT @@GLOBAL.binlog_row_metadata")
        .await?
        .context("no mode")?;
    for _ in 0..5 {
        scratch
            .conn
            .query_drop(format!("SET GLOBAL binlog_row_metadata = {mode}"))
            .await?;
        let result = run(scratch).await;
        scratch
            .conn
            .query_drop(format!("SET GLOBAL binlog_row_metadata = {before}"))
            .await?;
        let (map, value) = result?;
        if map
            .columns
            .iter()
            .all(|column| column.name.is_some() == (mode == "FULL"))
        {
            return Ok(value);
        }
    }
    bail!("binlog_row_metadata does not stay {mode}");
}

/// Every column type, both metadata modes, with and without the definitions.
async fn zoo(variable: &str) -> Result<()> {
    scratch(variable, async |scratch| {
        let extra = if scratch.is_mariadb {
            MARIADB_SAMPLES
        } else {
            MYSQL_SAMPLES
        };
        let samples: Vec<&Sample> = SAMPLES.iter().chain(extra).collect();
        create_zoo(scratch, &samples).await?;
        let definitions = scratch.definitions("zoo").await?;
        let modes: &[&str] = if scratch.is_mariadb {
            &["NO_LOG", "MINIMAL", "FULL"]
        } else {
            &["MINIMAL", "FULL"]
        };
        for mode in modes {
            let defined = |map: &TableMap| -> Vec<ColumnRef> {
                let place = |at: usize| {
                    let (definition, charset) = &definitions[at];
                    ColumnRef::new(at, at).declared_as(definition, charset.as_deref())
                };
                (0..=samples.len().min(map.columns.len()))
                    .map(place)
                    .collect()
            };
            let decoded = with_metadata(scratch, mode, async |scratch| {
                let place = scratch.place().await?;
                fill_zoo(scratch, &samples).await?;
                let decoded = scratch.rows(&place, "zoo", &defined).await?;
                Ok((
                    decoded.map.clone().context("no table map")?,
                    (place, decoded),
                ))
            });
            let (place, decoded) = decoded.await?;
            let selected = select_zoo(scratch, &samples).await?;
            compare(&samples, &decoded.rows, &selected).with_context(|| format!("with {mode}"))?;
            compare_bare(scratch, &place, &samples, &selected, mode).await?;
            compare_few(scratch, &place, &selected).await?;
        }
        Ok(())
    })
    .await
}

/// Without the definitions: what the binlog alone can't tell is left out.
async fn compare_bare(
    scratch: &mut Scratch,
    place: &Place,
    samples: &[&Sample],
    selected: &[Vec<Option<Vec<u8>>>],
    mode: &str,
) -> Result<()> {
    let told = |sample: &Sample| {
        let definition = sample.definition;
        let labelled = definition.starts_with("ENUM") || definition.starts_with("SET");
        !definition.contains("FLOAT(")
            && !definition.contains("DOUBLE(")
            && !matches!(definition, "UUID" | "INET6" | "INET4")
            && (mode == "FULL" || !labelled)
            && (mode != "NO_LOG" || !needs_metadata(definition))
    };
    let decoded = scratch
        .rows(place, "zoo", &|_| {
            (0..=samples.len())
                .map(|at| ColumnRef::new(at, at))
                .collect()
        })
        .await?;
    let blind = |rows: &[Vec<Option<Vec<u8>>>]| -> Vec<Vec<Option<Vec<u8>>>> {
        rows.iter()
            .map(|row| {
                row.iter()
                    .enumerate()
                    .map(|(at, value)| value.clone().filter(|_| at == 0 || told(samples[at - 1])))
                    .collect()
            })
            .collect()
    };
    let rows: Vec<Vec<Datum>> = decoded
        .rows
        .into_iter()
        .map(|row| {
            row.into_iter()
                .enumerate()
                .map(
                    |(at, datum)| match at.checked_sub(1).and_then(|at| samples.get(at)) {
                        Some(sample) if !told(sample) => Datum::Null,
                        _ => datum,
                    },
                )
                .collect()
        })
        .collect();
    compare(samples, &rows, &blind(selected)).with_context(|| format!("with {mode} alone"))
}

/// Whether the binlog needs its optional metadata to tell how to decode this.
fn needs_metadata(definition: &str) -> bool {
    ["UNSIGNED", "latin1", "BINARY("]
        .iter()
        .any(|word| definition.contains(word))
}

/// Few of the columns: all others are skipped exactly.
async fn compare_few(
    scratch: &mut Scratch,
    place: &Place,
    selected: &[Vec<Option<Vec<u8>>>],
) -> Result<()> {
    // id, BIGINT UNSIGNED, VARCHAR(300).
    let few = [(0, 0), (11, 1), (54, 2)];
    let decoded = scratch
        .rows(place, "zoo", &|_| {
            few.iter()
                .map(|(at, slot)| ColumnRef::new(*at, *slot))
                .collect()
        })
        .await?;
    for (decoded, selected) in decoded.rows.iter().zip(selected) {
        for (at, slot) in few {
            ensure!(as_text(&decoded[slot]) == selected[at], "column {at}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_type_of_mysql() -> Result<()> {
    zoo("MYSQL_URL").await
}

#[tokio::test]
async fn every_type_of_mariadb() -> Result<()> {
    zoo("MARIADB_URL").await
}

/// Every collation of the server has the character set that we think it has.
async fn collations(variable: &str) -> Result<()> {
    scratch(variable, async |scratch| {
        let sql = if scratch.is_mariadb {
            "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
        } else {
            "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS"
        };
        let known: Vec<(u32, String)> = scratch.conn.query(sql).await?;
        ensure!(known.len() > 200, "{} collations", known.len());
        for (id, name) in known {
            let (found, expected) = (Charset::of_collation(id), Charset::of_name(&name));
            ensure!(found == expected, "collation {id} is of {name}, not {found:?}");
        }
        let upper: String = (0x80..=0xff).map(|byte| format!("{byte:02x}")).collect();
        scratch.conn.query_drop("CREATE TABLE l (t TEXT CHARACTER SET latin1)").await?;
        let place = scratch.place().await?;
        scratch.conn.query_drop(format!("INSERT INTO l VALUES (x'{upper}')")).await?;
        let column = |_: &TableMap| vec![ColumnRef::new(0, 0).declared_as("text", Some("latin1"))];
        let decoded = scratch.rows(&place, "l", &column).await?;
        let selected = scratch.select("SELECT t FROM l").await?;
        ensure!(decoded.rows.len() == 1 && as_text(&decoded.rows[0][0]) == selected[0][0]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn collations_of_mysql() -> Result<()> {
    collations("MYSQL_URL").await
}

#[tokio::test]
async fn collations_of_mariadb() -> Result<()> {
    collations("MARIADB_URL").await
}

/// Documents as SQL expressions.
fn json_expressions() -> Vec<String> {
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
        "'1E400000'",
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

#[tokio::test]
async fn json_of_mysql() -> Result<()> {
    scratch("MYSQL_URL", async |scratch| {
        let create = "CREATE TABLE docs (id INT PRIMARY KEY AUTO_INCREMENT, payload JSON NOT NULL)";
        scratch.conn.query_drop(create).await?;
        let place = scratch.place().await?;
        for expression in json_expressions() {
            let sql = format!("INSERT INTO docs (payload) VALUES ({expression})");
            let inserted = scratch.conn.query_drop(sql).await;
            // What the server itself refuses is no document.
            if let Err(error) = inserted
                && !expression.contains("1E400000")
            {
                bail!(
                    "{}: {error}",
                    expression.chars().take(200).collect::<String>()
                );
            }
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
            scratch.conn.exec_drop(sql, (chance_document(0),)).await?;
        }
        let originals = selected_documents(scratch).await?;
        // Documents with gaps, left by updates in place; and an empty value.
        scratch
            .conn
            .query_drop("UPDATE docs SET payload = JSON_REPLACE(payload, '$[0]', 1)")
            .await?;
        scratch
            .conn
            .query_drop("INSERT INTO docs (payload) SELECT payload FROM docs")
            .await?;
        scratch
            .conn
            .query_drop("INSERT IGNORE INTO docs (payload) VALUES (NULL), (NULL)")
            .await?;
        let mut selected = selected_documents(scratch).await?;
        selected.splice(..originals.len(), originals);

        let wanted = |_: &TableMap| vec![ColumnRef::new(0, 0), ColumnRef::new(1, 1)];
        let decoded = scratch.rows(&place, "docs", &wanted).await?;
        ensure!(decoded.rows.len() == selected.len());
        let mut differences = String::new();
        for (decoded, (id, expected)) in decoded.rows.iter().zip(&selected) {
            ensure!(as_text(&decoded[0]) == *id, "ids");
            let found = as_text(&decoded[1]);
            if found != *expected {
                writeln!(
                    differences,
                    "{}",
                    first_difference(found.as_ref(), expected.as_ref())
                )?;
            }
        }
        ensure!(differences.is_empty(), "{differences}");
        Ok(())
    })
    .await
}

type Selected = (Option<Vec<u8>>, Option<Vec<u8>>);

async fn selected_documents(scratch: &mut Scratch) -> Result<Vec<Selected>> {
    let sql = "SELECT id, payload, CAST(payload AS CHAR) FROM docs ORDER BY id";
    let rows = scratch.select(sql).await?;
    rows.into_iter()
        .map(|row| match <[_; 3]>::try_from(row) {
            Ok([id, payload, cast]) if payload == cast => Ok((id, payload)),
            other => bail!("two ways to select differ: {other:?}"),
        })
        .collect()
}

fn first_difference(found: Option<&Vec<u8>>, expected: Option<&Vec<u8>>) -> String {
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

/// A random document as text.
fn chance_document(depth: usize) -> String {
    let text = || {
        let text: String = (0..fastrand::usize(..30))
            .map(|_| fastrand::char('\0'..='\u{ffff}'))
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
            let items: Vec<String> = (0..count).map(|_| chance_document(depth + 1)).collect();
            format!("[{}]", items.join(","))
        }
        _ => {
            let members: Vec<String> = (0..count)
                .map(|_| format!("{}:{}", text(), chance_document(depth + 1)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
    }
}

/// Inserts with JSON payloads, in a compressed form.
async fn compressed(variable: &str, on: &str, off: &str) -> Result<()> {
    scratch(variable, async |scratch| {
        scratch.conn.query_drop("CREATE TABLE c (id INT PRIMARY KEY, payload JSON)").await?;
        scratch.conn.query_drop(on).await?;
        let place = scratch.place().await?;
        let filled = async {
            let sql = "INSERT INTO c SELECT seq, JSON_OBJECT('seq', seq, 'text', REPEAT('x', seq % 500)) FROM
                (WITH RECURSIVE s (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM s WHERE seq < 900)
                 SELECT seq FROM s) AS sequence";
            scratch.conn.query_drop(sql).await?;
            let comment = "c".repeat(1000);
            scratch.conn.query_drop(format!("CREATE TABLE noted (id INT COMMENT '{comment}')")).await
        }
        .await;
        scratch.conn.query_drop(off).await?;
        filled?;
        let decoded =
            scratch.rows(&place, "c", &|_| vec![ColumnRef::new(0, 0), ColumnRef::new(1, 1)]).await?;
        let selected = scratch.select("SELECT * FROM c ORDER BY id").await?;
        ensure!(decoded.rows.len() == 900 && selected.len() == 900, "{}", decoded.rows.len());
        for (decoded, selected) in decoded.rows.iter().zip(&selected) {
            ensure!((0..2).all(|at| as_text(&decoded[at]) == selected[at]), "{selected:?}");
        }
        let mut queries = Vec::new();
        for event in scratch.events(&place).await? {
            let data = match event.kind {
                event_type::MARIADB_QUERY_COMPRESSED => uncompress_query(&event.data)?,
                event_type::QUERY => event.data,
                _ => continue,
            };
            let query = Query::parse(&data)?;
            if query.schema != scratch.database.as_bytes() {
                continue;
            }
            queries.push((event.kind, String::from_utf8_lossy(query.sql).into_owned()));
        }
        let (kind, _) = queries
            .iter()
            .find(|(_, sql)| sql.starts_with("CREATE TABLE noted") && sql.contains(&"c".repeat(1000)))
            .context("no such statement")?;
        if scratch.is_mariadb {
            ensure!(decoded.compressed > 0 && *kind == event_type::MARIADB_QUERY_COMPRESSED);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn compressed_transactions_of_mysql() -> Result<()> {
    let (on, off) = (
        "SET SESSION binlog_transaction_compression = ON",
        "SET SESSION binlog_transaction_compression = OFF",
    );
    compressed("MYSQL_URL", on, off).await
}

#[tokio::test]
async fn compressed_events_of_mariadb() -> Result<()> {
    compressed(
        "MARIADB_URL",
        "SET GLOBAL log_bin_compress = ON",
        "SET GLOBAL log_bin_compress = OFF",
    )
    .await
}

/// XA transactions: prepared and committed, prepared and rolled back, in one phase.
async fn xa(variable: &str) -> Result<()> {
    scratch(variable, async |scratch| {
        scratch
            .conn
            .query_drop("CREATE TABLE x (id INT PRIMARY KEY)")
            .await?;
        let place = scratch.place().await?;
        let id = format!("{:08x}", fastrand::u32(..));
        let xids = [
            format!("'one''{id}'"),
            format!("X'00ff{id}', X'0a0d27', 2147483647"),
            format!("'{id}', 'branch', 7"),
        ];
        for (at, (xid, end)) in xids
            .iter()
            .zip(["COMMIT", "ROLLBACK", "ONE PHASE"])
            .enumerate()
        {
            scratch.conn.query_drop(format!("XA START {xid}")).await?;
            scratch
                .conn
                .query_drop(format!("INSERT INTO x VALUES ({at})"))
                .await?;
            scratch.conn.query_drop(format!("XA END {xid}")).await?;
            if end == "ONE PHASE" {
                scratch
                    .conn
                    .query_drop(format!("XA COMMIT {xid} ONE PHASE"))
                    .await?;
                continue;
            }
            scratch.conn.query_drop(format!("XA PREPARE {xid}")).await?;
            scratch.conn.query_drop(format!("XA {end} {xid}")).await?;
        }
        let (mut started, mut prepared, mut ended, mut gtids) = (vec![], vec![], vec![], vec![]);
        for event in scratch.events(&place).await? {
            match event.kind {
                event_type::QUERY => {
                    let query = Query::parse(&event.data)?;
                    match XaStatement::parse(query.sql) {
                        Some(found) if found.verb == XaVerb::Start => started.push(found.xid),
                        Some(found) if matches!(found.verb, XaVerb::Commit | XaVerb::Rollback) => {
                            ended.push((found.verb, found.xid));
                        }
                        _ => {}
                    }
                }
                event_type::XA_PREPARE => prepared.push(XaPrepare::parse(&event.data)?),
                event_type::MARIADB_GTID => {
                    let gtid = MariaDbGtidEvent::parse(&event.data)?;
                    if let Some(xid) = &gtid.xid {
                        ensure!(gtid.is_prepared_xa() != gtid.is_completed_xa());
                        gtids.push((gtid.is_prepared_xa(), xid.clone()));
                    }
                }
                _ => {}
            }
        }
        check_xa(scratch.is_mariadb, &started, &prepared, &ended, &gtids)
    })
    .await
}

type Ended = (XaVerb, Xid);

fn check_xa(
    is_mariadb: bool,
    started: &[Xid],
    prepared: &[XaPrepare],
    ended: &[Ended],
    gtids: &[(bool, Xid)],
) -> Result<()> {
    let mine = |xid: &Xid| ended.iter().any(|(_, other)| other == xid);
    let two_phase: Vec<_> = prepared
        .iter()
        .filter(|found| !found.one_phase && mine(&found.xid))
        .collect();
    ensure!(two_phase.len() >= 2, "{prepared:?}, {ended:?}");
    ensure!(two_phase[0].xid != two_phase[1].xid);
    for found in &two_phase {
        if is_mariadb {
            for prepares in [true, false] {
                ensure!(gtids.contains(&(prepares, found.xid.clone())), "{gtids:?}");
            }
        } else {
            ensure!(started.contains(&found.xid), "{started:?}");
        }
    }
    if !is_mariadb {
        ensure!(prepared.iter().any(|found| found.one_phase), "{prepared:?}");
    }
    Ok(())
}

#[tokio::test]
async fn xa_of_mysql() -> Result<()> {
    xa("MYSQL_URL").await
}

#[tokio::test]
async fn xa_of_mariadb() -> Result<()> {
    xa("MARIADB_URL").await
}

#[tokio::test]
async fn gtids_of_mysql() -> Result<()> {
    scratch("MYSQL_URL", async |scratch| {
        scratch.conn.query_drop("CREATE TABLE g (id INT)").await?;
        let place = scratch.place().await?;
        scratch.conn.query_drop("INSERT INTO g VALUES (1)").await?;
        let uuid: String = scratch
            .conn
            .query_first("SELECT @@server_uuid")
            .await?
            .context("no uuid")?;
        let now: u64 = scratch
            .conn
            .query_first("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)")
            .await?
            .context("no time")?;
        let executed: String = scratch
            .conn
            .query_first("SELECT @@gtid_executed")
            .await?
            .context("no set")?;
        let events = scratch.events(&place).await?;
        let rotate = events
            .iter()
            .find(|event| event.kind == event_type::ROTATE)
            .context("no ROTATE")?;
        let rotate = Rotate::parse(&rotate.data)?;
        ensure!(rotate.file == place.file.as_bytes() && rotate.position == place.position);
        let event = events
            .iter()
            .find(|event| event.kind == event_type::GTID)
            .context("no GTID")?;
        let gtid = Gtid::parse(&event.data)?;
        let sid: String = gtid.sid.iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(sid == uuid.replace('-', ""), "{sid} is not {uuid}");
        ensure!(gtid.gno > 0 && executed.contains(&uuid), "{executed}");
        let committed = gtid.immediate_commit.context("no commit time")?;
        ensure!(
            committed <= now && now - committed < 60_000_000,
            "{committed}, {now}"
        );
        ensure!(gtid.original_commit == gtid.immediate_commit);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn gtids_of_mariadb() -> Result<()> {
    scratch("MARIADB_URL", async |scratch| {
        scratch.conn.query_drop("CREATE TABLE g (id INT)").await?;
        let place = scratch.place().await?;
        scratch.conn.query_drop("INSERT INTO g VALUES (1)").await?;
        let last: String = scratch
            .conn
            .query_first("SELECT @@last_gtid")
            .await?
            .context("no GTID")?;
        scratch.conn.query_drop("CREATE TABLE h (id INT)").await?;
        let mut found = Vec::new();
        for event in scratch.events(&place).await? {
            if event.kind == event_type::MARIADB_GTID {
                let gtid = MariaDbGtidEvent::parse(&event.data)?;
                let text = format!("{}-{}-{}", gtid.domain, event.server_id, gtid.sequence);
                found.push((text, gtid.is_standalone()));
            }
        }
        ensure!(
            found.contains(&(last.clone(), false)),
            "{last} is not in {found:?}"
        );
        ensure!(
            found.iter().any(|(_, standalone)| *standalone),
            "no DDL in {found:?}"
        );

        let start = Place {
            file: place.file.clone(),
            position: 4,
        };
        let events = scratch.events(&start).await?;
        let list = events
            .iter()
            .find(|event| event.kind == event_type::MARIADB_GTID_LIST);
        let list = GtidList::parse(&list.context("no GTID_LIST")?.data)?;
        ensure!(
            list.entries.iter().all(|entry| entry.server_id > 0),
            "{list:?}"
        );
        Ok(())
    })
    .await
}

/// A minimal image leaves out what the statement does not set.
#[tokio::test]
async fn minimal_images_are_noticed() -> Result<()> {
    for variable in ["MYSQL_URL", "MARIADB_URL"] {
        scratch(variable, async |scratch| {
            let sql = "CREATE TABLE m (id INT PRIMARY KEY, payload TEXT, status INT DEFAULT 5)";
            scratch.conn.query_drop(sql).await?;
            scratch
                .conn
                .query_drop("SET SESSION binlog_row_image = MINIMAL")
                .await?;
            let place = scratch.place().await?;
            scratch
                .conn
                .query_drop("INSERT INTO m (id, payload) VALUES (1, 'here')")
                .await?;
            let set = scratch
                .rows(&place, "m", &|_| vec![ColumnRef::new(1, 0)])
                .await?;
            ensure!(set.rows[0][0] == Datum::Bytes(b"here".to_vec()));
            let unset = scratch
                .rows(&place, "m", &|_| vec![ColumnRef::new(2, 0)])
                .await;
            match unset.map(|decoded| decoded.rows) {
                Err(error)
                    if matches!(error.downcast_ref(), Some(DecodeError::ColumnAbsent { .. })) => {}
                other => bail!("{other:?}"),
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}
