//! Marks: how far a saga and its steps are, fenced by the epoch.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Transaction, Value};
use thiserror::Error;

use super::Lease;
use crate::commands::micros;
use crate::saga::StepStatus;
use crate::saga::machine::Progress;

/// When the saga is to be worked on next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::saga) enum Then {
    /// Now, by the holder of the lease.
    Keep,
    /// After that time, by anybody.
    Wait(Duration),
    /// Never.
    End,
}

/// One step forward, to be committed with the business change that belongs to it.
#[derive(Debug, Clone)]
pub(in crate::saga) struct Change {
    pub(in crate::saga) progress: Progress,
    /// The step whose mark changes, and its name.
    pub(in crate::saga) step: Option<(usize, String)>,
    /// What is told of the step.
    pub(in crate::saga) step_error: Option<String>,
    /// What is told of the saga.
    pub(in crate::saga) saga_error: Option<String>,
    pub(in crate::saga) then: Then,
}

/// Why a mark was not written.
#[derive(Debug, Error)]
pub(in crate::saga) enum MarkError {
    /// Another worker has taken over: everything is to be rolled back.
    #[error("another worker has taken the saga over")]
    Fenced,
    #[error("cannot mark the saga")]
    Mysql(#[source] mysql_async::Error),
}

/// Writes a change, last in the transaction of its business rows: the saga's row is locked from here to the commit only,
/// so that the lease can be renewed and taken over meanwhile.
pub(in crate::saga) async fn mark(
    tx: &mut Transaction<'_>,
    lease: &Lease,
    time: Duration,
    change: &Change,
    output: Option<&str>,
) -> Result<(), MarkError> {
    mark_saga(tx, lease, time, change).await?;
    let Some((at, name)) = &change.step else {
        return Ok(());
    };
    let Some(mark) = change.progress.marks.get(*at) else {
        return Ok(());
    };
    let order = *at as u64 + 1;
    let begins = mark.status == StepStatus::Running && mark.attempts == 1;
    if begins && change.step_error.is_none() {
        return tx
            .exec_drop(
                "INSERT INTO saga_steps (saga_id, step_order, step_name, status, attempts, started_at) \
                 VALUES (?, ?, ?, 'RUNNING', 1, NOW(6)) \
                 ON DUPLICATE KEY UPDATE status = 'RUNNING', attempts = 1, started_at = NOW(6)",
                (&lease.id, order, name),
            )
            .await
            .map_err(MarkError::Mysql);
    }
    let mut set =
        "status = ?, attempts = ?, undo_attempts = ?, error = COALESCE(?, error)".to_owned();
    let mut values: Vec<Value> = vec![
        mark.status.as_str().into(),
        mark.attempts.into(),
        mark.undo_attempts.into(),
        change.step_error.as_deref().into(),
    ];
    if let Some(output) = output {
        set.push_str(", output = ?, completed_at = NOW(6)");
        values.push(output.into());
    }
    if mark.status == StepStatus::Compensated {
        set.push_str(", compensated_at = NOW(6)");
    }
    values.push(lease.id.as_str().into());
    values.push(order.into());
    tx.exec_drop(
        format!("UPDATE saga_steps SET {set} WHERE saga_id = ? AND step_order = ?"),
        Params::Positional(values),
    )
    .await
    .map_err(MarkError::Mysql)
}

/// The fence: no row of that epoch, no commit. Each variant of the update changes the row, so that none affected is none
/// found.
async fn mark_saga(
    tx: &mut Transaction<'_>,
    lease: &Lease,
    time: Duration,
    change: &Change,
) -> Result<(), MarkError> {
    let mut values: Vec<Value> = vec![
        change.progress.status.as_str().into(),
        change.progress.rounds.into(),
        change.saga_error.as_deref().into(),
    ];
    let due = match change.then {
        Then::Keep => {
            let time = micros(time);
            values.push(time.into());
            values.push(time.into());
            "locked_until = NOW(6) + INTERVAL ? MICROSECOND, next_attempt_at = NOW(6) + INTERVAL ? MICROSECOND"
        }
        Then::Wait(delay) => {
            values.push(micros(delay).into());
            "locked_by = NULL, locked_until = NULL, next_attempt_at = NOW(6) + INTERVAL ? MICROSECOND"
        }
        Then::End => "locked_by = NULL, locked_until = NULL, next_attempt_at = NULL",
    };
    values.push(lease.id.as_str().into());
    values.push(lease.epoch.into());
    values.push((&*lease.token).into());
    let statement = format!(
        "UPDATE saga_instances SET status = ?, attempts = ?, last_error = COALESCE(?, last_error), {due} \
         WHERE id = ? AND epoch = ? AND locked_by = ?"
    );
    tx.exec_drop(statement, Params::Positional(values))
        .await
        .map_err(MarkError::Mysql)?;
    if tx.affected_rows() == 0 {
        return Err(MarkError::Fenced);
    }
    Ok(())
}
