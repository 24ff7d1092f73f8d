//! Sagas as an operator sees them. Times are UTC, as in `2026-01-31T23:59:59.123456Z`.

use mysql_async::Row;
use mysql_async::prelude::Queryable as _;
use serde::Serialize;
use serde_json::Value;

use super::{SagaError, SagaStatus, StepStatus};
use crate::mysql::Database;

/// How many sagas are on their way: gauges for an alert.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// RUNNING.
    pub running: u64,
    /// COMPENSATING.
    pub compensating: u64,
    /// COMPENSATION_FAILED: any at all is worth an alert.
    pub compensation_failed: u64,
}

/// One saga.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The saga.
    pub id: String,
    /// Its type.
    pub saga_type: String,
    /// The version of its definition.
    pub version: u32,
    /// What it is about.
    pub correlation_id: String,
    /// Where it is.
    pub status: SagaStatus,
    /// The failure of the undo that it is stuck at; else its last failure, or why it compensates.
    pub error: Option<String>,
    /// How often its compensation, or its end, has failed.
    pub failed_rounds: u32,
    /// The worker that has it.
    pub locked_by: Option<String>,
    /// When it is due, or the lease of its worker is over; nothing once it has ended.
    pub next_attempt_at: Option<String>,
    /// When it was started.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
}

/// One saga, with the steps that were tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct History {
    /// The saga.
    #[serde(flatten)]
    pub summary: Summary,
    /// What it was started with.
    pub payload: Value,
    /// In order.
    pub steps: Vec<StepHistory>,
}

/// A step that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepHistory {
    /// Its place, from 1.
    pub order: u32,
    /// Its name.
    pub name: String,
    /// Where it is.
    pub status: StepStatus,
    /// How often it was tried.
    pub attempts: u32,
    /// How often its undo was tried.
    pub undo_attempts: u32,
    /// Its last failure; also one that was overcome.
    pub error: Option<String>,
    /// What it gave.
    pub output: Option<Value>,
    /// When its first attempt began.
    pub started_at: Option<String>,
    /// When it was done and recorded.
    pub completed_at: Option<String>,
    /// When it was undone.
    pub compensated_at: Option<String>,
}

/// What [`retry`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retried {
    /// The saga is due now.
    Due,
    /// A worker has it at this moment.
    InProgress,
    /// It has ended.
    Ended(SagaStatus),
    /// There is none of that id.
    NotFound,
}

/// Counts the sagas on their way, from an index that gives only those.
///
/// # Errors
/// The server or the connection failed.
pub async fn overview(database: &Database) -> Result<Overview, SagaError> {
    let mut conn = database.connection().await?;
    let counts: Vec<(String, u64)> = conn
        .query(
            "SELECT CAST(status AS CHAR), COUNT(*) FROM saga_instances FORCE INDEX (idx_saga_status) \
             WHERE status IN ('RUNNING', 'COMPENSATING', 'COMPENSATION_FAILED') GROUP BY status",
        )
        .await
        .map_err(|source| failed("count sagas", source))?;
    let mut overview = Overview::default();
    for (status, count) in counts {
        match SagaStatus::parse(&status) {
            Some(SagaStatus::Running) => overview.running = count,
            Some(SagaStatus::Compensating) => overview.compensating = count,
            Some(SagaStatus::CompensationFailed) => overview.compensation_failed = count,
            Some(SagaStatus::Completed | SagaStatus::Failed | SagaStatus::Compensated) | None => {}
        }
    }
    Ok(overview)
}

/// The newest sagas, of one status or of any.
///
/// ```no_run
/// # async fn example(database: &reliability::mysql::Database) -> Result<(), reliability::saga::SagaError> {
/// use reliability::saga::{SagaStatus, list};
///
/// for saga in list(database, Some(SagaStatus::CompensationFailed), 50).await? {
///     tracing::error!(id = saga.id, error = saga.error, "stuck");
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
/// The server or the connection failed.
pub async fn list(
    database: &Database,
    status: Option<SagaStatus>,
    limit: u32,
) -> Result<Vec<Summary>, SagaError> {
    let mut conn = database.connection().await?;
    let filter = status.map_or_else(String::new, |status| format!("WHERE status = '{status}'"));
    let statement = format!(
        "{} {filter} ORDER BY id DESC LIMIT {limit}",
        summary_columns("")
    );
    let rows: Vec<Row> = conn
        .query(statement)
        .await
        .map_err(|source| failed("list sagas", source))?;
    Ok(rows.iter().map(summary).collect())
}

/// A saga with its steps; nothing if there is none of that id.
///
/// # Errors
/// The server or the connection failed.
pub async fn show(database: &Database, id: &str) -> Result<Option<History>, SagaError> {
    let doing = "show a saga";
    let mut conn = database.connection().await?;
    let statement = format!("{} WHERE id = ?", summary_columns(", payload"));
    let row: Option<Row> = conn
        .exec_first(statement, (id,))
        .await
        .map_err(|source| failed(doing, source))?;
    let Some(row) = row else {
        return Ok(None);
    };
    let times = ["started_at", "completed_at", "compensated_at"]
        .map(time)
        .join(", ");
    let steps: Vec<Row> = conn
        .exec(
            format!(
                "SELECT step_order, step_name, status, attempts, undo_attempts, error, output, {times} \
                 FROM saga_steps WHERE saga_id = ? ORDER BY step_order"
            ),
            (id,),
        )
        .await
        .map_err(|source| failed(doing, source))?;
    let step = |row: &Row| StepHistory {
        order: get(row, "step_order"),
        name: get(row, "step_name"),
        status: StepStatus::parse(&get::<String>(row, "status")).unwrap_or(StepStatus::Pending),
        attempts: get(row, "attempts"),
        undo_attempts: get(row, "undo_attempts"),
        error: get(row, "error"),
        output: get::<Option<String>>(row, "output").map(|output| json(&output)),
        started_at: get(row, "started_at"),
        completed_at: get(row, "completed_at"),
        compensated_at: get(row, "compensated_at"),
    };
    Ok(Some(History {
        summary: summary(&row),
        payload: json(&get::<String>(&row, "payload")),
        steps: steps.iter().map(step).collect(),
    }))
}

/// Makes a saga due now that waits, for one: whose compensation has failed. Workers find it by themselves; an
/// [`Engine::wake`](super::Engine::wake) in the same process saves them the wait.
///
/// # Errors
/// The server or the connection failed.
pub async fn retry(database: &Database, id: &str) -> Result<Retried, SagaError> {
    let doing = "retry a saga";
    let mut conn = database.connection().await?;
    conn.exec_drop(
        "UPDATE saga_instances SET next_attempt_at = NOW(6), attempts = 0 \
         WHERE id = ? AND status IN ('RUNNING', 'COMPENSATING', 'COMPENSATION_FAILED') \
         AND (locked_until IS NULL OR locked_until <= NOW(6))",
        (id,),
    )
    .await
    .map_err(|source| failed(doing, source))?;
    if conn.affected_rows() > 0 {
        return Ok(Retried::Due);
    }
    let status: Option<String> = conn
        .exec_first("SELECT status FROM saga_instances WHERE id = ?", (id,))
        .await
        .map_err(|source| failed(doing, source))?;
    let Some(status) = status else {
        return Ok(Retried::NotFound);
    };
    Ok(match SagaStatus::parse(&status) {
        Some(SagaStatus::Running | SagaStatus::Compensating | SagaStatus::CompensationFailed)
        | None => Retried::InProgress,
        Some(ended @ (SagaStatus::Completed | SagaStatus::Failed | SagaStatus::Compensated)) => {
            Retried::Ended(ended)
        }
    })
}

fn failed(doing: &'static str, source: mysql_async::Error) -> SagaError {
    SagaError::Mysql { doing, source }
}

fn summary_columns(more: &str) -> String {
    let times = ["next_attempt_at", "created_at", "updated_at"]
        .map(time)
        .join(", ");
    format!(
        "SELECT id, saga_type, definition_version, correlation_id, status, attempts, locked_by, {times}{more}, \
         COALESCE(IF(status = 'COMPENSATION_FAILED', (SELECT error FROM saga_steps AS step \
         WHERE step.saga_id = saga_instances.id AND step.status IN ('COMPENSATION_FAILED', 'COMPENSATING') LIMIT 1), \
         NULL), last_error) AS error FROM saga_instances"
    )
}

fn time(column: &str) -> String {
    format!("DATE_FORMAT({column}, '%Y-%m-%dT%H:%i:%s.%fZ') AS {column}")
}

fn summary(row: &Row) -> Summary {
    Summary {
        id: get(row, "id"),
        saga_type: get(row, "saga_type"),
        version: get(row, "definition_version"),
        correlation_id: get(row, "correlation_id"),
        status: SagaStatus::parse(&get::<String>(row, "status")).unwrap_or(SagaStatus::Failed),
        error: get(row, "error"),
        failed_rounds: get(row, "attempts"),
        locked_by: get(row, "locked_by"),
        next_attempt_at: get(row, "next_attempt_at"),
        created_at: get(row, "created_at"),
        updated_at: get(row, "updated_at"),
    }
}

/// A column, or nothing where it holds something else than it was made for.
fn get<T: mysql_async::prelude::FromValue + Default>(row: &Row, column: &str) -> T {
    row.get_opt(column).and_then(Result::ok).unwrap_or_default()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}
