//! Tests on both servers, and the SQL that tests of the binlog source share.

use anyhow::{Context as _, Result, bail, ensure};
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;

use crate::inbox::Inbox;
use crate::scene::Scene;
use crate::until::{Seen, until};

/// Tests of the calling module, as functions of a scene: in a module `mysql` and in a module `mariadb`.
#[macro_export]
macro_rules! on_servers {
    ($($server:ident $flavor:ident: $($name:ident),+ $(,)?;)+) => {
        $(mod $server {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> Result<(), $crate::scene::Failure> {
                    $crate::scene::run($crate::servers::Flavor::$flavor, super::$name).await
                }
            )+
        })+
    };
}

/// Tests of the calling module, as functions of a scene and of the server under it, which is the test's own and was
/// started with those arguments.
#[macro_export]
macro_rules! on_private_servers {
    ($($server:ident $flavor:ident $arguments:expr => $($name:ident),+ $(,)?;)+) => {
        $(mod $server {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> Result<(), $crate::scene::Failure> {
                    let flavor = $crate::servers::Flavor::$flavor;
                    $crate::scene::run_private(flavor, &$arguments, super::$name).await
                }
            )+
        })+
    };
}

/// `INSERT` of events with those keys, all of aggregate 1, so that their order is defined.
pub fn insert(keys: &[&str]) -> String {
    let rows: Vec<String> = keys.iter().map(|key| values(key)).collect();
    format!(
        "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, idempotency_key) VALUES {}",
        rows.join(", ")
    )
}

/// The values of one event, in the order of [`insert`].
pub fn values(key: &str) -> String {
    format!("('order', 1, 'OrderTouched', '{{\"k\": \"{key}\"}}', '{key}')")
}

/// Runs statements one after the other in one session.
///
/// # Errors
/// The first that fails.
pub async fn run(conn: &mut Conn, statements: &[&str]) -> Result<()> {
    for statement in statements {
        conn.query_drop(*statement)
            .await
            .with_context(|| format!("failed: {statement}"))?;
    }
    Ok(())
}

/// Runs statements in a session of their own.
///
/// # Errors
/// The first that fails.
pub async fn session(scene: &Scene, statements: &[&str]) -> Result<()> {
    let mut conn = scene.database.connect().await?;
    let ran = run(&mut conn, statements).await;
    // Not back into the pool: what the session has set ends with it.
    conn.disconnect().await?;
    ran
}

/// Waits until that event is delivered.
///
/// # Errors
/// The deadline passed.
pub async fn arrives(scene: &Scene, queue: &str, inbox: &mut Inbox, key: &str) -> Result<()> {
    scene
        .broker
        .take_until(queue, inbox, &format!("event {key}"), |inbox| {
            inbox.has(key)
        })
        .await
}

/// Asserts which events were delivered, in that order, each as often as it is named.
///
/// # Errors
/// It is something else.
pub fn delivered(inbox: &Inbox, expected: &[&str]) -> Result<()> {
    let keys: Vec<&str> = inbox.messages().iter().map(|m| m.key()).collect();
    ensure!(keys == expected, "delivered {keys:?}, not {expected:?}");
    Ok(())
}

/// Asserts which events were delivered first, in that order; some may have come again.
///
/// # Errors
/// It is something else.
pub fn delivered_at_least(inbox: &Inbox, expected: &[&str]) -> Result<()> {
    let keys: Vec<&str> = inbox.first_deliveries().collect();
    ensure!(keys == expected, "delivered {keys:?}, not {expected:?}");
    Ok(())
}

/// The position in the checkpoint row of the scene's relay.
///
/// # Errors
/// There is none.
pub async fn checkpoint(scene: &Scene) -> Result<String> {
    let mut conn = scene.database.connect().await?;
    let select = "SELECT position FROM relay_checkpoints WHERE name = ?";
    let position: Option<Option<String>> = conn.exec_first(select, (scene.name(),)).await?;
    position.flatten().context("no checkpoint")
}

/// Puts a position into the checkpoint row of the scene's relay, which must not run.
///
/// # Errors
/// There is no such row.
pub async fn set_checkpoint(scene: &Scene, position: &str) -> Result<()> {
    let mut conn = scene.database.connect().await?;
    let update = "UPDATE relay_checkpoints SET position = ? WHERE name = ?";
    conn.exec_drop(update, (position, scene.name())).await?;
    if conn.affected_rows() != 1 {
        bail!("no checkpoint row to change");
    }
    Ok(())
}

/// Decides a prepared XA transaction; MariaDB lets another session do so once it has noticed that the first is gone.
///
/// # Errors
/// The deadline passed.
pub async fn decide(scene: &Scene, statement: &str) -> Result<()> {
    until(statement, async || {
        Ok(match scene.database.execute(statement).await {
            Ok(()) => Seen::Yes(()),
            Err(error) => Seen::NotYet(format!("{error:#}")),
        })
    })
    .await
}
