//! The binlog: whether it holds what the relay needs, and whether the account may read it.

use mysql_async::Row;

use super::Binlog;
use super::report::Report;
use super::server::leader;
use super::subject::Subject;
use crate::config::{Config, Mark};
use crate::marker;
use crate::mysql::{Flavor, MysqlError, Unfit};
use crate::source::binlog::{self, SourceError};

/// Binlogs that are kept for less than a day are gone after a quiet night with the relay down.
const LEAST_SECONDS: u64 = 86_400;
/// What is proposed then.
const PROPOSED_SECONDS: u64 = 7 * 86_400;
/// Before it MySQL asked for SUPER.
const SESSION_VARIABLES_ADMIN: (u32, u32, u32) = (8, 0, 14);
/// How the relay calls itself as a replica.
const RELAY_HOST: &str = "outbox-relay";

pub(super) async fn check(
    subject: &mut Subject,
    report: &mut Report,
    entered: bool,
) -> Result<(), MysqlError> {
    let need = Binlog::of(&subject.config);
    if need == Binlog::Unused {
        report.ok("binlog", "source = poll: it is not read");
        return Ok(());
    }
    let judge = Judge(need);
    let log = variable(subject, "log_bin").await?.unwrap_or_default();
    if !is_on(&log) {
        let found = format!("log_bin is {log}: the server writes no binlog");
        let mend = "start the server with log_bin and server_id in its configuration";
        judge.fault(report, "log_bin", found, mend);
        return Ok(());
    }
    report.ok("log_bin", "ON");
    let mut fit = rows(subject, report, judge).await?;
    metadata(subject, report).await?;
    expiry(subject, report).await?;
    gtids(subject, report).await?;
    fit &= server_id(subject, report, judge).await?;
    position(subject, report, judge).await?;
    if fit && entered {
        stream(subject, report, judge).await;
    }
    small_marks(subject, report).await
}

/// How bad a fault of the binlog is.
#[derive(Debug, Clone, Copy)]
struct Judge(Binlog);

impl Judge {
    fn fault(
        self,
        report: &mut Report,
        check: &str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) {
        let found = found.into();
        match self.0 {
            Binlog::Needed => report.failed(check, found, mend),
            Binlog::Preferred | Binlog::Unused => {
                report.warn(check, format!("{found}; the relay will poll instead"), mend);
            }
        }
    }
}

/// A global variable as text; none where the server does not know it.
async fn variable(subject: &mut Subject, name: &str) -> Result<Option<String>, MysqlError> {
    let asked: Option<(Option<String>,)> = subject
        .session
        .first_if_known(
            "ask for a setting of the server",
            &format!("SELECT CAST(@@global.{name} AS CHAR)"),
        )
        .await?;
    Ok(asked.and_then(|(text,)| text))
}

fn is_on(text: &str) -> bool {
    matches!(text, "1" | "ON")
}

/// Whether the binlog holds whole rows.
async fn rows(
    subject: &mut Subject,
    report: &mut Report,
    judge: Judge,
) -> Result<bool, MysqlError> {
    let mut fit = true;
    for (name, wanted) in [
        ("binlog_format", &["ROW"][..]),
        ("binlog_row_image", &["FULL", "NOBLOB"]),
    ] {
        // Late versions know no format but ROW.
        let Some(text) = variable(subject, name).await? else {
            continue;
        };
        if wanted.contains(&text.as_str()) {
            report.ok(name, text);
            continue;
        }
        fit = false;
        let best = wanted.first().copied().unwrap_or_default();
        let found = format!(
            "{text}: rows are not in the binlog as the relay needs them; new connections follow a change"
        );
        judge.fault(report, name, found, format!("SET GLOBAL {name} = '{best}'"));
    }
    Ok(fit)
}

async fn metadata(subject: &mut Subject, report: &mut Report) -> Result<(), MysqlError> {
    let name = "binlog_row_metadata";
    match variable(subject, name).await? {
        Some(text) if text == "FULL" => report.ok(name, text),
        Some(text) => report.warn(
            name,
            format!("{text}: the binlog does not name columns, so rows written before the table was altered may have to be read from the table"),
            "SET GLOBAL binlog_row_metadata = 'FULL'",
        ),
        None => {}
    }
    Ok(())
}

async fn expiry(subject: &mut Subject, report: &mut Report) -> Result<(), MysqlError> {
    let name = "binlog_expire_logs_seconds";
    let Some(text) = variable(subject, name).await? else {
        return Ok(());
    };
    match text.parse::<u64>() {
        Ok(seconds @ 1..LEAST_SECONDS) => report.warn(
            name,
            format!("{seconds}: a relay that is down for longer has to read the unpublished rows from the table"),
            format!("SET GLOBAL {name} = {PROPOSED_SECONDS}"),
        ),
        Ok(0) => report.ok(name, "0: binlogs are kept for ever"),
        Ok(_) | Err(_) => report.ok(name, text),
    }
    Ok(())
}

async fn gtids(subject: &mut Subject, report: &mut Report) -> Result<(), MysqlError> {
    let found = match subject.server.flavor {
        Flavor::MariaDb => "MariaDB's own".to_owned(),
        Flavor::MySql => variable(subject, "gtid_mode").await?.unwrap_or_default(),
    };
    if subject.server.gtid {
        report.ok("gtid_mode", found);
    } else {
        report.warn(
            "gtid_mode",
            format!("{found}: positions are file and offset, which mean nothing on another server: no fail-over without a look at the table"),
            "SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode = OFF_PERMISSIVE; SET GLOBAL gtid_mode = ON_PERMISSIVE; SET GLOBAL gtid_mode = ON",
        );
    }
    Ok(())
}

/// Whether the relay's server id is its own.
async fn server_id(
    subject: &mut Subject,
    report: &mut Report,
    judge: Judge,
) -> Result<bool, MysqlError> {
    let check = "server_id";
    let (theirs, ours) = (subject.server.server_id, subject.config.server_id);
    if theirs == 0 {
        let found = "0: the server serves no replicas";
        judge.fault(report, check, found, "SET GLOBAL server_id = 1");
        return Ok(false);
    }
    let other = format!("RELAY_SERVER_ID={}", another(ours));
    if theirs == ours {
        report.failed(check, format!("{ours} is the server's own"), other);
        return Ok(false);
    }
    let Some(replicas) = replicas(subject).await? else {
        report.ok(
            check,
            format!("{ours}; which replicas there are, this account may not ask"),
        );
        return Ok(true);
    };
    let Some((_, host)) = replicas.into_iter().find(|(id, _)| *id == ours) else {
        report.ok(check, format!("{ours}; no replica uses it"));
        return Ok(true);
    };
    // The relay of this name holds the lock, if it runs.
    if host == RELAY_HOST && leader(subject).await?.is_some() {
        report.ok(check, format!("{ours}, in use by the relay of this name"));
        return Ok(true);
    }
    let found = format!("{ours} is in use by another replica ({host})");
    report.failed(check, found, other);
    // The stream is opened under another id.
    Ok(true)
}

fn another(id: u32) -> u32 {
    // Above the small numbers that people give to servers.
    let other = fastrand::u32(1 << 24..u32::MAX);
    if other == id { other - 1 } else { other }
}

/// Server ids and hosts of the replicas; none where the account may not ask.
async fn replicas(subject: &mut Subject) -> Result<Option<Vec<(u32, String)>>, MysqlError> {
    let doing = "ask for the server's replicas";
    // The second is the name before MySQL 8.0.22, and MariaDB's.
    for statement in ["SHOW REPLICAS", "SHOW SLAVE HOSTS"] {
        let rows: Vec<Row> = match subject.session.all(doing, statement).await {
            Ok(rows) => rows,
            Err(error) if error.code().is_some() => continue,
            Err(error) => return Err(error),
        };
        let read = |row: Row| {
            let id = row.get_opt::<u32, _>(0)?.ok()?;
            let host = row.get_opt::<Option<String>, _>(1)?.ok()?;
            Some((id, host.unwrap_or_default()))
        };
        return Ok(Some(rows.into_iter().filter_map(read).collect()));
    }
    Ok(None)
}

/// REPLICATION CLIENT, by asking for the end of the binlog.
async fn position(
    subject: &mut Subject,
    report: &mut Report,
    judge: Judge,
) -> Result<(), MysqlError> {
    let privilege = match subject.server.flavor {
        Flavor::MySql => "REPLICATION CLIENT",
        Flavor::MariaDb => "BINLOG MONITOR",
    };
    let check = format!("privilege {privilege}");
    let grant = subject.account.grant(privilege, "*.*");
    let server = subject.server.clone();
    let by_file = server.head_of_files(&mut subject.session).await?;
    let refusal = "the server does not tell in which file its binlog ends";
    match (server.head(&mut subject.session).await?, by_file) {
        (Ok(_), Ok(position)) => {
            report.ok(check, format!("granted; the binlog ends at {position}"));
        }
        // Turned off, or on MariaDB reset, there is no other position.
        (Ok(_), Err(_)) => report.warn(
            check,
            format!("{refusal}; it is needed as soon as there are no GTIDs"),
            grant,
        ),
        (Err(Unfit::NoPosition), _) => judge.fault(report, &check, refusal, grant),
        (Err(unfit), _) => {
            let found = crate::error::chain(&unfit);
            let mend = "see what the server says to SHOW BINARY LOG STATUS";
            judge.fault(report, "position", found, mend);
        }
    }
    Ok(())
}

/// REPLICATION SLAVE, by opening the binlog at its end.
async fn stream(subject: &Subject, report: &mut Report, judge: Judge) {
    // The server drops an older stream of the same id: a relay that runs must not be disturbed.
    let own = Config {
        server_id: another(subject.config.server_id),
        ..subject.config.clone()
    };
    let check = "privilege REPLICATION SLAVE";
    match Box::pin(binlog::probe(&own)).await {
        Ok(()) => report.ok(check, "granted; the binlog was opened at its end"),
        Err(SourceError::Denied(words)) => {
            let grant = subject.account.grant("REPLICATION SLAVE", "*.*");
            judge.fault(report, check, words, grant);
        }
        Err(error) => {
            let found = crate::error::chain(&error);
            if error.calls_for_polling() {
                judge.fault(report, "binlog stream", found, error.hint());
            } else {
                report.failed("binlog stream", found, error.hint());
            }
        }
    }
}

/// Marks of small size: only a wish.
async fn small_marks(subject: &mut Subject, report: &mut Report) -> Result<(), MysqlError> {
    if subject.config.mark != Mark::Update || subject.config.columns.status().is_none() {
        return Ok(());
    }
    let privilege = match subject.server.flavor {
        Flavor::MariaDb => "BINLOG ADMIN",
        Flavor::MySql if subject.server.release() < SESSION_VARIABLES_ADMIN => "SUPER",
        Flavor::MySql => "SESSION_VARIABLES_ADMIN",
    };
    let check = format!("privilege {privilege}");
    if marker::prepare(&mut subject.session).await? {
        report.ok(check, "granted");
    } else {
        let grant = subject.account.grant(privilege, "*.*");
        let found = "not granted: each mark writes the whole row to the binlog, twice";
        report.warn(check, found, grant);
    }
    Ok(())
}
