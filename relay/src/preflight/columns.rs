//! The outbox table: its columns, its key, its indexes, and what the account may do with it.

use super::report::{Report, Verdict};
use super::subject::{Subject, Tried, Wanted};
use crate::catalogue::{Catalogue, catalogue};
use crate::config::{Config, Identifier, Mark, SourceMode};
use crate::event::FIELDS;
use crate::mysql::MysqlError;
use crate::source::claim::claim_index;

/// What a column is declared as where it has to be added: as in `migrations/0001_outbox.sql`.
const DECLARATIONS: [(&str, &str); FIELDS.len() - 1] = [
    ("column_id", "BIGINT NOT NULL AUTO_INCREMENT UNIQUE"),
    ("column_aggregate_type", "VARCHAR(64) NOT NULL"),
    ("column_aggregate_id", "BIGINT NOT NULL"),
    ("column_event_type", "VARCHAR(128) NOT NULL"),
    ("column_payload", "JSON NOT NULL"),
    ("column_idempotency_key", "VARCHAR(255) NOT NULL"),
    (
        "column_created_at",
        "DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    ),
    ("column_headers", "JSON NULL"),
    (
        "column_status",
        "ENUM('PENDING', 'PROCESSING', 'PUBLISHED', 'FAILED') NOT NULL DEFAULT 'PENDING'",
    ),
    ("column_exchange", "VARCHAR(127) NULL"),
    ("column_routing_key", "VARCHAR(255) NULL"),
];

pub(super) async fn check(subject: &mut Subject, report: &mut Report) -> Result<(), MysqlError> {
    let config = subject.config.clone();
    let catalogue = catalogue(&config, &mut subject.session).await?;
    let table = subject.table(&config.table);
    let there: Vec<String> = config
        .columns
        .names()
        .iter()
        .flatten()
        .filter(|name| catalogue.has(name.as_str()))
        .map(Identifier::quoted)
        .collect();
    let list = if there.is_empty() {
        "1".to_owned()
    } else {
        there.join(", ")
    };
    let select = format!("SELECT {list} FROM {table} LIMIT 0");
    let tried = subject.try_out(&select).await?;
    if tried == Tried::NoTable {
        report.failed(
            "outbox table",
            format!("there is no table {table}"),
            if config.table.as_str() == "outbox_events" {
                "relay migrate"
            } else {
                "create the table, or set RELAY_TABLE to its name"
            },
        );
        return Ok(());
    }
    // An account that sees nothing is not told whether there is such a table.
    if tried == Tried::Allowed || !catalogue.columns.is_empty() {
        report.ok("outbox table", &table);
    }
    subject
        .privilege(
            report,
            Wanted {
                privilege: "SELECT",
                table: &config.table,
                statement: &select,
                lacking: Verdict::Failed,
                purpose: "rows are read by it",
            },
        )
        .await?;
    writing(subject, report, &config, &catalogue).await?;
    if catalogue.columns.is_empty() {
        // The account sees nothing of it: its grants come first.
        return Ok(());
    }
    columns(report, &config, &catalogue, &table);
    locks(report, &config, &catalogue, &table);
    key(subject, report, &config, &table).await?;
    index(subject, report, &config, &catalogue, &table).await
}

/// UPDATE and DELETE, where the configuration needs them.
async fn writing(
    subject: &mut Subject,
    report: &mut Report,
    config: &Config,
    catalogue: &Catalogue,
) -> Result<(), MysqlError> {
    let table = subject.table(&config.table);
    let kept = catalogue.bookkeeping(&config.columns);
    if let Some(status) = config.columns.status()
        && config.mark != Mark::None
    {
        let own = [
            (kept.attempts, "attempts = 0"),
            (kept.last_error, "last_error = NULL"),
            (kept.published_at, "published_at = NULL"),
            (kept.locks, "locked_by = NULL, locked_until = NULL"),
        ];
        // Without a condition: one on a column would need SELECT, which is looked at by itself.
        let mut statement = format!("EXPLAIN UPDATE {table} SET {} = 'PENDING'", status.quoted());
        for (_, assignment) in own.iter().filter(|(kept, _)| *kept) {
            statement.push_str(", ");
            statement.push_str(assignment);
        }
        statement.push_str(" LIMIT 1");
        let unmarkable = !catalogue.columns.is_empty() && !kept.status;
        if !unmarkable {
            let wanted = Wanted {
                privilege: "UPDATE",
                table: &config.table,
                statement: &statement,
                lacking: Verdict::Failed,
                purpose: "published rows are marked by it",
            };
            subject.privilege(report, wanted).await?;
        }
    }
    let cleans_up = config.retention.is_some() && kept.status && kept.published_at;
    let (lacking, purpose) = match config.mark {
        Mark::Delete => (Verdict::Failed, "mark = delete deletes published rows"),
        Mark::Update if cleans_up => (
            Verdict::Warning,
            "published rows are deleted after retention; RELAY_RETENTION=off does without",
        ),
        Mark::Update | Mark::None => return Ok(()),
    };
    let statement = format!("EXPLAIN DELETE FROM {table} LIMIT 1");
    let wanted = Wanted {
        privilege: "DELETE",
        table: &config.table,
        statement: &statement,
        lacking,
        purpose,
    };
    subject.privilege(report, wanted).await
}

fn columns(report: &mut Report, config: &Config, catalogue: &Catalogue, table: &str) {
    for ((setting, name), field) in config.columns.settings().zip(FIELDS) {
        let Some(name) = name else { continue };
        let check = format!("column {}", name.as_str());
        if let Some(column) = catalogue.column(name.as_str()) {
            report.ok(check, &column.definition);
            continue;
        }
        let declaration = DECLARATIONS
            .iter()
            .find(|(key, _)| *key == setting)
            .map_or("", |(_, declaration)| declaration);
        let add = format!(
            "ALTER TABLE {table} ADD COLUMN {} {declaration}",
            name.quoted()
        );
        let variable = format!("RELAY_{}", setting.to_ascii_uppercase());
        if field.required {
            let found = format!("{table} has no such column ({variable} may name another)");
            report.failed(check, found, add);
        } else {
            let found =
                format!("{table} has no such column: events go without ({variable}=- says so)");
            report.warn(check, found, add);
        }
    }
}

/// Polling leases rows.
fn locks(report: &mut Report, config: &Config, catalogue: &Catalogue, table: &str) {
    let check = "columns for polling";
    let lacking = match config.source {
        SourceMode::Binlog => return,
        SourceMode::Auto => Verdict::Warning,
        SourceMode::Poll => Verdict::Failed,
    };
    if config.mark == Mark::None || config.columns.status().is_none() {
        let found = "rows that are not marked can't be polled";
        let mend =
            "set RELAY_MARK=update and RELAY_COLUMN_STATUS to a column, or RELAY_SOURCE=binlog";
        report.add(check, lacking, found, Some(mend.to_owned()));
        return;
    }
    let missing: Vec<&str> = [
        ("locked_by", "ADD COLUMN locked_by VARCHAR(128) NULL"),
        ("locked_until", "ADD COLUMN locked_until DATETIME(6) NULL"),
    ]
    .into_iter()
    .filter(|(name, _)| !catalogue.has(name))
    .map(|(_, add)| add)
    .collect();
    if missing.is_empty() {
        report.ok(check, "locked_by and locked_until are there");
    } else {
        let found = format!("{table} has no locked_by and locked_until to lease rows by");
        let add = format!("ALTER TABLE {table} {}", missing.join(", "));
        report.add(check, lacking, found, Some(add));
    }
}

async fn key(
    subject: &mut Subject,
    report: &mut Report,
    config: &Config,
    table: &str,
) -> Result<(), MysqlError> {
    let parts: Vec<(String, String)> = subject
        .session
        .rows(
            "read the outbox table's keys",
            "SELECT index_name, column_name FROM information_schema.statistics \
             WHERE table_schema = ? AND table_name = ? AND non_unique = 0 ORDER BY index_name, seq_in_index",
            (config.mysql.database(), config.table.as_str()),
        )
        .await?;
    let id = config.columns.id();
    let alone = |index: &str| parts.iter().filter(|(other, _)| other == index).count() == 1;
    let unique = parts
        .iter()
        .find(|(index, column)| column.eq_ignore_ascii_case(id.as_str()) && alone(index));
    match unique {
        Some((index, _)) => report.ok("key", format!("{} is unique by {index}", id.as_str())),
        None => report.failed(
            "key",
            format!("{} is not unique in {table}", id.as_str()),
            format!("ALTER TABLE {table} ADD UNIQUE KEY ({})", id.quoted()),
        ),
    }
    Ok(())
}

async fn index(
    subject: &mut Subject,
    report: &mut Report,
    config: &Config,
    catalogue: &Catalogue,
    table: &str,
) -> Result<(), MysqlError> {
    let Some(status) = config.columns.status() else {
        return Ok(());
    };
    if !catalogue.has(status.as_str()) {
        return Ok(());
    }
    let (status, id) = (status.quoted(), config.columns.id().quoted());
    match claim_index(config, &mut subject.session).await? {
        Some(index) => report.ok("index for unpublished rows", index),
        None => report.warn(
            "index for unpublished rows",
            format!("no index of {table} begins with {status} and {id}: each look for unpublished rows reads the whole table"),
            format!("CREATE INDEX idx_outbox_claim ON {table} ({status}, {id})"),
        ),
    }
    Ok(())
}
