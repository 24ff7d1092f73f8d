//! What MySQL tells of a relay: who leads, the checkpoint against the server's position, rows and dead letters.

use mysql_async::Params;
use serde::Serialize;

use crate::catalogue::catalogue;
use crate::checkpoint::{self, CheckpointError};
use crate::config::{Config, Identifier};
use crate::leader::lock_name;
use crate::mysql::{MysqlError, Server, Session};
use crate::position::Position;
use crate::table::Table;

/// Rows of one kind that are counted at the most: the count must not cost what the table's growth makes it cost.
pub const COUNTED: u64 = 100_000;

/// What MySQL tells.
#[derive(Debug, Serialize)]
pub struct Stored {
    /// Name of the relay.
    pub name: String,
    /// Which server was asked.
    pub server: String,
    /// Its version.
    pub version: String,
    /// Connection that holds the lock of this relay's name; none if no relay leads.
    pub leader_connection: Option<u64>,
    /// The checkpoint; none before the first start.
    pub checkpoint: Option<CheckpointSeen>,
    /// Where the server's binlog ends; none if it does not tell.
    pub server_position: Option<String>,
    /// Whether the checkpoint has reached that; none where there is no telling.
    pub caught_up: Option<bool>,
    /// The outbox rows by status, if the table has a status column.
    pub rows: Option<Rows>,
    /// Dead letters, up to [`COUNTED`].
    pub dead_letters: u64,
}

/// A checkpoint as it is stored.
#[derive(Debug, Serialize)]
pub struct CheckpointSeen {
    /// How many relays of this name have led.
    pub epoch: u64,
    /// Everything up to here is dealt with; none asks for a snapshot.
    pub position: Option<String>,
    /// Host and process that wrote it.
    pub owner: Option<String>,
    /// Seconds since.
    pub age_seconds: f64,
}

/// Outbox rows, each up to [`COUNTED`].
#[derive(Debug, Serialize)]
pub struct Rows {
    /// Not published.
    pub pending: u64,
    /// Claimed by polling.
    pub processing: u64,
    /// Given up.
    pub failed: u64,
    /// Age of the first unpublished row, in seconds.
    pub oldest_pending_seconds: Option<f64>,
}

/// Asks.
///
/// # Errors
/// MySQL or the checkpoint's file said no.
pub async fn look(config: &Config, session: &mut Session) -> Result<Stored, CheckpointError> {
    let server = Server::inspect(session).await?;
    let leader: Option<(Option<u64>,)> = session
        .rows(
            "ask who leads",
            "SELECT IS_USED_LOCK(?)",
            (lock_name(config),),
        )
        .await?
        .into_iter()
        .next();
    // The checkpoint first: it may be behind the server by what was written in between, but never falsely ahead of it.
    let seen = checkpoint::see(config, session).await?;
    let head = match server.head(session).await {
        Ok(head) => head.ok(),
        // Without the grant the rest is still worth showing.
        Err(error) if error.code().is_some() => None,
        Err(error) => return Err(error.into()),
    };
    let position = seen
        .as_ref()
        .and_then(|seen| seen.checkpoint.position.clone());
    let caught_up = position
        .as_ref()
        .zip(head.as_ref())
        .and_then(|(at, head)| comparable(at, head));
    let catalogue = catalogue(config, session).await?;
    let table = Table::new(config, &catalogue);
    let created = config.columns.of_setting("column_created_at");
    let created = created.filter(|name| catalogue.has(name.as_str()));
    let rows = if table.kept.status {
        Some(rows(&table, created, session).await?)
    } else {
        None
    };
    let letters = format!("FROM {}", config.dead_letter_table.quoted());
    Ok(Stored {
        name: config.name.clone(),
        server: session.server_name().to_string(),
        version: server.version.clone(),
        leader_connection: leader.and_then(|(connection,)| connection),
        checkpoint: seen.map(|seen| CheckpointSeen {
            epoch: seen.checkpoint.epoch,
            position: seen.checkpoint.position.as_ref().map(Position::to_string),
            owner: seen.owner,
            age_seconds: seen.age.as_secs_f64(),
        }),
        server_position: head.as_ref().map(Position::to_string),
        caught_up,
        rows,
        dead_letters: count(session, "count dead letters", &letters).await?,
    })
}

/// Whether `at` reaches `head`, if both are of one kind.
fn comparable(at: &Position, head: &Position) -> Option<bool> {
    (std::mem::discriminant(at) == std::mem::discriminant(head)).then(|| at.reaches(head))
}

async fn rows(
    table: &Table,
    created: Option<&Identifier>,
    session: &mut Session,
) -> Result<Rows, MysqlError> {
    let (name, status) = (&table.name, &table.status);
    let of = |word: &str| format!("FROM {name} WHERE {status} = '{word}'");
    let doing = "count outbox rows";
    let oldest_pending_seconds = match created.map(Identifier::quoted) {
        Some(created) => {
            let select = format!(
                "SELECT TIMESTAMPDIFF(MICROSECOND, {created}, NOW(6)) / 1000000 {} ORDER BY {} LIMIT 1",
                of("PENDING"),
                table.id
            );
            let oldest: Option<(Option<f64>,)> = session
                .first("look for the first unpublished row", &select)
                .await?;
            oldest.and_then(|(age,)| age).map(|age| age.max(0.0))
        }
        None => None,
    };
    Ok(Rows {
        pending: count(session, doing, &of("PENDING")).await?,
        processing: count(session, doing, &of("PROCESSING")).await?,
        failed: count(session, doing, &of("FAILED")).await?,
        oldest_pending_seconds,
    })
}

async fn count(session: &mut Session, doing: &'static str, from: &str) -> Result<u64, MysqlError> {
    let select = format!("SELECT COUNT(*) FROM (SELECT 1 {from} LIMIT {COUNTED}) AS counted");
    let rows: Vec<(u64,)> = session.rows(doing, select, Params::Empty).await?;
    Ok(rows.first().map_or(0, |(count,)| *count))
}
