//! `relay prune`.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::print;
use crate::config::{Config, duration};
use crate::metrics::Metrics;
use crate::mysql::{Session, conflicts};
use crate::retention::{BATCH, LARGEST_BATCH, Pruner};

/// What is old, where neither the command nor the configuration says so.
const MONTH: Duration = Duration::from_secs(30 * 86_400);

pub(super) fn command() -> Command {
    Command::new("prune")
        .about("Delete published rows that are old, in small batches; the running relay does so by itself (--retention)")
        .arg(
            Arg::new("older-than")
                .long("older-than")
                .value_name("DURATION")
                .value_parser(|text: &str| {
                    duration(text).map_err(|_| "it is no duration such as 12h or 30d")
                })
                .help("Only rows published longer ago than that, such as 12h or 30d [default: the setting retention]"),
        )
        .arg(
            Arg::new("batch")
                .long("batch")
                .value_name("N")
                .default_value(BATCH.to_string())
                .value_parser(value_parser!(u64).range(1..=LARGEST_BATCH as u64))
                .help("Rows deleted at once"),
        )
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Only count what would be deleted"),
        )
}

/// Deletes until no old row is left.
pub(super) fn main(config: &Config, arguments: &ArgMatches) -> anyhow::Result<()> {
    crate::telemetry::start(config)?;
    let given = arguments.get_one::<Duration>("older-than").copied();
    let age = given.or(config.retention).unwrap_or(MONTH);
    let batch = arguments.get_one::<u64>("batch").copied();
    let batch = batch
        .and_then(|batch| usize::try_from(batch).ok())
        .unwrap_or(BATCH);
    let dry = arguments.get_flag("dry-run");
    super::run::runtime()?.block_on(async {
        let metrics = Metrics::new().context("cannot set up the metrics")?;
        let session = Session::connect(config)
            .await
            .map_err(super::run::with_hint)?;
        let mut pruner = Pruner::open(config, session, age, batch, dry)
            .await
            .map_err(super::run::with_hint)??;
        let mut rows = 0;
        let mut progress = print::Progress::new();
        loop {
            let began = Instant::now();
            let batch = conflicts!(metrics, pruner.batch()).map_err(super::run::with_hint)?;
            rows += batch.rows;
            if !batch.more {
                break;
            }
            progress.show(|| format!("{rows} rows so far"));
            tokio::time::sleep(began.elapsed()).await;
        }
        progress.end();
        let done = if dry { "would be deleted" } else { "deleted" };
        print::line(&format!(
            "{rows} rows of {} {done}, published before {} UTC",
            pruner.table().replace('`', ""),
            pruner.cutoff()
        ))
    })
}
