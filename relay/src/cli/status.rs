//! `relay status`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{ArgMatches, Command};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpStream;

use super::print;
use crate::checkpoint::CheckpointError;
use crate::config::Config;
use crate::error::chain;
use crate::mysql::Session;
use crate::status::{self, COUNTED, Rows, Running, Stored};

/// A relay answers at once, or something is wrong with it.
const PATIENCE: Duration = Duration::from_secs(3);
/// A page of `/status` has a thousandth of that.
const LONGEST_PAGE: usize = 1 << 20;

const AFTER_HELP: &str = "\
What MySQL tells of the relay of that name, wherever it runs, and what the relay at http_addr says of itself, if one answers \
there. Nothing is changed.

Exit codes: 0 done, 1 MySQL can't be asked, 2 wrong usage or configuration.";

pub(super) fn command() -> Command {
    Command::new("status")
        .about("Show who leads, how far it has come, and what waits")
        .after_help(AFTER_HELP)
        .arg(print::json_flag())
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    stored: &'a Stored,
    /// What the relay at `http_addr` says of itself.
    running: Option<&'a Running>,
    /// Why there is no such answer.
    running_error: Option<String>,
}

/// Prints what is found.
pub(super) fn main(config: &Config, arguments: &ArgMatches) -> anyhow::Result<()> {
    super::run::runtime()?.block_on(async {
        let mut session = Session::connect(config)
            .await
            .map_err(super::run::with_hint)?;
        let stored = status::look(config, &mut session).await.map_err(told)?;
        let running = match config.http_addr {
            Some(address) => ask(address)
                .await
                .with_context(|| format!("no answer from http://{address}/status")),
            None => Err(anyhow!("HTTP is off (http_addr)")),
        };
        let report = Report {
            stored: &stored,
            running: running.as_ref().ok(),
            running_error: running.as_ref().err().map(|error| chain(error.as_ref())),
        };
        if arguments.get_flag("json") {
            return print::json(&report);
        }
        for line in lines(&report, config.http_addr) {
            print::line(&print::plain(&line))?;
        }
        Ok(())
    })
}

fn told(error: CheckpointError) -> anyhow::Error {
    match error {
        CheckpointError::Mysql(error) => super::run::with_hint(error),
        other => other.into(),
    }
}

async fn ask(address: SocketAddr) -> anyhow::Result<Running> {
    let asked = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = Request::get("/status")
            .header(HOST, address.to_string())
            .body(Empty::<Bytes>::new())?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let page = Limited::new(answer.into_body(), LONGEST_PAGE)
            .collect()
            .await
            .map_err(|error| anyhow!(error))?;
        connection.abort();
        anyhow::ensure!(status.is_success(), "it answers {status}");
        serde_json::from_slice(&page.to_bytes()).context("what it answers is not a relay's status")
    };
    tokio::time::timeout(PATIENCE, asked)
        .await
        .map_err(|_| anyhow!("none within {PATIENCE:?}"))?
}

fn lines(report: &Report<'_>, http: Option<SocketAddr>) -> Vec<String> {
    let stored = report.stored;
    let checkpoint = checkpoint_text(stored);
    let position = stored
        .checkpoint
        .as_ref()
        .and_then(|seen| seen.position.as_deref());
    let answer = match (report.running, http) {
        (Some(running), Some(address)) => {
            format!("at {address}: {}", running_text(running, &stored.name))
        }
        (Some(_), None) | (None, _) => report.running_error.clone().unwrap_or_default(),
    };
    [
        ("relay", Some(stored.name.clone())),
        (
            "server",
            Some(format!("{}, {}", stored.server, stored.version)),
        ),
        ("leader", Some(leader_text(stored))),
        ("checkpoint", Some(checkpoint)),
        ("position", position.map(str::to_owned)),
        ("binlog end", stored.server_position.clone()),
        ("rows", Some(rows_text(stored.rows.as_ref()))),
        (
            "letters",
            Some(format!("{} dead letters", counted(stored.dead_letters))),
        ),
        ("answer", Some(answer)),
    ]
    .into_iter()
    .filter_map(|(title, text)| Some(format!("{title:11} {}", text?)))
    .collect()
}

fn leader_text(stored: &Stored) -> String {
    match (stored.leader_connection, &stored.checkpoint) {
        (Some(connection), Some(seen)) => format!(
            "{} (connection {connection} holds the lock)",
            seen.owner.as_deref().unwrap_or("running")
        ),
        (Some(connection), None) => {
            format!("starting (connection {connection} holds the lock)")
        }
        (None, _) => "none: no relay of this name is running".to_owned(),
    }
}

fn checkpoint_text(stored: &Stored) -> String {
    let Some(seen) = &stored.checkpoint else {
        return "none: no relay of this name has led yet".to_owned();
    };
    let reached = match (&seen.position, stored.caught_up) {
        (None, _) => "; no position: it begins with the unpublished rows, or polls",
        (Some(_), Some(true)) => ", at the end of the binlog",
        (Some(_), Some(false)) => ", behind the end of the binlog",
        (Some(_), None) => "",
    };
    let age = seconds(seen.age_seconds);
    format!("epoch {}, written {age} ago{reached}", seen.epoch)
}

fn rows_text(rows: Option<&Rows>) -> String {
    let Some(rows) = rows else {
        return "not counted: the outbox table has no status column".to_owned();
    };
    let oldest = rows.oldest_pending_seconds.map(seconds);
    let oldest = oldest.map_or_else(String::new, |age| format!(" (the first for {age})"));
    format!(
        "{} PENDING{oldest}, {} PROCESSING, {} FAILED",
        counted(rows.pending),
        counted(rows.processing),
        counted(rows.failed)
    )
}

fn running_text(running: &Running, name: &str) -> String {
    let whose = if running.name == name {
        String::new()
    } else {
        format!("another relay, {}, ", running.name)
    };
    let ready = if running.ready {
        "ready".to_owned()
    } else {
        format!("not ready ({})", running.reasons.join("; "))
    };
    let source = Some(running.source.as_str()).filter(|source| !source.is_empty());
    format!(
        "{whose}{}, {ready}; source {}; circuit {}; {} events held, {} in flight; {} confirmed and {} dead-lettered since its start",
        running.role,
        source.unwrap_or("none yet"),
        running.circuit,
        running.held,
        running.in_flight,
        running.confirmed,
        running.dead_letters
    )
}

/// A count, or that there are more.
fn counted(count: u64) -> String {
    if count >= COUNTED {
        format!("{COUNTED} or more")
    } else {
        count.to_string()
    }
}

/// A time for people.
fn seconds(seconds: f64) -> String {
    match seconds {
        short if short < 120.0 => format!("{short:.1} s"),
        long if long < 7200.0 => format!("{:.0} min", long / 60.0),
        long if long < 172_800.0 => format!("{:.1} h", long / 3600.0),
        long => format!("{:.1} d", long / 86_400.0),
    }
}
