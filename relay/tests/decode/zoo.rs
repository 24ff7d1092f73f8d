//! A table with every column type.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail, ensure};
use relay::event::Datum;
use relay::source::binlog::decode::{Charset, ColumnRef, TableMap};

use crate::server::{Scratch, Text, as_text, scratch, shown};

/// A column: its type, values to put in, and how to select it so that it compares.
struct Sample {
    definition: &'static str,
    /// Separated by `|`.
    values: &'static str,
    selected: &'static str,
}

const fn plain(definition: &'static str, values: &'static str) -> Sample {
    Sample {
        definition,
        values,
        selected: "{}",
    }
}

const fn number(definition: &'static str, values: &'static str) -> Sample {
    Sample {
        definition,
        values,
        selected: "{} + 0",
    }
}

const fn instant(definition: &'static str, values: &'static str) -> Sample {
    let selected = "IF({} = 0, NULL, TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {}))";
    Sample {
        definition,
        values,
        selected,
    }
}

const TIMES: &str = "'00:00:00'|'-00:00:00.123456'|'-838:59:59'|'838:59:58.999999'|\
                     '-01:00:00.000001'|'12:34:56.7'|NULL";
const TIMESTAMPS: &str = "'2026-12-01 09:30:00.123456'|'1970-01-01 00:00:01'|0|NULL|\
                          '2038-01-19 03:14:07.49'|'2000-02-29 23:59:59.949999'";
const DATETIMES: &str = "'9999-12-31 23:59:59'|'1000-01-01'|'1969-12-31 23:59:59.999999'|\
                         '0000-00-00'|'2026-12-01 09:30:00.123456'|NULL";

/// Both servers know these.
const SAMPLES: &[Sample] = &[
    plain("TINYINT", "-128|127|NULL"),
    plain("TINYINT UNSIGNED", "255|0"),
    number("YEAR", "1901|2155|0|2026"),
    plain("SMALLINT", "-32768|32767"),
    plain("SMALLINT UNSIGNED", "65535"),
    plain("MEDIUMINT", "-8388608|8388607|-1"),
    plain("MEDIUMINT UNSIGNED", "16777215"),
    plain("INT", "-2147483648|2147483647"),
    plain("INT UNSIGNED", "4294967295"),
    plain("BIGINT", "-9223372036854775808|9223372036854775807|NULL"),
    plain("BIGINT UNSIGNED", "18446744073709551615"),
    plain(
        "FLOAT",
        "0.1|-3.40282e38|1e-30|16777216|123456.5|1.5|0|1234565",
    ),
    plain("FLOAT UNSIGNED", "3.14159265"),
    plain(
        "DOUBLE",
        "0.1|-1.7976931348623157e308|5e-324|1e15|1e14|-0e0|1/3",
    ),
    plain("FLOAT(7,2)", "12345.678|-0.005|1"),
    plain("DOUBLE(12,4)", "-1234567.89015|2.00005"),
    plain(
        "DECIMAL(65,30)",
        "-12345678901234567890123456789012345.123456789012345678|0|1e-30",
    ),
    plain("DECIMAL(10,0)", "-9999999999|0|7"),
    plain("DECIMAL(5,5)", "0.12345|-0.00001"),
    plain("DECIMAL(20,10) UNSIGNED", "1234567890.0123456789|NULL"),
    plain("DECIMAL(18,9)", "999999999.999999999|-100000000.000000001"),
    plain(
        "DATE",
        "'2026-12-01'|'0000-00-00'|'9999-12-31'|'2026-00-00'",
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
    instant("TIMESTAMP NULL", TIMESTAMPS),
    instant("TIMESTAMP(1) NULL", TIMESTAMPS),
    instant("TIMESTAMP(2) NULL", TIMESTAMPS),
    instant("TIMESTAMP(3) NULL", TIMESTAMPS),
    instant("TIMESTAMP(4) NULL", TIMESTAMPS),
    instant("TIMESTAMP(5) NULL", TIMESTAMPS),
    instant("TIMESTAMP(6) NULL", TIMESTAMPS),
    number("BIT(1)", "b'1'|b'0'|NULL"),
    number("BIT(13)", "b'1000000000001'"),
    number("BIT(64)", "0xfedcba9876543210"),
    plain(
        "ENUM('PENDING','it''s','é','a,b','')",
        "'it''s'|'é'|'a,b'|''|'none of them'",
    ),
    plain("SET('a','b c','é','it''s')", "'a,é'|''|'it''s,b c'|NULL"),
    plain("ENUM('a','café') CHARACTER SET latin1", "'café'|'a'"),
    plain("CHAR(10)", "'ab  '|'  ü'|''"),
    plain("CHAR(255)", "REPEAT('🦀', 255)|'short'"),
    plain("VARCHAR(10)", "'ab  '|'🦀'|NULL"),
    plain("VARCHAR(300)", "REPEAT('x', 300)|''"),
    plain(
        "BINARY(16)",
        "0x00112233445566778899aabbccddee00|0x00|''|NULL",
    ),
    plain("VARBINARY(300)", "0x00ff00|REPEAT(0x00, 300)"),
    plain("TINYTEXT", "'tiny'"),
    plain("TEXT", "REPEAT('text', 1000)|''"),
    plain("MEDIUMTEXT", "REPEAT('medium', 20000)"),
    plain("LONGTEXT", "'long'"),
    plain("TINYBLOB", "0x00ff"),
    plain("BLOB", "0xdeadbeef|NULL"),
    plain("MEDIUMBLOB", "REPEAT(0xff, 70000)"),
    plain("LONGBLOB", "''"),
    plain("VARCHAR(40) CHARACTER SET latin1", "'naïve €'|'plain'"),
    plain("CHAR(4) CHARACTER SET latin1", "'éé'"),
    plain("TEXT CHARACTER SET latin1", "'Ÿ'"),
    plain("VARCHAR(9) CHARACTER SET ascii", "'ascii'"),
    plain("VARCHAR(9) CHARACTER SET utf8mb3", "'ü'"),
    plain("INT GENERATED ALWAYS AS (7) VIRTUAL", "DEFAULT"),
    plain("INT GENERATED ALWAYS AS (8) STORED", "DEFAULT"),
    plain("INT INVISIBLE", "5"),
    plain("JSON", r#"'{"b":[1,2.50,"x"],"a":null}'|'7'|NULL"#),
];

const MYSQL_SAMPLES: &[Sample] = &[
    plain("VECTOR(3)", "TO_VECTOR('[1,2.5,-3]')|NULL"),
    plain("VARCHAR(22) CHARACTER SET latin1", "'derrière'"),
];

const MARIADB_SAMPLES: &[Sample] = &[
    plain(
        "UUID",
        "'550e8400-e29b-41d4-a716-446655440000'|'0190a5c8-1f2e-7abc-9def-012345678900'|\
         '00000000-0000-0000-0000-000000000000'|'ffffffff-ffff-ffff-ffff-ffffffffffff'|\
         '2c5ea4c0-4067-11e9-8bad-9b1deb4d3b7d'|NULL",
    ),
    plain(
        "INET6",
        "'2001:db8::ff00:42:8329'|'::1'|'::'|'::ffff:1.2.3.4'|'fe80::'|'::1.2.3.4'|\
         '1:0:0:2:0:0:0:3'|'1:2:3:4:5:6:0:8'|'::ffff:0:1'|'1:2:3:4:5:6:7:8'",
    ),
    plain("INET4", "'127.0.0.1'|'10.0.0.0'|NULL"),
    plain(
        "VARCHAR(900) COMPRESSED",
        "REPEAT('vc', 300)|'short'|''|NULL",
    ),
    plain("TEXT COMPRESSED", "REPEAT('tüxt', 300)|''"),
    plain("BLOB COMPRESSED", "REPEAT(0x0001, 300)"),
    plain("VARCHAR(22) CHARACTER SET latin1", "'derrière'"),
];

/// Their character sets, and those of the columns beside them, count differently on either server.
const GEOMETRIES: &[Sample] = &[
    plain("VARCHAR(20) CHARACTER SET latin1", "'derrière'"),
    plain("GEOMETRY", "ST_GeomFromText('POINT(1 2)')|NULL"),
    plain("VARCHAR(21) CHARACTER SET latin1", "'derrière'"),
    plain(
        "POLYGON",
        "ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))', 0)",
    ),
    plain("BLOB", "0xe9"),
    plain("TEXT", "'é'"),
];

/// A table with a column of each sample, behind an id.
struct Zoo {
    samples: Vec<&'static Sample>,
}

impl Zoo {
    async fn create(&self, scratch: &mut Scratch) -> Result<()> {
        let mut columns = String::new();
        for (at, sample) in self.samples.iter().enumerate() {
            write!(columns, ", c{at} {}", sample.definition)?;
        }
        if !scratch.is_mariadb {
            // Brings a hidden column of its own.
            columns.push_str(", j JSON, KEY ((CAST(j->'$.tags' AS UNSIGNED ARRAY)))");
        }
        scratch.run("SET innodb_strict_mode = OFF").await?;
        scratch.run("DROP TABLE IF EXISTS zoo").await?;
        scratch
            .run(format!("CREATE TABLE zoo (id INT PRIMARY KEY{columns})"))
            .await
    }

    /// A row for each value of the column that has the most; the others begin anew.
    async fn fill(&self, scratch: &mut Scratch) -> Result<()> {
        let names: String = (0..self.samples.len())
            .map(|at| format!(", c{at}"))
            .collect();
        let values: Vec<Vec<&str>> = self
            .samples
            .iter()
            .map(|sample| sample.values.split('|').collect())
            .collect();
        scratch.run("DELETE FROM zoo").await?;
        for row in 0..values.iter().map(Vec::len).max().unwrap_or(0) {
            let mut sql = format!("INSERT INTO zoo (id{names}) VALUES ({row}");
            for values in &values {
                write!(sql, ", {}", values[row % values.len()])?;
            }
            scratch.run(sql + ")").await?;
        }
        Ok(())
    }

    async fn select(&self, scratch: &mut Scratch) -> Result<Vec<Vec<Text>>> {
        let mut sql = "SELECT id".to_owned();
        for (at, sample) in self.samples.iter().enumerate() {
            write!(
                sql,
                ", {}",
                sample.selected.replace("{}", &format!("c{at}"))
            )?;
        }
        scratch.select(&(sql + " FROM zoo ORDER BY id")).await
    }

    /// `told`: whether a column's value can be told from what was at hand.
    fn compare(
        &self,
        decoded: &[Vec<Datum>],
        selected: &[Vec<Text>],
        told: impl Fn(&str) -> bool,
    ) -> Result<()> {
        ensure!(
            decoded.len() == selected.len(),
            "{} rows of {}",
            decoded.len(),
            selected.len()
        );
        let mut differences = String::new();
        for (row, (decoded, selected)) in decoded.iter().zip(selected).enumerate() {
            ensure!(as_text(&decoded[0]) == selected[0], "row {row}");
            let columns = decoded.iter().zip(selected).skip(1).zip(&self.samples);
            for ((datum, expected), Sample { definition, .. }) in columns {
                let found = as_text(datum);
                if found != *expected && told(definition) {
                    let (found, expected) = (shown(&found), shown(expected));
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

    /// With a mode of `binlog_row_metadata`.
    async fn check(&self, scratch: &mut Scratch, mode: &str) -> Result<()> {
        let columns = self.samples.len() + 1;
        let definitions = scratch.definitions("zoo").await?;
        let place = with_metadata(scratch, mode, async |scratch| {
            let place = scratch.place().await?;
            self.fill(scratch).await?;
            let decoded = scratch.rows(&place, "zoo", |_| Vec::new()).await?;
            Ok((decoded.map.context("no table map")?, place))
        });
        let place = place.await?;
        let selected = self.select(scratch).await?;
        let defined = |at: usize| {
            let (definition, charset) = &definitions[at];
            ColumnRef::new(at, at).declared_as(definition, charset.as_deref())
        };
        let all = |_: &TableMap| (0..columns).map(defined).collect();
        let decoded = scratch.rows(&place, "zoo", all).await?;
        self.compare(&decoded.rows, &selected, |_| true)
            .context("with definitions")?;

        let bare = |_: &TableMap| (0..columns).map(|at| ColumnRef::new(at, at)).collect();
        let decoded = scratch.rows(&place, "zoo", bare).await?;
        self.compare(&decoded.rows, &selected, |definition| {
            told(definition, mode)
        })?;

        // Of every seventh column all others are skipped exactly.
        let few = |_: &TableMap| (0..columns).step_by(7).map(defined).collect();
        let decoded = scratch.rows(&place, "zoo", few).await?;
        for (decoded, selected) in decoded.rows.iter().zip(&selected) {
            for (at, (datum, expected)) in decoded.iter().zip(selected).enumerate() {
                let expected = if at % 7 == 0 { expected } else { &None };
                ensure!(as_text(datum) == *expected, "column {at}");
            }
        }
        Ok(())
    }
}

/// Whether a column's value can be told from the binlog alone.
fn told(definition: &str, mode: &str) -> bool {
    let has = |words: &[&str]| words.iter().any(|word| definition.contains(word));
    !has(&["FLOAT(", "DOUBLE(", "UUID", "INET"])
        && (mode == "FULL" || !has(&["ENUM", "SET("]))
        // Of the samples for geometry.
        && !has(&["(20)", "(21)"])
        && (mode != "NO_LOG" || !has(&["UNSIGNED", "latin1", "BINARY("]))
}

/// Runs with `binlog_row_metadata` set. It is global, and other tests may set it as well: it is checked, and tried
/// again.
async fn with_metadata<T>(
    scratch: &mut Scratch,
    mode: &str,
    mut run: impl AsyncFnMut(&mut Scratch) -> Result<(TableMap, T)>,
) -> Result<T> {
    let before: String = scratch.ask("SELECT @@GLOBAL.binlog_row_metadata").await?;
    for _ in 0..10 {
        scratch
            .run(format!("SET GLOBAL binlog_row_metadata = {mode}"))
            .await?;
        let result = run(scratch).await;
        scratch
            .run(format!("SET GLOBAL binlog_row_metadata = {before}"))
            .await?;
        let (map, value) = result?;
        let has_names = map.columns.iter().all(|column| column.name.is_some());
        let has_signs = map.columns.iter().any(|column| column.unsigned.is_some());
        if (has_names, has_signs) == (mode == "FULL", mode != "NO_LOG") {
            return Ok(value);
        }
    }
    bail!("binlog_row_metadata does not stay {mode}");
}

/// Every column type in every metadata mode, with and without the definitions.
pub(crate) async fn every_type(variable: &str) -> Result<()> {
    scratch(variable, async |scratch| {
        let (extra, modes) = if scratch.is_mariadb {
            (MARIADB_SAMPLES, &["NO_LOG", "MINIMAL", "FULL"][..])
        } else {
            (MYSQL_SAMPLES, &["MINIMAL", "FULL"][..])
        };
        let all = Zoo {
            samples: SAMPLES.iter().chain(extra).collect(),
        };
        all.create(scratch).await?;
        for mode in modes {
            all.check(scratch, mode)
                .await
                .with_context(|| format!("with {mode}"))?;
        }
        Ok(())
    })
    .await
}

/// Geometry among text: its definition decides where the binlog is not clear.
pub(crate) async fn geometry(variable: &str) -> Result<()> {
    scratch(variable, async |scratch| {
        let zoo = Zoo {
            samples: GEOMETRIES.iter().collect(),
        };
        zoo.create(scratch).await?;
        zoo.check(scratch, "MINIMAL").await
    })
    .await
}

/// Every collation of the server has the character set that we think it has.
pub(crate) async fn collations(variable: &str) -> Result<()> {
    scratch(variable, async |scratch| {
        let view = if scratch.is_mariadb {
            "COLLATION_CHARACTER_SET_APPLICABILITY"
        } else {
            "COLLATIONS"
        };
        let sql = format!("SELECT ID, CHARACTER_SET_NAME FROM information_schema.{view}");
        let known = scratch.select(&sql).await?;
        ensure!(known.len() > 200, "{} collations", known.len());
        for row in known {
            let (id, name) = (shown(&row[0]).parse()?, shown(&row[1]));
            let (found, expected) = (Charset::of_collation(id), Charset::of_name(&name));
            ensure!(
                found == expected,
                "collation {id} is of {name}, not {found:?}"
            );
        }
        let upper: String = (0x80..=0xff).map(|byte| format!("{byte:02x}")).collect();
        scratch
            .run("CREATE TABLE l (t TEXT CHARACTER SET latin1)")
            .await?;
        let place = scratch.place().await?;
        scratch
            .run(format!("INSERT INTO l VALUES (x'{upper}')"))
            .await?;
        let column = |_: &TableMap| vec![ColumnRef::new(0, 0).declared_as("text", Some("latin1"))];
        let decoded = scratch.rows(&place, "l", column).await?;
        let selected = scratch.select("SELECT t FROM l").await?;
        ensure!(decoded.rows.len() == 1 && as_text(&decoded.rows[0][0]) == selected[0][0]);
        Ok(())
    })
    .await
}
