//! `app saga`: sagas as a person sees them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use reliability::mysql::Database;
use reliability::saga::{self, History, Retried, SagaStatus, StepHistory, Summary};

/// Prints the newest sagas, of one status or of any.
pub(crate) async fn list(
    database: &Database,
    status: Option<SagaStatus>,
    limit: u32,
    as_json: bool,
) -> Result<()> {
    let sagas = saga::list(database, status, limit).await?;
    if as_json {
        return print(&serde_json::to_string(&sagas).context("cannot write the list")?);
    }
    print(table(&sagas).trim_end())
}

/// Prints a saga and its steps.
pub(crate) async fn show(database: &Database, id: &str, as_json: bool) -> Result<()> {
    let Some(history) = saga::show(database, id).await? else {
        bail!("there is no saga {id}; see: app saga list");
    };
    if as_json {
        return print(&serde_json::to_string(&history).context("cannot write the saga")?);
    }
    print(timeline(&history).trim_end())
}

/// Makes a saga due now.
pub(crate) async fn retry(database: &Database, id: &str) -> Result<ExitCode> {
    let (line, code) = match saga::retry(database, id).await? {
        Retried::Due => (
            format!("saga {id} is due now: a worker will take it"),
            ExitCode::SUCCESS,
        ),
        Retried::InProgress => (
            format!("a worker has saga {id} at this moment; nothing was changed"),
            ExitCode::FAILURE,
        ),
        Retried::Ended(status) => (
            format!("saga {id} has ended: {status}; there is nothing to try again"),
            ExitCode::FAILURE,
        ),
        Retried::NotFound => bail!("there is no saga {id}; see: app saga list"),
    };
    print(&line)?;
    Ok(code)
}

fn print(text: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{text}").context("cannot print")
}

fn table(sagas: &[Summary]) -> String {
    if sagas.is_empty() {
        return "no sagas".to_owned();
    }
    let mut text = format!(
        "{:36}  {:19}  {:20}  {:27}  ERROR\n",
        "ID", "STATUS", "ABOUT", "CREATED"
    );
    for saga in sagas {
        let error = saga.error.as_deref().unwrap_or_default();
        // Writing to a String does not fail.
        writeln!(
            text,
            "{:36}  {:19}  {:20}  {:27}  {error}",
            saga.id,
            saga.status.to_string(),
            saga.correlation_id,
            saga.created_at
        )
        .ok();
    }
    text
}

fn timeline(history: &History) -> String {
    let saga = &history.summary;
    let mut text = format!(
        "saga     {}\ntype     {} version {}\nabout    {}\nstatus   {}\ncreated  {}\nupdated  {}\n",
        saga.id,
        saga.saga_type,
        saga.version,
        saga.correlation_id,
        saga.status,
        saga.created_at,
        saga.updated_at
    );
    let more = [
        ("error    ", &saga.error),
        ("due      ", &saga.next_attempt_at),
        ("worker   ", &saga.locked_by),
    ];
    for (name, value) in more {
        if let Some(value) = value {
            writeln!(text, "{name}{value}").ok();
        }
    }
    for step in &history.steps {
        text.push_str(&moments(step));
    }
    text
}

/// A step: what it is now, and a line for each moment that is known.
fn moments(step: &StepHistory) -> String {
    let mut text = format!("\n{}. {:16}  {}", step.order, step.name, step.status);
    write!(text, ", {}", times(step.attempts, "tried")).ok();
    if step.undo_attempts > 0 {
        write!(text, ", {}", times(step.undo_attempts, "undo tried")).ok();
    }
    text.push('\n');
    let moments = [
        ("started", &step.started_at),
        ("done", &step.completed_at),
        ("undone", &step.compensated_at),
        ("error", &step.error),
    ];
    for (name, moment) in moments {
        if let Some(moment) = moment {
            writeln!(text, "   {name:8} {moment}").ok();
        }
    }
    text
}

fn times(count: u32, what: &str) -> String {
    match count {
        1 => format!("{what} once"),
        count => format!("{what} {count} times"),
    }
}

#[cfg(test)]
mod tests {
    use reliability::saga::StepStatus;
    use serde_json::Value;

    use super::*;

    fn history() -> History {
        let text = |text: &str| Some(text.to_owned());
        History {
            summary: Summary {
                id: "0190".to_owned(),
                saga_type: "CreateOrderSaga".to_owned(),
                version: 1,
                correlation_id: "order:7".to_owned(),
                status: SagaStatus::CompensationFailed,
                error: text("refund refused"),
                failed_rounds: 2,
                locked_by: None,
                next_attempt_at: text("2026-01-31T23:59:59.000000Z"),
                created_at: "2026-01-31T23:50:00.000000Z".to_owned(),
                updated_at: "2026-01-31T23:51:00.000000Z".to_owned(),
            },
            payload: Value::Null,
            steps: vec![StepHistory {
                order: 2,
                name: "ChargePayment".to_owned(),
                status: StepStatus::CompensationFailed,
                attempts: 1,
                undo_attempts: 3,
                error: text("refund refused"),
                output: None,
                started_at: text("2026-01-31T23:50:01.000000Z"),
                completed_at: text("2026-01-31T23:50:02.000000Z"),
                compensated_at: None,
            }],
        }
    }

    #[test]
    fn a_timeline_tells_what_is_stuck_and_when_it_is_due() {
        let text = timeline(&history());
        for line in [
            "status   COMPENSATION_FAILED",
            "error    refund refused",
            "due      2026-01-31T23:59:59.000000Z",
            "2. ChargePayment     COMPENSATION_FAILED, tried once, undo tried 3 times",
            "   done     2026-01-31T23:50:02.000000Z",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(!text.contains("undone"), "{text}");
    }

    #[test]
    fn a_table_has_a_line_for_each_saga() {
        let text = table(&[history().summary]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("order:7"), "{text}");
        assert_eq!(table(&[]), "no sagas");
    }
}
