//! `relay dlq list | show | replay | discard`.

use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::{actor, print};
use crate::config::{Config, duration};
use crate::dead_letter::{self, Clerk, Done, Filter, Ids, Letter, MOST_LETTERS, Refusal};
use crate::metrics::Metrics;
use crate::mysql::Session;

/// Refusals of a change of many that are told one by one.
const REFUSALS_TOLD: u64 = 20;

const AFTER_HELP: &str = "\
Examples:
  relay dlq list --error NO_ROUTE --since 24h
  relay dlq show 17 --json
  relay dlq replay 17 18
  relay dlq replay --all --type OrderCreated
  relay dlq discard 19

A letter that is sent again is deleted, and its outbox row is PENDING: the running relay publishes it. Each change is written
to relay_audit. Exit codes: 0 done, 1 failed or refused, 2 wrong usage or configuration.";

/// The command; `configured` adds the settings that its parts take.
pub(super) fn command(configured: impl Fn(Command) -> Command) -> Command {
    let json = || {
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .help("Print JSON")
    };
    let ids = || {
        Arg::new("id")
            .value_name("ID")
            .num_args(1..)
            .value_parser(value_parser!(i64).range(1..))
            .help("Number of a letter, as `relay dlq list` shows it")
    };
    let list = filtered(Command::new("list").about("List dead letters, oldest first"))
        .arg(
            Arg::new("limit")
                .long("limit")
                .value_name("N")
                .default_value("50")
                .value_parser(value_parser!(u64).range(1..=MOST_LETTERS as u64))
                .help("Letters at the most"),
        )
        .arg(json());
    let show = Command::new("show")
        .about("Show one dead letter with its payload")
        .arg(ids().num_args(1).required(true))
        .arg(json());
    let replay = filtered(
        Command::new("replay").about("Send dead letters again: their outbox rows become PENDING"),
    )
    .arg(ids().required_unless_present("all"))
    .arg(
        Arg::new("all")
            .long("all")
            .action(ArgAction::SetTrue)
            .conflicts_with("id")
            .help("All letters, or all that the filters match"),
    )
    .mut_args(|arg| match arg.get_id().as_str() {
        "type" | "error" | "since" => arg.conflicts_with("id"),
        _ => arg,
    });
    let discard = Command::new("discard")
        .about("Delete dead letters for good; their outbox rows stay FAILED")
        .arg(ids().required(true));
    Command::new("dlq")
        .about("Look at dead letters, send them again or discard them")
        .after_help(AFTER_HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([list, show, replay, discard].map(configured))
}

fn filtered(command: Command) -> Command {
    command
        .arg(
            Arg::new("type")
                .long("type")
                .value_name("T")
                .help("Only letters of that event type"),
        )
        .arg(
            Arg::new("error")
                .long("error")
                .value_name("TEXT")
                .help("Only letters with that text in their error"),
        )
        .arg(
            Arg::new("since")
                .long("since")
                .value_name("DURATION")
                .value_parser(|text: &str| {
                    duration(text).map_err(|_| "it is no duration such as 30m, 24h or 7d")
                })
                .help("Only letters written within that time, such as 30m, 24h or 7d"),
        )
}

fn filter(arguments: &ArgMatches) -> Filter {
    Filter {
        event_type: arguments.get_one("type").cloned(),
        error: arguments.get_one("error").cloned(),
        since: arguments.get_one::<Duration>("since").copied(),
        after: None,
    }
}

/// Runs the part of that name.
pub(super) fn main(config: &Config, name: &str, arguments: &ArgMatches) -> anyhow::Result<()> {
    super::run::runtime()?.block_on(async {
        let session = Session::connect(config)
            .await
            .map_err(super::run::with_hint)?;
        match name {
            "list" => list(config, session, arguments).await,
            "show" => show(config, session, arguments).await,
            _ => change(config, session, name, arguments).await,
        }
    })
}

async fn list(config: &Config, mut session: Session, arguments: &ArgMatches) -> anyhow::Result<()> {
    let limit = arguments.get_one::<u64>("limit").copied().unwrap_or(50);
    let limit = usize::try_from(limit).unwrap_or(MOST_LETTERS);
    let listing = dead_letter::list(config, &mut session, &filter(arguments), limit)
        .await
        .map_err(super::run::with_hint)?;
    if arguments.get_flag("json") {
        return print::json(&listing);
    }
    if listing.letters.is_empty() {
        return print::line("no dead letters");
    }
    print::line(&format!(
        "{:>8}  {:20}  {:>5}  {:24}  {:20}  ERROR",
        "ID", "WRITTEN (UTC)", "TRIES", "TYPE", "EVENT"
    ))?;
    for letter in &listing.letters {
        print::line(&row(letter))?;
    }
    if listing.more {
        print::line(&format!("… and more than these {limit}: see --limit"))?;
    }
    Ok(())
}

fn row(letter: &Letter) -> String {
    let second: String = letter.created_at.chars().take(19).collect();
    let error: String = letter.error.chars().take(120).collect();
    format!(
        "{:>8}  {:20}  {:>5}  {:24}  {:20}  {}",
        letter.id,
        second,
        letter.attempts,
        print::plain(&letter.event_type),
        print::plain(letter.event_key.as_deref().unwrap_or("-")),
        print::plain(&error)
    )
}

async fn show(config: &Config, mut session: Session, arguments: &ArgMatches) -> anyhow::Result<()> {
    let id = arguments.get_one::<i64>("id").copied().unwrap_or_default();
    let found = dead_letter::show(config, &mut session, id)
        .await
        .map_err(super::run::with_hint)?;
    let full = found.ok_or(Refusal::NoSuchLetter { id })?;
    if arguments.get_flag("json") {
        return print::json(&full);
    }
    let letter = &full.letter;
    for (name, text) in [
        ("letter", &letter.id.to_string()),
        ("written", &letter.created_at),
        ("event type", &letter.event_type),
        ("event", &letter.event_key.clone().unwrap_or_default()),
        ("attempts", &letter.attempts.to_string()),
        ("error", &letter.error),
        ("payload", &full.payload.get().to_owned()),
    ] {
        print::line(&format!("{name:12}{}", print::plain(text)))?;
    }
    Ok(())
}

/// `replay` or `discard`, of single letters or of all that match.
async fn change(
    config: &Config,
    session: Session,
    name: &str,
    arguments: &ArgMatches,
) -> anyhow::Result<()> {
    let metrics = Metrics::new().context("cannot set up the metrics")?;
    let mut clerk = Clerk::new(config, &metrics, session, &actor::local())
        .await
        .map_err(super::run::with_hint)?;
    if name == "replay" && arguments.get_flag("all") {
        return replay_all(config, &mut clerk, filter(arguments)).await;
    }
    let mut refused = 0;
    let ids: Vec<i64> = arguments
        .get_many("id")
        .into_iter()
        .flatten()
        .copied()
        .collect();
    for id in &ids {
        let (changed, what) = match name {
            "replay" => (clerk.replay(*id).await, "is PENDING again"),
            _ => (clerk.discard(*id).await, "stays as it is"),
        };
        match changed.map_err(super::run::with_hint)? {
            Ok(Done {
                id,
                key,
                event_type,
            }) => {
                let event = print::plain(&format!(
                    "{} ({event_type})",
                    key.as_deref().unwrap_or("of no known key")
                ));
                print::line(&format!("letter {id} is gone; event {event} {what}"))?;
            }
            Err(refusal) => {
                refused += 1;
                print::complaint(&format!("relay: {refusal}"))?;
            }
        }
    }
    if refused > 0 {
        anyhow::bail!("{refused} of {} letters were left as they are", ids.len());
    }
    Ok(())
}

async fn replay_all(config: &Config, clerk: &mut Clerk<'_>, filter: Filter) -> anyhow::Result<()> {
    crate::telemetry::start(config)?;
    let mut ids = Ids::of(config, clerk.session(), filter)
        .await
        .map_err(super::run::with_hint)?;
    let total = ids.total();
    let (mut replayed, mut refused) = (0u64, 0u64);
    let mut progress = print::Progress::new();
    loop {
        let page = ids
            .next(config, clerk.session())
            .await
            .map_err(super::run::with_hint)?;
        if page.is_empty() {
            break;
        }
        for id in page {
            match clerk.replay(id).await.map_err(super::run::with_hint)? {
                Ok(_) => replayed += 1,
                // Somebody else was faster: that is as good.
                Err(refusal) if refusal.is_absence() => {}
                Err(refusal) => {
                    refused += 1;
                    if refused <= REFUSALS_TOLD {
                        progress.end();
                        print::complaint(&format!("relay: {refusal}"))?;
                    }
                }
            }
            progress.show(|| format!("{} of {total} letters looked at", replayed + refused));
        }
    }
    progress.end();
    print::line(&format!(
        "{replayed} of {total} letters are gone, their events PENDING again"
    ))?;
    if refused > 0 {
        anyhow::bail!("{refused} letters were left as they are");
    }
    Ok(())
}
