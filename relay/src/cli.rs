//! The command line: `relay run | migrate | check | status | config | dlq | prune`, with one flag a setting.

mod actor;
mod check;
mod config;
mod dlq;
mod migrate;
mod print;
mod prune;
mod run;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use crate::config::settings::{SETTINGS, Setting};
use crate::config::{Config, ConfigError, Raw};

/// Exit code for wrong usage or configuration.
const EXIT_USAGE: u8 = 2;
/// Exit code for anything else that failed.
const EXIT_FAILED: u8 = 1;

const AFTER_HELP: &str = "\
Every setting is a flag, a variable (RELAY_ and its name in capitals) or a key of the TOML file; a flag wins \
over a variable, a variable over the file.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.

Examples:
  RELAY_MYSQL_URL=mysql://relay:secret@127.0.0.1:3306/shop relay migrate
  relay check
  relay status --json
  relay run --config /etc/relay.toml --log-format json";

/// Runs the command of the process's arguments.
pub fn main() -> ExitCode {
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let code = if error.use_stderr() { EXIT_USAGE } else { 0 };
            return match error.print() {
                Ok(()) => ExitCode::from(code),
                Err(_) => ExitCode::from(EXIT_FAILED),
            };
        }
    };
    let Some((name, arguments)) = matches.subcommand() else {
        return ExitCode::from(EXIT_USAGE);
    };
    let outcome = match (name, arguments.subcommand()) {
        ("dlq", Some((part, arguments))) => {
            load_without_broker(arguments).and_then(|config| dlq::main(&config, part, arguments))
        }
        ("prune", _) => {
            load_without_broker(arguments).and_then(|config| prune::main(&config, arguments))
        }
        ("config", _) => load(arguments).and_then(|raw| config::main(&raw, arguments)),
        ("check", _) => load(arguments)
            .and_then(|raw| Ok(Config::from_raw(&raw)?))
            .and_then(|config| check::main(&config, arguments)),
        ("status", _) => {
            load_without_broker(arguments).and_then(|config| status::main(&config, arguments))
        }
        ("migrate", _) => load_without_broker(arguments).and_then(migrate::main),
        _ => load(arguments)
            .and_then(|raw| Ok(Config::from_raw(&raw)?))
            .and_then(run::main),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            let usage = error.downcast_ref::<ConfigError>().is_some();
            ExitCode::from(if usage { EXIT_USAGE } else { EXIT_FAILED })
        }
    }
}

/// The last word on a failure, where a person looks for it.
fn complain(error: &anyhow::Error) {
    use std::io::Write as _;
    let line = crate::error::chain(error.as_ref());
    // Nobody is left to tell if even this fails.
    if writeln!(std::io::stderr().lock(), "relay: {line}").is_err() {}
}

fn command() -> Command {
    Command::new("relay")
        .version(env!("CARGO_PKG_VERSION"))
        .about(
            "Tails the MySQL binlog for outbox rows and publishes them to RabbitMQ, each confirmed",
        )
        .after_help(AFTER_HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(configured(
            Command::new("run").about("Capture and publish events until SIGTERM or Ctrl-C"),
            |_| true,
        ))
        .subcommand(configured(
            Command::new("migrate")
                .about("Create the outbox, dead letter and checkpoint tables; safe to run again"),
            |setting| {
                ["mysql_", "log_", "connect_"]
                    .iter()
                    .any(|p| setting.key.starts_with(p))
            },
        ))
        .subcommand(configured(check::command(), |_| true))
        .subcommand(configured(status::command(), |setting| {
            about_tables(setting)
                || ["name", "checkpoint_table", "checkpoint_file", "http_addr"]
                    .contains(&setting.key)
        }))
        .subcommand(configured(config::command(), |_| true))
        .subcommand(dlq::command(|command| configured(command, about_tables)))
        .subcommand(configured(prune::command(), |setting| {
            about_tables(setting) || setting.key == "retention"
        }))
}

/// Whether the setting says where the tables are and what they look like.
fn about_tables(setting: &Setting) -> bool {
    let prefixes = ["mysql_", "log_", "connect_", "column_"];
    let keys = ["table", "dead_letter_table", "preset", "mark"];
    prefixes
        .iter()
        .any(|prefix| setting.key.starts_with(prefix))
        || keys.contains(&setting.key)
}

/// Adds a flag for each setting that the command shows; the others are still read from variables and file.
fn configured(command: Command, shown: impl Fn(&Setting) -> bool) -> Command {
    let config = Arg::new("config")
        .long("config")
        .env("RELAY_CONFIG")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("TOML file with settings");
    SETTINGS.iter().filter(|setting| shown(setting)).fold(
        command.arg(config),
        |command, setting| {
            let default = setting
                .default
                .map(|text| format!(" [default: {text}]"))
                .unwrap_or_default();
            command.arg(
                Arg::new(setting.key)
                    .long(setting.flag())
                    .value_name("VALUE")
                    .allow_hyphen_values(true)
                    .help(format!(
                        "{}{default}\n[{}; {}]",
                        setting.help,
                        setting.variable(),
                        setting.allowed
                    )),
            )
        },
    )
}

/// For commands that have nothing to do with the broker, and need not be told of it.
fn load_without_broker(arguments: &ArgMatches) -> anyhow::Result<Config> {
    let mut raw = load(arguments)?;
    raw.or("amqp_url", "amqp://localhost/%2f");
    Ok(Config::from_raw(&raw)?)
}

fn load(arguments: &ArgMatches) -> anyhow::Result<Raw> {
    let file = arguments.get_one::<PathBuf>("config");
    let flags = SETTINGS.iter().filter_map(|setting| {
        let text = arguments
            .try_get_one::<String>(setting.key)
            .ok()
            .flatten()?;
        Some((setting.key, text.clone()))
    });
    let variables = std::env::vars_os().filter_map(|(name, text)| {
        Some((
            name.into_string().ok()?,
            text.to_string_lossy().into_owned(),
        ))
    });
    Ok(Raw::load(file.map(PathBuf::as_path), variables, flags)?)
}
