//! The command line, and the variables that stand for its flags.

use std::ffi::OsString;
use std::net::SocketAddr;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use reliability::mysql::MysqlUrl;

use crate::amqp::AmqpUrl;
use crate::load::Target;

/// Order service with a transactional outbox.
#[derive(Debug, Parser)]
#[command(
    name = "app",
    version,
    after_help = "Every flag can be given by the variable named beside it. Give URLs with a password in them by \
        variable: flags show in the process list.\n\nExit codes: 0 done, 1 failed, 2 wrong usage or configuration."
)]
struct Cli {
    /// What to log: a level, or targets with levels ("warn,app=debug").
    #[arg(
        long,
        global = true,
        env = "APP_LOG",
        default_value = "info",
        display_order = 100
    )]
    log: String,
    /// How to log.
    #[arg(
        long,
        global = true,
        env = "APP_LOG_FORMAT",
        value_enum,
        default_value_t,
        display_order = 101
    )]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Raw,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Raw {
    /// Serve the HTTP API: POST /orders, GET /orders/ID, /metrics, /livez, /readyz.
    ///
    /// An order, its items and its OrderCreated event are written in one transaction.
    Api(ApiArgs),
    /// Consume order events from RabbitMQ, each once.
    ///
    /// Declares the exchange, the queue and their binding if they are missing. A message is acknowledged after the
    /// transaction that recorded it in inbox_events; one that can't be read goes to dead_letter_events.
    Worker(WorkerArgs),
    /// API and worker in one process; /metrics and /readyz cover both.
    Serve(ServeArgs),
    /// Place orders over HTTP and measure.
    ///
    /// Prints rate and latency, as text or JSON, and exits with 1 if any order failed.
    Load(LoadArgs),
    /// Create or update the tables; safe to run twice, and by many processes at once.
    ///
    /// Creates the database too, if it is missing and the account may do so.
    Migrate(MysqlArgs),
}

#[derive(Debug, Args)]
struct MysqlArgs {
    /// MySQL or MariaDB: mysql://USER:PASSWORD@HOST:PORT/DATABASE.
    #[arg(
        long,
        env = "APP_MYSQL_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    mysql_url: Option<String>,
}

#[derive(Debug, Args)]
struct PoolArgs {
    #[command(flatten)]
    mysql: MysqlArgs,
    /// Most connections to MySQL, 1 to 1000.
    #[arg(long, env = "APP_MYSQL_CONNECTIONS", default_value = "16", value_name = "N",
        value_parser = |text: &str| number(text, 1, 1000))]
    mysql_connections: u64,
}

#[derive(Debug, Args)]
struct HttpArgs {
    /// Where the API listens; only this machine reaches the default.
    #[arg(long, env = "APP_HTTP_ADDR", default_value = "127.0.0.1:8080", value_name = "IP:PORT",
        value_parser = address)]
    http_addr: SocketAddr,
}

#[derive(Debug, Args)]
struct BrokerArgs {
    /// RabbitMQ: amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps://….
    #[arg(long, env = "APP_AMQP_URL", hide_env_values = true, value_name = "URL")]
    amqp_url: Option<String>,
    /// Topic exchange that the relay publishes to.
    #[arg(long, env = "APP_EXCHANGE", default_value = "outbox.events", value_name = "NAME",
        value_parser = name)]
    exchange: String,
    /// Queue of this worker; workers with the same queue share its messages.
    #[arg(long, env = "APP_QUEUE", default_value = "orders.worker", value_name = "NAME",
        value_parser = name)]
    queue: String,
    /// Type of the queue, if it is declared now.
    #[arg(long, env = "APP_QUEUE_TYPE", value_enum, default_value_t)]
    queue_type: QueueType,
    /// Most unacknowledged messages, 1 to 10000; up to 100 share a transaction.
    #[arg(long, env = "APP_PREFETCH", default_value = "100", value_name = "N",
        value_parser = |text: &str| number(text, 1, 10_000))]
    prefetch: u64,
}

/// Type of a queue in RabbitMQ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueueType {
    /// Replicated; counts deliveries.
    #[default]
    Quorum,
    /// On one node.
    Classic,
}

#[derive(Debug, Args)]
struct ApiArgs {
    #[command(flatten)]
    pool: PoolArgs,
    #[command(flatten)]
    http: HttpArgs,
}

#[derive(Debug, Args)]
struct WorkerArgs {
    #[command(flatten)]
    pool: PoolArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    /// Where /metrics, /livez and /readyz of the worker are.
    #[arg(long, env = "APP_WORKER_HTTP_ADDR", default_value = "127.0.0.1:8081", value_name = "IP:PORT",
        value_parser = address)]
    worker_http_addr: SocketAddr,
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[command(flatten)]
    pool: PoolArgs,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// What `app load` shall do.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Orders to place, 1 to 10000000.
    #[arg(long, default_value = "1000", value_name = "N",
        value_parser = |text: &str| number(text, 1, 10_000_000))]
    pub(crate) orders: u64,
    /// Orders a second, 0 to 1000000; 0 is as fast as possible. Latency counts from the moment an order is due.
    #[arg(long, default_value = "0", value_name = "R",
        value_parser = |text: &str| number(text, 0, 1_000_000))]
    pub(crate) rate: u64,
    /// Clients that place orders at the same time, 1 to 1000.
    #[arg(long, default_value = "16", value_name = "C",
        value_parser = |text: &str| number(text, 1, 1000))]
    pub(crate) clients: u64,
    /// Address of the API.
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL", value_parser = Target::parse)]
    pub(crate) url: Target,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A checked command.
pub(crate) struct Command {
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) action: Action,
}

/// What to do.
pub(crate) enum Action {
    Api {
        mysql: MysqlSettings,
        http: SocketAddr,
    },
    Worker {
        mysql: MysqlSettings,
        broker: BrokerSettings,
        http: SocketAddr,
    },
    Serve {
        mysql: MysqlSettings,
        broker: BrokerSettings,
        http: SocketAddr,
    },
    Load(LoadArgs),
    Migrate(MysqlUrl),
}

/// Where the tables are.
pub(crate) struct MysqlSettings {
    pub(crate) url: MysqlUrl,
    pub(crate) connections: usize,
}

/// Where the messages come from.
#[derive(Debug, Clone)]
pub(crate) struct BrokerSettings {
    pub(crate) url: AmqpUrl,
    pub(crate) exchange: String,
    pub(crate) queue: String,
    pub(crate) queue_type: QueueType,
    pub(crate) prefetch: u16,
}

/// Reads the command line and the environment.
pub(crate) fn parse() -> Result<Command, clap::Error> {
    parse_from(std::env::args_os())
}

fn parse_from(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Command, clap::Error> {
    Cli::try_parse_from(words)
        .map_err(with_variable)
        .and_then(check)
}

/// Adds the variable that a bad value may have come from: `clap` names the flag only.
fn with_variable(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(usage)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let flag = usage.split(' ').next().unwrap_or_default();
    let command = Cli::command();
    let variable = std::iter::once(&command)
        .chain(command.get_subcommands())
        .flat_map(clap::Command::get_arguments)
        .find(|arg| arg.get_long() == flag.strip_prefix("--"))
        .and_then(clap::Arg::get_env);
    if let Some(variable) = variable {
        let tip = format!("{flag} is also read from {}", variable.display());
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

fn check(cli: Cli) -> Result<Command, clap::Error> {
    let action = match cli.command {
        Raw::Api(args) => Action::Api {
            mysql: args.pool.check()?,
            http: args.http.http_addr,
        },
        Raw::Worker(args) => Action::Worker {
            mysql: args.pool.check()?,
            broker: args.broker.check()?,
            http: args.worker_http_addr,
        },
        Raw::Serve(args) => Action::Serve {
            mysql: args.pool.check()?,
            broker: args.broker.check()?,
            http: args.http.http_addr,
        },
        Raw::Load(args) => Action::Load(args),
        Raw::Migrate(args) => Action::Migrate(args.check()?),
    };
    Ok(Command {
        log: cli.log,
        log_format: cli.log_format,
        action,
    })
}

impl MysqlArgs {
    /// The URL is parsed here, not by `clap`, which would print it.
    fn check(self) -> Result<MysqlUrl, clap::Error> {
        let text = required(
            self.mysql_url,
            "APP_MYSQL_URL",
            "--mysql-url",
            "mysql://USER:PASSWORD@HOST:PORT/DATABASE",
        )?;
        text.parse().map_err(|error| {
            wrong(format!(
                "the URL in APP_MYSQL_URL (--mysql-url) is not valid: {error}"
            ))
        })
    }
}

impl PoolArgs {
    fn check(self) -> Result<MysqlSettings, clap::Error> {
        let connections = usize::try_from(self.mysql_connections).unwrap_or(1);
        Ok(MysqlSettings {
            url: self.mysql.check()?,
            connections,
        })
    }
}

impl BrokerArgs {
    fn check(self) -> Result<BrokerSettings, clap::Error> {
        let text = required(
            self.amqp_url,
            "APP_AMQP_URL",
            "--amqp-url",
            "amqp://USER:PASSWORD@HOST:PORT/VHOST",
        )?;
        let url = text.parse().map_err(|error| {
            wrong(format!(
                "the URL in APP_AMQP_URL (--amqp-url) is not valid: {error}"
            ))
        })?;
        Ok(BrokerSettings {
            url,
            exchange: self.exchange,
            queue: self.queue,
            queue_type: self.queue_type,
            prefetch: u16::try_from(self.prefetch).unwrap_or(1),
        })
    }
}

fn required(
    value: Option<String>,
    variable: &str,
    flag: &str,
    form: &str,
) -> Result<String, clap::Error> {
    value.filter(|text| !text.is_empty()).ok_or_else(|| {
        wrong(format!(
            "{variable} is not set; set it, or give {flag}: {form}"
        ))
    })
}

/// An error of usage, whose exit code is 2.
pub(crate) fn wrong(message: String) -> clap::Error {
    Cli::command().error(ErrorKind::ValueValidation, message)
}

fn number(text: &str, least: u64, most: u64) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("a whole number from {least} to {most} is allowed"))
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "an IP address with a port is allowed, 127.0.0.1:8080 for one")
}

/// Names of exchanges and queues: AMQP 0-9-1 short strings, and `amq.` is the broker's own.
fn name(text: &str) -> Result<String, &'static str> {
    if (1..=255).contains(&text.len()) && !text.starts_with("amq.") {
        return Ok(text.to_owned());
    }
    Err("1 to 255 bytes that don't begin with amq. are allowed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Command, String> {
        parse_from(words.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn errors_name_key_value_and_what_is_allowed() {
        let url = "--mysql-url mysql://u:s3cret@h/d";
        for (words, parts) in [
            (
                format!("app api {url} --http-addr here"),
                ["--http-addr", "'here'", "APP_HTTP_ADDR"],
            ),
            (
                format!("app api {url} --mysql-connections 0"),
                ["--mysql-connections", "'0'", "1 to 1000"],
            ),
            (
                format!("app worker {url} --prefetch x"),
                ["--prefetch", "'x'", "1 to 10000"],
            ),
            (
                format!("app worker {url} --queue-type lazy"),
                ["--queue-type", "'lazy'", "quorum, classic"],
            ),
            (
                format!("app worker {url} --queue-type lazy"),
                ["--queue-type", "'lazy'", "APP_QUEUE_TYPE"],
            ),
            (
                format!("app worker {url} --queue amq.x"),
                ["--queue", "'amq.x'", "APP_QUEUE"],
            ),
            (
                "app --log-format xml migrate".to_owned(),
                ["'xml'", "APP_LOG_FORMAT", "text, json"],
            ),
            (
                format!("app worker {url} --amqp-url http://g:s3cret@h"),
                ["APP_AMQP_URL", "not valid", "amqp://"],
            ),
            (
                "app migrate --mysql-url mysql://u:s3cret@h".to_owned(),
                ["APP_MYSQL_URL", "--mysql-url", "/DATABASE"],
            ),
            (
                "app load --url ftp://h".to_owned(),
                ["--url", "'ftp://h'", "http://"],
            ),
        ] {
            let error = parse(&words).err().unwrap_or_default();
            for part in parts {
                assert!(error.contains(part), "{words}: {error}");
            }
            assert!(!error.contains("s3cret"), "{words}: {error}");
        }
    }
}
