//! Claims, and what becomes of a claimed command.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Row, Transaction, Value};
use tokio::sync::{Notify, OnceCell};
use uuid::Uuid;

use super::run::Tally;
use super::{Command, CommandError, micros};
use crate::chain;
use crate::claim::Form;
use crate::mysql::Database;
use crate::mysql::IsolationLevel::ReadCommitted;
use crate::resilience::Backoff;

/// Due, and under nobody's lease. `available_at` is NULL once a command is DONE or FAILED.
const DUE: &str = "available_at <= NOW(6) AND status IN ('PENDING', 'PROCESSING') \
    AND (locked_until IS NULL OR locked_until <= NOW(6))";

/// How a queue's workers behave.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of this worker in `locked_by`, for people; at most 64 characters of it are used.
    pub worker: String,
    /// How long a claimed command is this worker's. Longer than a handler takes: what ends later is rolled back.
    pub lease: Duration,
    /// How often a command is tried before it is FAILED. At least 1.
    pub attempts: u32,
    /// The delay before each further attempt.
    pub backoff: Backoff,
    /// Commands handled at once by [`Queue::run`]. At least 1. Each holds a connection.
    pub concurrency: usize,
    /// Longest time between two looks for due commands.
    pub poll_interval: Duration,
    /// How long [`Queue::run`] waits for running handlers when it is told to stop.
    pub stop_timeout: Duration,
    /// How rows are claimed.
    pub form: Form,
}

impl Default for Settings {
    /// 60 s of lease, 10 attempts 0.5 to 10 s apart, 8 at once, a look each 0.5 s, 20 s to stop.
    fn default() -> Self {
        Self {
            worker: "worker".to_owned(),
            lease: Duration::from_secs(60),
            attempts: 10,
            backoff: Backoff::default(),
            concurrency: 8,
            poll_interval: Duration::from_millis(500),
            stop_timeout: Duration::from_secs(20),
            form: Form::Auto,
        }
    }
}

/// What became of a command whose attempt has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// It is due again after that time.
    Again(Duration),
    /// That was its last attempt: it is FAILED.
    GivenUp,
}

/// The commands of one database, as one worker sees them. Clones share everything.
#[derive(Clone)]
pub struct Queue {
    pub(super) database: Database,
    pub(super) settings: Arc<Settings>,
    pub(super) wake: Arc<Notify>,
    pub(super) tally: Arc<Tally>,
    form: Arc<OnceCell<Form>>,
}

impl Queue {
    /// A worker's view of the commands in `database`; it connects when used.
    #[must_use]
    pub fn new(database: Database, settings: Settings) -> Self {
        Self {
            database,
            settings: Arc::new(settings),
            wake: Arc::default(),
            tally: Arc::default(),
            form: Arc::default(),
        }
    }

    /// Lets [`Queue::run`] look for commands now: call it after the commit of one.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Leases up to `limit` due commands, those due longest first. One that was claimed as often as it may be is set
    /// FAILED instead: its workers died over it.
    ///
    /// # Errors
    /// The server or the connection failed. Commands that were leased all the same are due again when the lease is over.
    pub async fn claim(&self, limit: usize) -> Result<Vec<Command>, CommandError> {
        Ok(self.look(limit).await?.0)
    }

    /// The same; also whether as many commands were due as were asked for, whoever got them.
    pub(super) async fn look(&self, limit: usize) -> Result<(Vec<Command>, bool), CommandError> {
        if limit == 0 {
            return Ok((Vec::new(), false));
        }
        let form = self.form().await?;
        let worker: String = self.settings.worker.chars().take(64).collect();
        let token = format!("{worker}:{}", Uuid::new_v4());
        let (lease, attempts) = (
            micros(self.settings.lease),
            self.settings.attempts.clamp(1, i32::MAX as u32),
        );
        let claimed = self
            .database
            .transaction(ReadCommitted, {
                let token = token.clone();
                async move |tx| {
                    let ids: Vec<u64> = tx.exec(candidates(form), (limit,)).await?;
                    let Some(last) = ids.last().copied() else {
                        return Ok(((Vec::new(), 0), false));
                    };
                    let full = ids.len() == limit;
                    // One text of the statement, however many there are.
                    let mut padded = ids;
                    padded.resize(limit, last);
                    let taken = take(tx, &token, lease, attempts, &padded).await?;
                    Ok((taken, full))
                }
            })
            .await
            .map_err(|error| CommandError::Claim(Box::new(error)))?;
        let ((commands, given_up), full) = claimed;
        self.tally.claimed.add(commands.len() as u64);
        self.tally.given_up.add(given_up);
        Ok((commands, full))
    }

    /// Sets a command DONE, in the transaction of the change that it asked for.
    ///
    /// # Errors
    /// [`CommandError::Lost`] if it is another worker's by now: roll back. Or the server failed.
    pub async fn done(
        &self,
        tx: &mut Transaction<'_>,
        command: &Command,
    ) -> Result<(), CommandError> {
        mark_done(tx, command).await
    }

    /// Puts a command back after a failed attempt, or sets it FAILED after its last.
    ///
    /// # Errors
    /// [`CommandError::Lost`] if it is another worker's by now. Or the server or the connection failed.
    pub async fn failed(&self, command: &Command, error: &str) -> Result<Failed, CommandError> {
        let error = chain::cut(error.to_owned());
        if command.attempt >= self.settings.attempts.max(1) {
            let set = "status = 'FAILED', available_at = NULL, last_error = ?";
            self.give_back(command, set, vec![error.into()]).await?;
            self.tally.given_up.add(1);
            return Ok(Failed::GivenUp);
        }
        let delay = self
            .settings
            .backoff
            .delay(command.attempt.saturating_add(1));
        let set =
            "status = 'PENDING', available_at = NOW(6) + INTERVAL ? MICROSECOND, last_error = ?";
        let values = vec![micros(delay).into(), error.into()];
        self.give_back(command, set, values).await?;
        Ok(Failed::Again(delay))
    }

    /// Puts a command back as if it had not been claimed: due at once, and the attempt not counted.
    ///
    /// # Errors
    /// [`CommandError::Lost`] if it is another worker's by now. Or the server or the connection failed.
    pub async fn release(&self, command: &Command) -> Result<(), CommandError> {
        let set = "status = 'PENDING', available_at = NOW(6), attempts = attempts - 1";
        self.give_back(command, set, Vec::new()).await
    }

    async fn give_back(
        &self,
        command: &Command,
        set: &str,
        mut values: Vec<Value>,
    ) -> Result<(), CommandError> {
        let doing = "put a command back";
        let statement = format!(
            "UPDATE command_queue SET {set}, locked_by = NULL, locked_until = NULL \
             WHERE id = ? AND locked_by = ? AND status = 'PROCESSING'"
        );
        values.push(command.id.into());
        values.push(command.token.as_str().into());
        let mut conn = self.database.connection().await?;
        let outcome = conn.exec_drop(statement, Params::Positional(values)).await;
        outcome.map_err(|source| CommandError::Mysql { doing, source })?;
        if conn.affected_rows() == 0 {
            return Err(CommandError::Lost { id: command.id });
        }
        Ok(())
    }

    /// What EXPLAIN says of the statement that looks for due commands, one `column=value` after the other: is its index
    /// used, does it sort?
    ///
    /// # Errors
    /// The server or the connection failed.
    pub async fn claim_plan(&self) -> Result<String, CommandError> {
        let doing = "explain the claim";
        let form = self.form().await?;
        let mut conn = self.database.connection().await?;
        let statement = format!(
            "EXPLAIN FORMAT=TRADITIONAL {}",
            candidates(form).replace('?', "8")
        );
        let plan: Option<Row> = conn
            .query_first(statement)
            .await
            .map_err(|source| CommandError::Mysql { doing, source })?;
        Ok(plan.map(crate::mysql::describe).unwrap_or_default())
    }

    async fn form(&self) -> Result<Form, CommandError> {
        let form = self.form.get_or_try_init(|| async {
            let mut conn = self.database.connection().await?;
            let form = self.settings.form.resolve(&mut conn).await;
            form.map_err(|source| CommandError::Mysql {
                doing: "ask for the server's version",
                source,
            })
        });
        form.await.copied()
    }
}

/// Ids of due commands. Parameter: how many.
fn candidates(form: Form) -> String {
    let lock = match form {
        Form::Auto | Form::SkipLocked => " FOR UPDATE SKIP LOCKED",
        Form::Token => "",
    };
    // Without the hint the optimizer takes the index on the status while the table is small.
    format!(
        "SELECT id FROM command_queue FORCE INDEX (idx_command_due) WHERE {DUE} \
         ORDER BY available_at, id LIMIT ?{lock}"
    )
}

/// Leases those of `ids` that are still due; gives up those that have had their attempts.
async fn take(
    tx: &mut Transaction<'_>,
    token: &str,
    lease: u64,
    attempts: u32,
    ids: &[u64],
) -> mysql_async::Result<(Vec<Command>, u64)> {
    let list = vec!["?"; ids.len()].join(", ");
    let with_ids = |mut values: Vec<Value>| {
        values.extend(ids.iter().map(|id| Value::from(*id)));
        Params::Positional(values)
    };
    tx.exec_drop(
        format!(
            "UPDATE command_queue SET status = 'FAILED', available_at = NULL, locked_by = NULL, locked_until = NULL, \
             last_error = CONCAT(COALESCE(CONCAT(last_error, '; '), ''), 'gave up: a worker died over its last attempt') \
             WHERE {DUE} AND attempts >= ? AND id IN ({list})"
        ),
        with_ids(vec![attempts.into()]),
    )
    .await?;
    let given_up = tx.affected_rows();
    tx.exec_drop(
        format!(
            "UPDATE command_queue SET status = 'PROCESSING', locked_by = ?, attempts = attempts + 1, \
             locked_until = NOW(6) + INTERVAL ? MICROSECOND, available_at = NOW(6) + INTERVAL ? MICROSECOND \
             WHERE {DUE} AND id IN ({list})"
        ),
        with_ids(vec![token.into(), lease.into(), lease.into()]),
    )
    .await?;
    let rows: Vec<(u64, String, Option<String>, u32, String)> = tx
        .exec(
            format!(
                "SELECT id, command_type, command_key, attempts, payload FROM command_queue \
                 WHERE locked_by = ? AND status = 'PROCESSING' AND id IN ({list}) ORDER BY id"
            ),
            with_ids(vec![token.into()]),
        )
        .await?;
    let commands = rows
        .into_iter()
        .map(|(id, command_type, key, attempt, json)| Command {
            id,
            command_type,
            key,
            attempt,
            json,
            token: token.to_owned(),
        })
        .collect();
    Ok((commands, given_up))
}

/// Fenced by the token: the row is locked from here to the commit, which is next.
pub(super) async fn mark_done(
    tx: &mut Transaction<'_>,
    command: &Command,
) -> Result<(), CommandError> {
    tx.exec_drop(
        "UPDATE command_queue SET status = 'DONE', available_at = NULL, locked_by = NULL, \
         locked_until = NULL, last_error = NULL \
         WHERE id = ? AND locked_by = ? AND status = 'PROCESSING'",
        (command.id, &command.token),
    )
    .await
    .map_err(|source| CommandError::Mysql {
        doing: "set a command done",
        source,
    })?;
    if tx.affected_rows() == 0 {
        return Err(CommandError::Lost { id: command.id });
    }
    Ok(())
}
