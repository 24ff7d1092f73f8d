//! The MySQL server: reached, logged in, old enough, writable; its clock, its limits, its locks.

use std::time::{SystemTime, UNIX_EPOCH};

use super::account::{Account, name};
use super::report::Report;
use super::subject::{Subject, said};
use super::writes;
use crate::config::Config;
use crate::leader;
use crate::mysql::{Flavor, MysqlError, Server, Session, is_read_only};

/// Seconds that the clocks may differ: leases and `created_at` go by the server's, metrics by both.
const SKEW: f64 = 5.0;
/// A packet that a statement with the most keys, each of the longest, surely fits into.
const LEAST_PACKET: u64 = 1 << 20;
/// The first versions that the relay is made for.
const OLDEST_MYSQL: (u32, u32, u32) = (5, 7, 0);
const OLDEST_MARIADB: (u32, u32, u32) = (10, 6, 0);

/// Whether the account gets into the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Database {
    /// It does.
    Entered,
    /// It has no privilege there, or there is no such database.
    Closed,
    /// There is none.
    Missing,
}

/// Logs in to the server that the relay would use; nothing if there is none.
pub(super) async fn connect(config: &Config, report: &mut Report) -> Option<Subject> {
    let mut chosen = None;
    for nth in config.mysql.in_order() {
        let only = Config {
            mysql: config.mysql.only(nth),
            ..config.clone()
        };
        let found = log_in(&only, config.mysql.is_list(), report).await;
        if chosen.is_none() {
            chosen = found.map(|found| (only, found));
        }
    }
    let Some((config, (session, server, account))) = chosen else {
        if config.mysql.is_list() {
            report.failed(
                "MySQL",
                "no server of the list can be used",
                "start the primary, or correct RELAY_MYSQL_URL",
            );
        }
        return None;
    };
    Some(Subject {
        config,
        session,
        server,
        account,
    })
}

/// Of a list, a server may be down or read-only as long as another is not.
async fn log_in(
    config: &Config,
    one_of_many: bool,
    report: &mut Report,
) -> Option<(Session, Server, Account)> {
    let host = config.mysql.host();
    let opened = async {
        // Not into the database, which has a check of its own.
        let mut session = Session::connect_outside(config).await?;
        let server = Server::inspect(&mut session).await?;
        let who = "SELECT CURRENT_USER(), CAST(@@global.read_only AS CHAR)";
        let asked = session.first("ask for the account", who).await?;
        let (user, read_only): (String, String) = asked.unwrap_or_default();
        Ok::<_, MysqlError>((session, server, Account::of(&user), read_only))
    };
    let (session, server, account, state) = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            let check = match error.code() {
                Some(_) => "MySQL login",
                None => "MySQL connection",
            };
            let found = format!("{}: {}", config.mysql, said(&error));
            let mend = error.diagnosis().hint;
            if one_of_many {
                report.warn(check, found, mend);
            } else {
                report.failed(check, found, mend);
            }
            return None;
        }
    };
    report.ok("MySQL connection", format!("{host} answers"));
    report.ok("MySQL login", format!("as {account}"));
    let read_only = is_read_only(&state);
    let found = format!("read_only of {host} is {state}");
    match (read_only, one_of_many) {
        (true, true) => {
            report.ok("writable", format!("{found}: passed over"));
            return None;
        }
        (true, false) if writes(config) => report.failed(
            "writable",
            found,
            "point RELAY_MYSQL_URL at the primary, or list it there too",
        ),
        (true, false) => report.ok("writable", format!("{found}; nothing is written to it")),
        (false, _) => report.ok("writable", found),
    }
    Some((session, server, account))
}

/// Looks at the server itself.
pub(super) async fn check(
    subject: &mut Subject,
    report: &mut Report,
) -> Result<Database, MysqlError> {
    version(&subject.server, report);
    let entered = database(subject, report).await?;
    clock(subject, report).await?;
    packet(subject, report).await?;
    lock(subject, report).await?;
    Ok(entered)
}

fn version(server: &Server, report: &mut Report) {
    let (oldest, name) = match server.flavor {
        Flavor::MySql => (OLDEST_MYSQL, "MySQL 5.7"),
        Flavor::MariaDb => (OLDEST_MARIADB, "MariaDB 10.6"),
    };
    if server.release() < oldest {
        let mend = format!("upgrade to {name} or later");
        report.failed("MySQL version", &server.version, mend);
    } else {
        report.ok("MySQL version", &server.version);
    }
}

async fn database(subject: &mut Subject, report: &mut Report) -> Result<Database, MysqlError> {
    let database = name(subject.config.mysql.database());
    let entering = format!("USE {database}");
    let Err(error) = subject.session.run("enter the database", &entering).await else {
        report.ok("database", format!("{database} is there"));
        return Ok(Database::Entered);
    };
    let (mend, found) = match error.code() {
        Some(1049) => (format!("CREATE DATABASE {database}"), Database::Missing),
        // Any privilege on anything in it lets the account in.
        Some(1044) => {
            let table = subject.table(&subject.config.table);
            let grant = subject.account.grant("SELECT", &table);
            (grant, Database::Closed)
        }
        Some(_) | None => return Err(error),
    };
    report.failed("database", said(&error), mend);
    Ok(found)
}

async fn clock(subject: &mut Subject, report: &mut Report) -> Result<(), MysqlError> {
    let seconds = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64()
    };
    let before = seconds();
    let asked: Option<(f64,)> = subject
        .session
        .first(
            "ask for the time",
            "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) AS DOUBLE)",
        )
        .await?;
    let after = seconds();
    let (theirs,) = asked.unwrap_or_default();
    // What the answer took can't be told from a difference.
    let skew = theirs - theirs.clamp(before, after);
    let found = format!("the server's clock differs by {:.1} s", skew.abs());
    if skew.abs() > SKEW {
        report.warn(
            "clock",
            found,
            "keep the clocks of both machines by NTP (chrony, systemd-timesyncd)",
        );
    } else {
        report.ok("clock", found);
    }
    Ok(())
}

async fn packet(subject: &mut Subject, report: &mut Report) -> Result<(), MysqlError> {
    let asked: Option<(u64,)> = subject
        .session
        .first(
            "ask for max_allowed_packet",
            "SELECT @@global.max_allowed_packet",
        )
        .await?;
    let (packet,) = asked.unwrap_or_default();
    let window = subject.config.window_bytes;
    let found = format!("max_allowed_packet is {packet}, window_bytes {window}");
    if packet < LEAST_PACKET {
        report.warn(
            "packet size",
            format!("{found}: marks and dead letters may be larger"),
            "SET GLOBAL max_allowed_packet = 67108864",
        );
    } else if u64::try_from(window).unwrap_or(u64::MAX) < packet {
        report.ok(
            "packet size",
            format!("{found}: a row that is larger than the window goes alone"),
        );
    } else {
        report.ok("packet size", found);
    }
    Ok(())
}

async fn lock(subject: &mut Subject, report: &mut Report) -> Result<(), MysqlError> {
    let doing = "try a lock";
    // A name of its own: the relay's is not to be held even for a moment.
    let name = format!("outbox-relay-check:{:016x}", fastrand::u64(..));
    let got: Result<Option<(Option<i64>,)>, _> = subject
        .session
        .first(doing, &format!("SELECT GET_LOCK('{name}', 0)"))
        .await;
    match got {
        Ok(Some((Some(1),))) => {}
        Ok(_) => {
            report.failed(
                "lock",
                "GET_LOCK gives no lock",
                "point RELAY_MYSQL_URL at a server, not at a proxy that spreads sessions",
            );
            return Ok(());
        }
        Err(error) if error.code().is_some() => {
            report.failed(
                "lock",
                said(&error),
                "point RELAY_MYSQL_URL at a server that knows GET_LOCK",
            );
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    subject
        .session
        .run(doing, &format!("DO RELEASE_LOCK('{name}')"))
        .await?;
    let found = match leader(subject).await? {
        Some(session) => format!(
            "GET_LOCK works; a relay named {} leads (connection {session})",
            subject.config.name
        ),
        None => format!(
            "GET_LOCK works; no relay named {} runs",
            subject.config.name
        ),
    };
    report.ok("lock", found);
    Ok(())
}

/// The connection that holds the lock of the relay's name.
pub(super) async fn leader(subject: &mut Subject) -> Result<Option<u64>, MysqlError> {
    let held: Vec<(Option<u64>,)> = subject
        .session
        .rows(
            "ask who holds the lock of this relay's name",
            "SELECT IS_USED_LOCK(?)",
            (leader::lock_name(&subject.config),),
        )
        .await?;
    Ok(held.first().and_then(|(held,)| *held))
}
