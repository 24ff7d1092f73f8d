//! The relay's own tables, as its migrations leave them, and what the account may do with them.

use super::report::{Report, Verdict};
use super::subject::{Subject, Tried, Wanted};
use crate::config::{CheckpointStore, Identifier};
use crate::mysql::MysqlError;

/// Who did what with dead letters; its name is fixed.
const AUDIT: &str = "relay_audit";

/// What the relay does with a table of its own.
struct Own<'a> {
    check: &'static str,
    name: &'a Identifier,
    /// The migration that brought the last of its columns.
    migration: &'static str,
    columns: &'static str,
    privileges: Vec<(&'static str, String, Verdict, &'static str)>,
}

pub(super) async fn check(subject: &mut Subject, report: &mut Report) -> Result<(), MysqlError> {
    let config = subject.config.clone();
    match &config.checkpoint {
        CheckpointStore::Mysql => {
            let table = subject.table(&config.checkpoint_table);
            let purpose = "the checkpoint is kept there";
            let own = Own {
                check: "checkpoint table",
                name: &config.checkpoint_table,
                migration: "0001_outbox",
                columns: "name, epoch, position, owner, updated_at",
                privileges: vec![
                    (
                        "INSERT",
                        format!("EXPLAIN INSERT INTO {table} (name) VALUES ('')"),
                        Verdict::Failed,
                        purpose,
                    ),
                    (
                        "UPDATE",
                        format!(
                            "EXPLAIN UPDATE {table} SET epoch = 0, position = NULL, owner = NULL LIMIT 1"
                        ),
                        Verdict::Failed,
                        purpose,
                    ),
                ],
            };
            table_of_its_own(subject, report, own).await?;
        }
        CheckpointStore::File(path) => checkpoint_file(report, path),
    }
    let table = subject.table(&config.dead_letter_table);
    let letters = Own {
        check: "dead letter table",
        name: &config.dead_letter_table,
        migration: "0004_dead_letter_key",
        columns: "id, source_event_id, source_event_key, event_type, payload, error, attempts, created_at",
        privileges: vec![
            (
                "INSERT",
                format!(
                    "EXPLAIN INSERT INTO {table} (event_type, payload, error) VALUES ('', '{{}}', '')"
                ),
                Verdict::Failed,
                "events that are given up are kept there",
            ),
            (
                "DELETE",
                format!("EXPLAIN DELETE FROM {table} LIMIT 1"),
                Verdict::Warning,
                "`relay dlq replay` and `discard` need it",
            ),
        ],
    };
    table_of_its_own(subject, report, letters).await?;
    audit(subject, report).await
}

async fn table_of_its_own(
    subject: &mut Subject,
    report: &mut Report,
    own: Own<'_>,
) -> Result<(), MysqlError> {
    let table = subject.table(own.name);
    let select = format!("SELECT {} FROM {table} LIMIT 0", own.columns);
    match subject.try_out(&select).await? {
        Tried::NoTable => {
            report.failed(
                own.check,
                format!("there is no table {table}"),
                "relay migrate",
            );
            return Ok(());
        }
        Tried::NoColumn(words) => {
            let found = format!(
                "{table} is not as migration {} leaves it: {words}",
                own.migration
            );
            report.failed(own.check, found, "relay migrate");
        }
        Tried::Allowed => report.ok(
            own.check,
            format!("{table}, as migration {} leaves it", own.migration),
        ),
        Tried::Denied(words) | Tried::ReadOnly(words) => {
            let grant = subject.account.grant("SELECT", &table);
            report.failed(
                format!("privilege SELECT on {}", own.name.as_str()),
                words,
                grant,
            );
        }
    }
    for (privilege, statement, lacking, purpose) in own.privileges {
        let wanted = Wanted {
            privilege,
            table: own.name,
            statement: &statement,
            lacking,
            purpose,
        };
        subject.privilege(report, wanted).await?;
    }
    Ok(())
}

/// Only written to, and only by `relay dlq`.
async fn audit(subject: &mut Subject, report: &mut Report) -> Result<(), MysqlError> {
    let Ok(name) = Identifier::parse(AUDIT) else {
        return Ok(());
    };
    let table = subject.table(&name);
    let statement = format!("EXPLAIN INSERT INTO {table} (actor, action) VALUES ('', '')");
    let wanted = Wanted {
        privilege: "INSERT",
        table: &name,
        statement: &statement,
        lacking: Verdict::Warning,
        purpose: "`relay dlq` writes down there what it does",
    };
    subject.privilege(report, wanted).await
}

/// The relay replaces the file by one that it writes beside it.
fn checkpoint_file(report: &mut Report, path: &std::path::Path) {
    let check = "checkpoint file";
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".check-{:08x}", fastrand::u32(..)));
    let written = std::fs::write(&beside, "").and_then(|()| std::fs::remove_file(&beside));
    let read = match std::fs::read(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(_) | Err(_) => Ok(()),
    };
    match written.and(read) {
        Ok(()) => report.ok(check, format!("{} can be written", path.display())),
        Err(error) => report.failed(
            check,
            format!("{}: {error}", path.display()),
            "set RELAY_CHECKPOINT_FILE to a path in a folder that this user can write to",
        ),
    }
}
