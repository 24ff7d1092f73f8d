//! The decoders against real servers: what they make of the binlog is what `SELECT` sends.
//!
//! Needs `MYSQL_URL` and `MARIADB_URL`: `eval "$(scripts/services env)"`.

#[path = "decode/json.rs"]
mod json;
#[path = "decode/server.rs"]
mod server;
#[path = "decode/zoo.rs"]
mod zoo;

use anyhow::{Context as _, Result, bail, ensure};
use relay::event::Datum;
use relay::source::binlog::decode::{
    ColumnRef, DecodeError, Gtid, GtidList, MariaDbGtidEvent, Query, Rotate, XaPrepare,
    XaStatement, XaVerb, Xid, event_type, uncompress_query,
};
use server::{Event, Place, as_text, scratch};

const MYSQL: &str = "MYSQL_URL";
const MARIADB: &str = "MARIADB_URL";

#[tokio::test]
async fn every_type_of_mysql() -> Result<()> {
    zoo::every_type(MYSQL).await
}

#[tokio::test]
async fn every_type_of_mariadb() -> Result<()> {
    zoo::every_type(MARIADB).await
}

#[tokio::test]
async fn geometry_of_mysql() -> Result<()> {
    zoo::geometry(MYSQL).await
}

#[tokio::test]
async fn geometry_of_mariadb() -> Result<()> {
    zoo::geometry(MARIADB).await
}

#[tokio::test]
async fn collations_of_mysql() -> Result<()> {
    zoo::collations(MYSQL).await
}

#[tokio::test]
async fn collations_of_mariadb() -> Result<()> {
    zoo::collations(MARIADB).await
}

#[tokio::test]
async fn json_of_mysql() -> Result<()> {
    json::torture(MYSQL).await
}

#[tokio::test]
async fn compressed_transactions_of_mysql() -> Result<()> {
    compressed(MYSQL, "SESSION binlog_transaction_compression").await
}

#[tokio::test]
async fn compressed_events_of_mariadb() -> Result<()> {
    compressed(MARIADB, "GLOBAL log_bin_compress").await
}

/// Rows and a long statement in a compressed form.
async fn compressed(server: &str, switch: &str) -> Result<()> {
    scratch(server, async |scratch| {
        scratch
            .run("CREATE TABLE c (id INT PRIMARY KEY, payload JSON)")
            .await?;
        scratch.run(format!("SET {switch} = ON")).await?;
        let place = scratch.place().await?;
        let filled = async {
            let document = "JSON_OBJECT('seq', seq, 'text', REPEAT('x', seq % 500))";
            let sequence = "SELECT 1 UNION ALL SELECT seq + 1 FROM s WHERE seq < 900";
            let rows = format!("WITH RECURSIVE s (seq) AS ({sequence}) SELECT seq FROM s");
            scratch
                .run(format!(
                    "INSERT INTO c SELECT seq, {document} FROM ({rows}) t"
                ))
                .await?;
            let comment = "c".repeat(1000);
            scratch
                .run(format!("CREATE TABLE noted (id INT COMMENT '{comment}')"))
                .await
        };
        let filled = filled.await;
        scratch.run(format!("SET {switch} = OFF")).await?;
        filled?;
        let wanted = |_: &_| vec![ColumnRef::new(0, 0), ColumnRef::new(1, 1)];
        let decoded = scratch.rows(&place, "c", wanted).await?;
        let selected = scratch.select("SELECT * FROM c ORDER BY id").await?;
        ensure!(
            decoded.rows.len() == 900 && selected.len() == 900,
            "{}",
            decoded.rows.len()
        );
        for (decoded, selected) in decoded.rows.iter().zip(&selected) {
            ensure!(
                (0..2).all(|at| as_text(&decoded[at]) == selected[at]),
                "{selected:?}"
            );
        }
        let kind = noted(&scratch.events(&place).await?, &scratch.database)?;
        if scratch.is_mariadb {
            ensure!(decoded.compressed > 0 && kind == event_type::MARIADB_QUERY_COMPRESSED);
        }
        Ok(())
    })
    .await
}

/// The type of the event that holds the long statement.
fn noted(events: &[Event], database: &str) -> Result<u8> {
    for event in events {
        let plain = match event.kind {
            event_type::MARIADB_QUERY_COMPRESSED => uncompress_query(&event.data)?,
            event_type::QUERY => event.data.clone(),
            _ => continue,
        };
        let Query { schema, sql } = Query::parse(&plain)?;
        if schema == database.as_bytes() && sql.starts_with(b"CREATE TABLE noted") {
            ensure!(sql.ends_with(format!("COMMENT '{}')", "c".repeat(1000)).as_bytes()));
            return Ok(event.kind);
        }
    }
    bail!("no such statement");
}

#[tokio::test]
async fn xa_of_mysql() -> Result<()> {
    xa(MYSQL).await
}

#[tokio::test]
async fn xa_of_mariadb() -> Result<()> {
    xa(MARIADB).await
}

/// XA transactions: prepared and committed, prepared and rolled back, in one phase.
async fn xa(server: &str) -> Result<()> {
    scratch(server, async |scratch| {
        scratch.run("CREATE TABLE x (id INT PRIMARY KEY)").await?;
        let place = scratch.place().await?;
        let id = format!("{:08x}", fastrand::u32(..));
        let gtrid = format!("one'{id}").into_bytes();
        let transactions = [
            (
                format!("'one''{id}'"),
                XaVerb::Commit,
                Xid::new(1, &gtrid, b""),
            ),
            (
                format!("X'00ff{id}', X'0a0d27', 2147483647"),
                XaVerb::Rollback,
                Xid::new(0x7fff_ffff, &unhex(&format!("00ff{id}"))?, b"\n\r'"),
            ),
        ];
        for (at, (xid, verb, _)) in transactions.iter().enumerate() {
            scratch.run(format!("XA START {xid}")).await?;
            scratch.run(format!("INSERT INTO x VALUES ({at})")).await?;
            scratch.run(format!("XA END {xid}")).await?;
            scratch.run(format!("XA PREPARE {xid}")).await?;
            scratch.run(format!("XA {verb:?} {xid}")).await?;
        }
        let single = format!("'{id}', 'branch', 7");
        scratch.run(format!("XA START {single}")).await?;
        scratch.run("INSERT INTO x VALUES (9)").await?;
        scratch.run(format!("XA END {single}")).await?;
        scratch.run(format!("XA COMMIT {single} ONE PHASE")).await?;

        let seen = XaSeen::of(&scratch.events(&place).await?)?;
        for (_, verb, xid) in transactions {
            let xid = xid.context("no xid")?;
            ensure!(
                seen.prepared.contains(&(xid.clone(), false)),
                "{xid} in {seen:?}"
            );
            ensure!(
                seen.statements.contains(&(verb, xid.clone())),
                "{xid} in {seen:?}"
            );
            if scratch.is_mariadb {
                ensure!(
                    seen.gtids.contains(&(xid.clone(), true, false)),
                    "{xid} in {seen:?}"
                );
                ensure!(
                    seen.gtids.contains(&(xid.clone(), false, true)),
                    "{xid} in {seen:?}"
                );
            } else {
                ensure!(
                    seen.statements.contains(&(XaVerb::Start, xid.clone())),
                    "{seen:?}"
                );
            }
        }
        if !scratch.is_mariadb {
            // MariaDB logs it as any other transaction.
            let xid = Xid::new(7, id.as_bytes(), b"branch").context("no xid")?;
            ensure!(seen.prepared.contains(&(xid, true)), "{seen:?}");
        }
        Ok(())
    })
    .await
}

fn unhex(digits: &str) -> Result<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?))
        .collect()
}

#[derive(Debug, Default)]
struct XaSeen {
    statements: Vec<(XaVerb, Xid)>,
    /// With whether in one phase.
    prepared: Vec<(Xid, bool)>,
    /// With whether prepared and whether completed.
    gtids: Vec<(Xid, bool, bool)>,
}

impl XaSeen {
    fn of(events: &[Event]) -> Result<Self> {
        let mut seen = Self::default();
        for Event { kind, data, .. } in events {
            match *kind {
                event_type::QUERY => {
                    let found = XaStatement::parse(Query::parse(data)?.sql);
                    seen.statements
                        .extend(found.map(|found| (found.verb, found.xid)));
                }
                event_type::XA_PREPARE => {
                    let found = XaPrepare::parse(data)?;
                    seen.prepared.push((found.xid, found.one_phase));
                }
                event_type::MARIADB_GTID => {
                    let gtid = MariaDbGtidEvent::parse(data)?;
                    let (prepared, completed) = (gtid.is_prepared_xa(), gtid.is_completed_xa());
                    seen.gtids
                        .extend(gtid.xid.map(|xid| (xid, prepared, completed)));
                }
                _ => {}
            }
        }
        Ok(seen)
    }
}

fn find(events: &[Event], kind: u8) -> Result<&Event> {
    events
        .iter()
        .find(|event| event.kind == kind)
        .with_context(|| format!("no event {kind}"))
}

#[tokio::test]
async fn gtids_of_mysql() -> Result<()> {
    scratch(MYSQL, async |scratch| {
        scratch.run("CREATE TABLE g (id INT)").await?;
        let place = scratch.place().await?;
        scratch.run("INSERT INTO g VALUES (1)").await?;
        let uuid: String = scratch.ask("SELECT @@server_uuid").await?;
        let now = "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)";
        let now: u64 = scratch.ask(now).await?;
        let events = scratch.events(&place).await?;
        let rotate = Rotate::parse(&find(&events, event_type::ROTATE)?.data)?;
        ensure!(rotate.file == place.file.as_bytes() && rotate.position == place.position);
        let gtid = Gtid::parse(&find(&events, event_type::GTID)?.data)?;
        let sid: String = gtid.sid.iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(sid == uuid.replace('-', ""), "{sid} is not {uuid}");
        let name = format!("{uuid}:{}", gtid.gno);
        let contained = format!("SELECT GTID_SUBSET('{name}', @@GLOBAL.gtid_executed)");
        ensure!(scratch.ask::<bool>(&contained).await?, "{name}");
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
    scratch(MARIADB, async |scratch| {
        scratch.run("CREATE TABLE g (id INT)").await?;
        let place = scratch.place().await?;
        scratch.run("INSERT INTO g VALUES (1)").await?;
        let inserted: String = scratch.ask("SELECT @@last_gtid").await?;
        scratch.run("CREATE TABLE h (id INT)").await?;
        let created: String = scratch.ask("SELECT @@last_gtid").await?;
        let mut found = Vec::new();
        for Event {
            kind,
            server_id,
            data,
        } in scratch.events(&place).await?
        {
            if kind == event_type::MARIADB_GTID {
                let gtid = MariaDbGtidEvent::parse(&data)?;
                let name = format!("{}-{server_id}-{}", gtid.domain, gtid.sequence);
                found.push((name, gtid.is_standalone()));
            }
        }
        ensure!(
            found.contains(&(inserted.clone(), false)),
            "{inserted} in {found:?}"
        );
        ensure!(
            found.contains(&(created.clone(), true)),
            "{created} in {found:?}"
        );

        scratch.run("FLUSH BINARY LOGS").await?;
        let place = Place {
            position: 4,
            ..scratch.place().await?
        };
        let events = scratch.events(&place).await?;
        let list = GtidList::parse(&find(&events, event_type::MARIADB_GTID_LIST)?.data)?;
        let names: Vec<String> = list
            .entries
            .iter()
            .map(|entry| format!("{}-{}", entry.domain, entry.server_id))
            .collect();
        ensure!(
            names.iter().any(|name| created.starts_with(name)),
            "{created} in {names:?}"
        );
        Ok(())
    })
    .await
}

/// A minimal image leaves out what the statement does not set.
#[tokio::test]
async fn minimal_images_are_noticed() -> Result<()> {
    for server in [MYSQL, MARIADB] {
        scratch(server, async |scratch| {
            let columns = "id INT PRIMARY KEY, payload TEXT, status INT DEFAULT 5";
            scratch.run(format!("CREATE TABLE m ({columns})")).await?;
            scratch
                .run("SET SESSION binlog_row_image = MINIMAL")
                .await?;
            let place = scratch.place().await?;
            scratch
                .run("INSERT INTO m (id, payload) VALUES (1, 'here')")
                .await?;
            let set = scratch
                .rows(&place, "m", |_| vec![ColumnRef::new(1, 0)])
                .await?;
            ensure!(set.rows[0][0] == Datum::Bytes(b"here".to_vec()));
            let unset = scratch
                .rows(&place, "m", |_| vec![ColumnRef::new(2, 0)])
                .await;
            let Err(error) = unset else {
                bail!("a status out of nothing")
            };
            ensure!(matches!(
                error.downcast_ref(),
                Some(DecodeError::ColumnAbsent { .. })
            ));
            Ok(())
        })
        .await?;
    }
    Ok(())
}
