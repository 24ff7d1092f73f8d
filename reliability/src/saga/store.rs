//! The rows of sagas: claims, leases, and marks fenced by the epoch.

mod mark;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Row, Transaction, Value};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::machine::Mark;
use super::{SagaError, SagaStatus, StepStatus};
use crate::claim::Form;
use crate::commands::micros;
use crate::mysql::IsolationLevel::ReadCommitted;
use crate::mysql::{Database, describe};

pub(super) use mark::{Change, MarkError, Then, mark};

/// Neither COMPLETED nor COMPENSATED.
const OPEN: &str = "status IN ('RUNNING', 'COMPENSATING', 'COMPENSATION_FAILED')";
/// Under nobody's lease.
const FREE: &str = "(locked_until IS NULL OR locked_until <= NOW(6))";

/// The right to work on a saga, until somebody else takes over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) id: String,
    pub(super) epoch: u64,
    token: Arc<str>,
}

/// A saga as it is stored.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) saga_type: String,
    pub(super) version: u32,
    pub(super) correlation_id: String,
    pub(super) payload: String,
    pub(super) error: Option<String>,
    pub(super) status: SagaStatus,
    pub(super) rounds: u32,
    /// By `step_order`, from 1: name, mark and output.
    pub(super) steps: BTreeMap<u32, (String, Mark, Option<String>)>,
}

/// The rows in one database.
pub(super) struct Store {
    pub(super) database: Database,
    lease: Duration,
    worker: String,
    wanted_form: Form,
    form: OnceCell<Form>,
}

impl Store {
    pub(super) fn new(database: Database, worker: &str, lease: Duration, form: Form) -> Self {
        Self {
            database,
            lease,
            worker: worker.chars().take(64).collect(),
            wanted_form: form,
            form: OnceCell::new(),
        }
    }

    /// Leases up to `limit` due sagas. Also how many of them other workers had left, and whether so many were due.
    pub(super) async fn claim(&self, limit: usize) -> Result<(Vec<Lease>, u64, bool), SagaError> {
        if limit == 0 {
            return Ok((Vec::new(), 0, false));
        }
        let form = self.form().await?;
        let token = self.token();
        let lease = micros(self.lease);
        let (rows, full) = self
            .database
            .transaction(ReadCommitted, {
                let token = token.clone();
                async move |tx| {
                    let found: Vec<(String, bool)> = tx.exec(candidates(form), (limit,)).await?;
                    let Some((last, _)) = found.last().cloned() else {
                        return Ok((Vec::new(), false));
                    };
                    let full = found.len() == limit;
                    let left: BTreeMap<String, bool> = found.into_iter().collect();
                    // One text of the statement, however many there are; in order, so that workers wait, and don't deadlock.
                    let mut ids: Vec<&str> = left.keys().map(String::as_str).collect();
                    ids.resize(limit, &last);
                    let taken = take(tx, &token, lease, &ids).await?;
                    let rows: Vec<(String, u64, bool)> = taken
                        .into_iter()
                        .map(|(id, epoch)| {
                            let left = left.get(&id).copied().unwrap_or(false);
                            (id, epoch, left)
                        })
                        .collect();
                    Ok((rows, full))
                }
            })
            .await
            .map_err(|error| SagaError::Claim(Box::new(error)))?;
        let taken_over = rows.iter().filter(|(_, _, left)| *left).count() as u64;
        let lease = |(id, epoch, _)| Lease {
            id,
            epoch,
            token: token.clone(),
        };
        Ok((rows.into_iter().map(lease).collect(), taken_over, full))
    }

    /// Leases that saga, due or not; nothing if it has ended, is under a lease, or is not there.
    pub(super) async fn claim_one(&self, id: &str) -> Result<Option<Lease>, SagaError> {
        let token = self.token();
        let lease = micros(self.lease);
        let taken =
            self.database
                .transaction(ReadCommitted, {
                    let (token, id) = (token.clone(), id.to_owned());
                    async move |tx| {
                        tx.exec_drop(
                        format!(
                            "UPDATE saga_instances SET {LEASE} WHERE {OPEN} AND {FREE} AND id = ?"),
                        (&*token, lease, lease, &id),
                    )
                    .await?;
                        if tx.affected_rows() == 0 {
                            return Ok(None);
                        }
                        tx.exec_first("SELECT epoch FROM saga_instances WHERE id = ?", (&id,))
                            .await
                    }
                })
                .await
                .map_err(|error| SagaError::Claim(Box::new(error)))?;
        let id = id.to_owned();
        Ok(taken.map(|epoch| Lease { id, epoch, token }))
    }

    /// Reads a saga; nothing if it is another worker's by now.
    ///
    /// With `settled`, waits for the end of a transaction of ours whose commit was not confirmed.
    pub(super) async fn load(
        &self,
        lease: &Lease,
        settled: bool,
    ) -> Result<Option<Stored>, SagaError> {
        let doing = "read a saga";
        let mut conn = self.database.connection().await?;
        let failed = |source| SagaError::Mysql { doing, source };
        if settled {
            // Alone in its transaction: it locks, and lets go.
            let lock = "SELECT epoch FROM saga_instances WHERE id = ? FOR UPDATE";
            conn.exec_drop(lock, (&lease.id,)).await.map_err(failed)?;
        }
        type Saga = (String, u32, String, String, String, Option<String>, u32);
        let saga: Option<Saga> = conn
            .exec_first(
                "SELECT saga_type, definition_version, correlation_id, status, payload, last_error, attempts \
                 FROM saga_instances WHERE id = ? AND epoch = ?",
                (&lease.id, lease.epoch),
            )
            .await
            .map_err(failed)?;
        let Some((saga_type, version, correlation_id, status, payload, error, rounds)) = saga
        else {
            return Ok(None);
        };
        type Step = (u32, String, String, u32, u32, bool, Option<String>);
        let steps: Vec<Step> = conn
            .exec(
                "SELECT step_order, step_name, status, attempts, undo_attempts, completed_at IS NOT NULL, output \
                 FROM saga_steps WHERE saga_id = ? ORDER BY step_order",
                (&lease.id,),
            )
            .await
            .map_err(failed)?;
        let steps = steps.into_iter();
        let steps = steps.map(
            |(order, name, status, attempts, undo_attempts, recorded, output)| {
                let mark = Mark {
                    // The column is an ENUM of these words, and of the empty one that MySQL puts for a wrong one.
                    status: StepStatus::parse(&status).unwrap_or(StepStatus::Running),
                    attempts,
                    undo_attempts,
                    recorded,
                };
                (order, (name, mark, output))
            },
        );
        Ok(Some(Stored {
            saga_type,
            version,
            correlation_id,
            payload,
            error,
            status: SagaStatus::parse(&status).unwrap_or(SagaStatus::Failed),
            rounds,
            steps: steps.collect(),
        }))
    }

    /// Renews a lease. Whether it is still ours.
    pub(super) async fn renew(&self, lease: &Lease) -> Result<bool, SagaError> {
        let time = micros(self.lease);
        self.update(
            lease,
            "locked_until = NOW(6) + INTERVAL ? MICROSECOND, next_attempt_at = NOW(6) + INTERVAL ? MICROSECOND",
            vec![time.into(), time.into()],
        )
        .await
    }

    /// Lets go of a saga: anybody may have it after `delay`. Whether it was still ours.
    pub(super) async fn release(
        &self,
        lease: &Lease,
        delay: Duration,
        error: Option<&str>,
    ) -> Result<bool, SagaError> {
        self.update(
            lease,
            "locked_by = NULL, locked_until = NULL, next_attempt_at = NOW(6) + INTERVAL ? MICROSECOND, \
             last_error = COALESCE(?, last_error)",
            vec![micros(delay).into(), error.into()],
        )
        .await
    }

    async fn update(
        &self,
        lease: &Lease,
        set: &str,
        mut values: Vec<Value>,
    ) -> Result<bool, SagaError> {
        values.push(lease.id.as_str().into());
        values.push(lease.epoch.into());
        values.push((&*lease.token).into());
        let statement =
            format!("UPDATE saga_instances SET {set} WHERE id = ? AND epoch = ? AND locked_by = ?");
        let mut conn = self.database.connection().await?;
        conn.exec_drop(statement, Params::Positional(values))
            .await
            .map_err(|source| SagaError::Mysql {
                doing: "renew or end a lease",
                source,
            })?;
        Ok(conn.affected_rows() > 0)
    }

    pub(super) async fn plan(&self) -> Result<String, SagaError> {
        let form = self.form().await?;
        let mut conn = self.database.connection().await?;
        let statement = candidates(form).replace('?', "8");
        let plan: Option<Row> = conn
            .query_first(format!("EXPLAIN FORMAT=TRADITIONAL {statement}"))
            .await
            .map_err(|source| SagaError::Mysql {
                doing: "explain the claim",
                source,
            })?;
        Ok(plan.map(describe).unwrap_or_default())
    }

    pub(super) fn lease_time(&self) -> Duration {
        self.lease
    }

    fn token(&self) -> Arc<str> {
        format!("{}:{}", self.worker, Uuid::new_v4()).into()
    }

    async fn form(&self) -> Result<Form, SagaError> {
        let form = self.form.get_or_try_init(|| async {
            let mut conn = self.database.connection().await?;
            let form = self.wanted_form.resolve(&mut conn).await;
            form.map_err(|source| SagaError::Mysql {
                doing: "ask for the server's version",
                source,
            })
        });
        form.await.copied()
    }
}

/// Takes a saga. Parameters: the token, and the lease's microseconds twice.
const LEASE: &str = "locked_by = ?, epoch = epoch + 1, locked_until = NOW(6) + INTERVAL ? MICROSECOND, \
    next_attempt_at = NOW(6) + INTERVAL ? MICROSECOND";

/// Due sagas: their ids, and whether a worker had them. Parameter: how many.
///
/// `next_attempt_at` is NULL once a saga has ended, so the index on it holds none of those.
fn candidates(form: Form) -> String {
    let lock = match form {
        Form::Auto | Form::SkipLocked => " FOR UPDATE SKIP LOCKED",
        Form::Token => "",
    };
    format!(
        "SELECT id, locked_by IS NOT NULL FROM saga_instances FORCE INDEX (idx_saga_next) \
         WHERE next_attempt_at <= NOW(6) AND {OPEN} AND {FREE} ORDER BY next_attempt_at, id LIMIT ?{lock}"
    )
}

/// Leases those of `ids` that are still due.
async fn take(
    tx: &mut Transaction<'_>,
    token: &str,
    lease: u64,
    ids: &[&str],
) -> mysql_async::Result<Vec<(String, u64)>> {
    let list = vec!["?"; ids.len()].join(", ");
    let with_ids = |mut values: Vec<Value>| {
        values.extend(ids.iter().map(|id| Value::from(*id)));
        Params::Positional(values)
    };
    tx.exec_drop(
        format!(
            "UPDATE saga_instances SET {LEASE} \
             WHERE next_attempt_at <= NOW(6) AND {OPEN} AND {FREE} AND id IN ({list})"
        ),
        with_ids(vec![token.into(), lease.into(), lease.into()]),
    )
    .await?;
    tx.exec(
        format!(
            "SELECT id, epoch FROM saga_instances WHERE locked_by = ? AND id IN ({list}) ORDER BY id"
        ),
        with_ids(vec![token.into()]),
    )
    .await
}
