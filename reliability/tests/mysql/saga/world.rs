//! A saga of three steps against a simulated remote ledger and one local table, with every way to fail.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mysql_async::Transaction;
use mysql_async::prelude::Queryable as _;
use reliability::migrate;
use reliability::mysql::Database;
use reliability::mysql::IsolationLevel::ReadCommitted;
use reliability::resilience::Backoff;
use reliability::saga::{
    self, Context, Definition, Ending, Engine, Failure, Hooks, Kind, Policy, SagaStatus, Settings,
    Step,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::Place;

/// What a saga is started with: nothing that matters.
pub(crate) const KIND: Kind<String> = Kind::new("test", 1);

/// What a part of a step is told to do, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Fine,
    Refuse,
    Technical,
    /// Done, but the answer is lost.
    LoseAnswer,
    /// Not done, and nobody knows.
    LoseRequest,
    Panic,
    /// Never answers.
    Hang,
}

/// What happens at the point whose number is the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The worker is gone: nothing it does comes through any more.
    Crash,
    /// A connection is cut at a commit, a step panics.
    Hurt,
}

/// Counts the points that a run passes, and fails it at one of them.
pub(crate) struct Faults {
    passed: AtomicUsize,
    target: usize,
    pub(crate) fault: Fault,
    pub(crate) tripped: CancellationToken,
}

impl Faults {
    pub(crate) fn at(target: usize, fault: Fault) -> Self {
        Self {
            passed: AtomicUsize::new(0),
            target,
            fault,
            tripped: CancellationToken::new(),
        }
    }

    pub(crate) fn none() -> Self {
        Self::at(usize::MAX, Fault::Crash)
    }

    pub(crate) fn passed(&self) -> usize {
        self.passed.load(Ordering::SeqCst)
    }

    /// Whether this is the one. After a crash, nothing gets any further.
    pub(crate) async fn pass(&self) -> bool {
        if self.fault == Fault::Crash && self.tripped.is_cancelled() {
            std::future::pending::<()>().await;
        }
        let hit = self.passed.fetch_add(1, Ordering::SeqCst) == self.target;
        if hit {
            self.tripped.cancel();
            if self.fault == Fault::Crash {
                std::future::pending::<()>().await;
            }
        }
        hit
    }
}

/// Stops whoever comes to the point of that name, once.
pub(crate) struct Gate {
    point: String,
    pub(crate) reached: CancellationToken,
    pub(crate) open: CancellationToken,
}

/// The other side: does the work of a key once, and refuses it after its undo.
#[derive(Default)]
pub(crate) struct Ledger {
    /// By the forward key: done or undone.
    pub(crate) entries: BTreeMap<String, bool>,
    pub(crate) calls: BTreeMap<String, u32>,
}

/// Everything that the steps of a test share.
pub(crate) struct World {
    pub(crate) faults: Faults,
    pub(crate) ledger: Mutex<Ledger>,
    acts: Mutex<BTreeMap<&'static str, VecDeque<Act>>>,
    gate: Mutex<Option<Arc<Gate>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(crate) fn new(faults: Faults) -> Arc<Self> {
        Arc::new(Self {
            faults,
            ledger: Mutex::default(),
            acts: Mutex::default(),
            gate: Mutex::default(),
        })
    }

    /// The same other side, for another worker.
    pub(crate) fn after(other: &Self) -> Arc<Self> {
        let world = Self::new(Faults::none());
        *lock(&world.ledger) = std::mem::take(&mut *lock(&other.ledger));
        *lock(&world.acts) = lock(&other.acts).clone();
        world
    }

    /// Scripts a part (`do a`, `record a`, `undo a`, `unrecord a`, `end`): the last act is for all that follow.
    pub(crate) fn script(&self, part: &'static str, acts: &[Act]) {
        lock(&self.acts).insert(part, acts.iter().copied().collect());
    }

    pub(crate) fn gate(&self, point: &str) -> Arc<Gate> {
        let gate = Arc::new(Gate {
            point: point.to_owned(),
            reached: CancellationToken::new(),
            open: CancellationToken::new(),
        });
        *lock(&self.gate) = Some(gate.clone());
        gate
    }

    fn act(&self, part: &str) -> Act {
        let mut acts = lock(&self.acts);
        let Some(queue) = acts.get_mut(part) else {
            return Act::Fine;
        };
        if queue.len() > 1 {
            queue.pop_front().unwrap_or(Act::Fine)
        } else {
            queue.front().copied().unwrap_or(Act::Fine)
        }
    }

    async fn point(&self, name: &str) {
        let gate = {
            let mut gate = lock(&self.gate);
            gate.take_if(|gate| gate.point == name)
        };
        if let Some(gate) = gate {
            gate.reached.cancel();
            gate.open.cancelled().await;
        }
        if self.faults.pass().await {
            std::panic::resume_unwind(Box::new(format!("hurt at {name}")));
        }
    }

    /// Does a part as it is scripted, with `work` for what it does.
    async fn part<T>(
        &self,
        part: &str,
        work: impl AsyncFnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.point(&format!("{part}: before")).await;
        let act = self.act(part);
        match act {
            Act::Refuse => return Err(Failure::refused("it is refused")),
            Act::Technical => return Err(Failure::technical("it is broken")),
            Act::LoseRequest => return Err(Failure::unknown("it is lost")),
            Act::Panic => std::panic::resume_unwind(Box::new("it is a bomb")),
            Act::Hang => std::future::pending().await,
            Act::Fine | Act::LoseAnswer => {}
        }
        let done = work().await?;
        self.point(&format!("{part}: after")).await;
        if act == Act::LoseAnswer {
            return Err(Failure::unknown("the answer is lost"));
        }
        Ok(done)
    }

    fn remote_do(&self, key: &str) -> Result<(), Failure> {
        let mut ledger = lock(&self.ledger);
        *ledger.calls.entry(key.to_owned()).or_default() += 1;
        match ledger.entries.get(key) {
            Some(true) => Ok(()),
            Some(false) => Err(Failure::refused("too late: it is undone")),
            None => {
                ledger.entries.insert(key.to_owned(), true);
                Ok(())
            }
        }
    }

    fn remote_undo(&self, do_key: &str, key: &str) {
        let mut ledger = lock(&self.ledger);
        *ledger.calls.entry(key.to_owned()).or_default() += 1;
        // Also for a key that never came: a tombstone.
        ledger.entries.insert(do_key.to_owned(), false);
    }

    /// How often that key was called.
    pub(crate) fn calls(&self, saga: &str, step: &str, what: &str) -> u32 {
        let key = format!("{saga}:{step}:{what}");
        lock(&self.ledger).calls.get(&key).copied().unwrap_or(0)
    }

    /// What is done for a saga on the other side, and not undone.
    pub(crate) fn balance(&self, saga: &str) -> Vec<String> {
        let ledger = lock(&self.ledger);
        let mut done = Vec::new();
        for (key, is_done) in &ledger.entries {
            if let (Some(rest), true) = (key.strip_prefix(&format!("{saga}:")), is_done) {
                done.push(rest.trim_end_matches(":do").to_owned());
            }
        }
        done
    }

    /// The three steps: `a` and `c` remote with rows of their own, `b` local.
    pub(crate) fn definition(self: &Arc<Self>) -> Result<Definition> {
        self.define(KIND, policy(), None)
    }

    /// The same with another policy, and a pivot.
    pub(crate) fn define(
        self: &Arc<Self>,
        kind: Kind<String>,
        policy: Policy,
        pivot: Option<&str>,
    ) -> Result<Definition> {
        let mut builder = Definition::of(kind);
        for name in ["a", "b", "c"] {
            let (world, policy) = (self.clone(), policy.clone());
            builder = match (name, pivot == Some(name)) {
                ("b", false) => builder.step(name, policy, Local(world)),
                ("b", true) => builder.pivot(name, policy, Local(world)),
                (_, false) => builder.step(name, policy, Remote(world)),
                (_, true) => builder.pivot(name, policy, Remote(world)),
            };
        }
        Ok(builder.hooks(AtEnd(self.clone())).build()?)
    }

    pub(crate) fn engine(self: &Arc<Self>, database: &Database) -> Result<Engine> {
        Ok(Engine::new(
            database.clone(),
            vec![self.definition()?],
            settings(),
        )?)
    }
}

/// Three attempts, milliseconds apart.
pub(crate) fn policy() -> Policy {
    Policy {
        backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(4)),
        ..Policy::default()
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        concurrency: 1,
        poll_interval: Duration::from_millis(20),
        stuck_backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(20)),
        ..Settings::default()
    }
}

struct Remote(Arc<World>);
struct Local(Arc<World>);
struct AtEnd(Arc<World>);

async fn count(tx: &mut Transaction<'_>, saga: &str, step: &str, n: i32) -> Result<(), Failure> {
    let insert = "INSERT INTO effects (saga_id, step, n) VALUES (?, ?, ?)";
    Ok(tx.exec_drop(insert, (saga, step, n)).await?)
}

async fn record(
    world: &World,
    tx: &mut Transaction<'_>,
    cx: &Context<'_, String>,
) -> Result<(), Failure> {
    let work = async || count(tx, cx.saga_id(), cx.step(), 1).await;
    world.part(&format!("record {}", cx.step()), work).await
}

async fn unrecord(
    world: &World,
    tx: &mut Transaction<'_>,
    cx: &Context<'_, String>,
) -> Result<(), Failure> {
    let work = async || match cx.recorded() {
        true => count(tx, cx.saga_id(), cx.step(), -1).await,
        false => Ok(()),
    };
    world.part(&format!("unrecord {}", cx.step()), work).await
}

impl Step<String> for Remote {
    async fn call(&self, cx: &Context<'_, String>) -> Result<Value, Failure> {
        let key = cx.key();
        let work = async || self.0.remote_do(&key);
        self.0.part(&format!("do {}", cx.step()), work).await?;
        Ok(json!({ "step": cx.step() }))
    }

    async fn record(
        &self,
        tx: &mut Transaction<'_>,
        cx: &Context<'_, String>,
        output: Value,
    ) -> Result<Value, Failure> {
        record(&self.0, tx, cx).await?;
        Ok(output)
    }

    async fn undo_call(&self, cx: &Context<'_, String>) -> Result<(), Failure> {
        let work = async || {
            self.0.remote_undo(&cx.do_key(), &cx.key());
            Ok(())
        };
        self.0.part(&format!("undo {}", cx.step()), work).await
    }

    async fn undo_record(
        &self,
        tx: &mut Transaction<'_>,
        cx: &Context<'_, String>,
    ) -> Result<(), Failure> {
        unrecord(&self.0, tx, cx).await
    }
}

impl Step<String> for Local {
    const REMOTE: bool = false;

    async fn record(
        &self,
        tx: &mut Transaction<'_>,
        cx: &Context<'_, String>,
        _: Value,
    ) -> Result<Value, Failure> {
        record(&self.0, tx, cx).await?;
        // What came before is seen.
        let before: Option<Value> = cx.output("a")?;
        Ok(json!({ "a": before }))
    }

    async fn undo_record(
        &self,
        tx: &mut Transaction<'_>,
        cx: &Context<'_, String>,
    ) -> Result<(), Failure> {
        unrecord(&self.0, tx, cx).await
    }
}

impl Hooks<String> for AtEnd {
    async fn on_completed(
        &self,
        tx: &mut Transaction<'_>,
        end: &Ending<'_, String>,
    ) -> Result<(), Failure> {
        let work = async || count(tx, end.saga_id(), "completed", 1).await;
        self.0.part("end", work).await
    }

    async fn on_compensated(
        &self,
        tx: &mut Transaction<'_>,
        end: &Ending<'_, String>,
    ) -> Result<(), Failure> {
        if end.error().is_none() {
            return Err(Failure::technical("no reason is given"));
        }
        let work = async || count(tx, end.saga_id(), "compensated", 1).await;
        self.0.part("end", work).await
    }
}

/// The library's tables and the steps' own.
pub(crate) async fn database(place: &Place) -> Result<Database> {
    let mut conn = place.connect().await?;
    let all = [migrate::OUTBOX, migrate::RELIABILITY, migrate::LEASES];
    migrate::run(&mut conn, &all).await?;
    // No unique key: what happens twice is seen.
    conn.query_drop(
        "CREATE TABLE effects (id BIGINT AUTO_INCREMENT PRIMARY KEY, saga_id CHAR(36) NOT NULL, \
         step VARCHAR(16) NOT NULL, n INT NOT NULL, KEY (saga_id, step))",
    )
    .await?;
    conn.disconnect().await?;
    Ok(Database::new(
        &place.url,
        reliability::mysql::Settings {
            max_connections: 24,
            acquire_timeout: Duration::from_secs(30),
            ..Default::default()
        },
    ))
}

pub(crate) async fn start(database: &Database, correlation: &str) -> Result<String> {
    start_kind(database, KIND, correlation).await
}

pub(crate) async fn start_kind(
    database: &Database,
    kind: Kind<String>,
    correlation: &str,
) -> Result<String> {
    let payload = "payload".to_owned();
    let started = database
        .transaction(ReadCommitted, async |tx| {
            saga::start(tx, kind, correlation, &payload).await
        })
        .await?;
    Ok(started.id)
}

/// As if the time of a lease, or of a wait, had passed.
pub(crate) async fn expire(database: &Database, saga: &str) -> Result<()> {
    let mut conn = database.connection().await?;
    let sql = "UPDATE saga_instances SET next_attempt_at = NOW(6), \
        locked_until = IF(locked_by IS NULL, NULL, NOW(6)) WHERE id = ? AND next_attempt_at IS NOT NULL";
    Ok(conn.exec_drop(sql, (saga,)).await?)
}

pub(crate) async fn status(database: &Database, saga: &str) -> Result<SagaStatus> {
    let history = saga::show(database, saga).await?.context("no saga")?;
    Ok(history.summary.status)
}

/// Waits until a saga has that status.
pub(crate) async fn until(database: &Database, saga: &str, wanted: SagaStatus) -> Result<()> {
    let seen = async {
        while status(database, saga).await? != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(Duration::from_secs(60), seen).await {
        Ok(seen) => seen,
        Err(_) => {
            let history = saga::show(database, saga).await?;
            anyhow::bail!("never {wanted}: {history:#?}")
        }
    }
}

/// The sums of the local rows of a saga, by step, without those that are zero.
pub(crate) async fn local(database: &Database, saga: &str) -> Result<Vec<(String, i64)>> {
    let mut conn = database.connection().await?;
    let sums = "SELECT step, CAST(SUM(n) AS SIGNED) FROM effects WHERE saga_id = ? \
        GROUP BY step HAVING SUM(n) <> 0 ORDER BY step";
    Ok(conn.exec(sums, (saga,)).await?)
}

/// The saga has ended so that both sides agree.
pub(crate) async fn balanced(
    world: &World,
    database: &Database,
    saga: &str,
    wanted: SagaStatus,
) -> Result<()> {
    let history = saga::show(database, saga).await?.context("no saga")?;
    let seen = (world.balance(saga), local(database, saga).await?);
    let one = |steps: &[&str]| {
        let pair = |step: &&str| ((*step).to_owned(), 1_i64);
        steps.iter().map(pair).collect::<Vec<_>>()
    };
    let right = if wanted == SagaStatus::Completed {
        let done = vec!["a".to_owned(), "c".to_owned()];
        (done, one(&["a", "b", "c", "completed"]))
    } else {
        (Vec::new(), one(&["compensated"]))
    };
    ensure!(
        history.summary.status == wanted && seen == right,
        "{seen:?} instead of {right:?}: {history:#?}"
    );
    ensure!(
        history.summary.locked_by.is_none() && history.summary.next_attempt_at.is_none(),
        "{history:#?}"
    );
    Ok(())
}

/// An engine at work; dropped, it is gone as after a crash.
pub(crate) struct Worker {
    stop: CancellationToken,
    task: tokio::task::JoinSet<()>,
}

impl Worker {
    pub(crate) fn new(engine: &Engine) -> Self {
        let (engine, stop) = (engine.clone(), CancellationToken::new());
        let mut task = tokio::task::JoinSet::new();
        task.spawn({
            let stop = stop.clone();
            async move { engine.run(stop).await }
        });
        Self { stop, task }
    }

    pub(crate) async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        let stopped = tokio::time::timeout(Duration::from_secs(60), self.task.join_next());
        Ok(stopped
            .await
            .context("it does not stop")?
            .context("no task")??)
    }
}
