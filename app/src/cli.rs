//! The command line, and the variables that stand for its flags.

mod args;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser as _};
use reliability::mysql::MysqlUrl;
use reliability::saga::SagaStatus;

use crate::amqp::AmqpUrl;
use crate::fulfilment::SagaSettings;
use crate::target::Target;
use args::{BrokerArgs, Cli, MysqlArgs, PoolArgs, ProviderArgs, Raw, RawSaga, RawStock, SagaArgs};

pub(crate) use args::{LoadArgs, LogFormat, QueueType};

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
        providers: ProviderSettings,
        saga: SagaSettings,
        http: SocketAddr,
    },
    Serve {
        mysql: MysqlSettings,
        broker: BrokerSettings,
        providers: ProviderSettings,
        saga: SagaSettings,
        http: SocketAddr,
    },
    Providers {
        address: SocketAddr,
        state: Option<PathBuf>,
    },
    Load(LoadArgs),
    Saga(MysqlUrl, SagaAction),
    Stock(MysqlUrl, StockAction),
    Migrate(MysqlUrl),
}

/// What to do with sagas.
pub(crate) enum SagaAction {
    List {
        status: Option<SagaStatus>,
        limit: u32,
        json: bool,
    },
    Show {
        id: String,
        json: bool,
    },
    Retry {
        id: String,
    },
}

/// What to do with the stock.
pub(crate) enum StockAction {
    Set { sku: String, available: u32 },
    Fill { available: u32 },
    List { json: bool },
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

/// Whom the sagas call, and how patiently.
#[derive(Debug, Clone)]
pub(crate) struct ProviderSettings {
    pub(crate) payment_url: Target,
    pub(crate) shipping_url: Target,
    /// Longest wait for an answer, and before it for a turn to ask.
    pub(crate) timeout: Duration,
    /// How long a provider that failed is left alone.
    pub(crate) open_for: Duration,
    /// Most calls a second.
    pub(crate) payment_rate: u32,
    /// Most calls a second.
    pub(crate) shipping_rate: u32,
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
            providers: args.providers.check(),
            saga: args.saga.check(),
            http: args.worker_http_addr,
        },
        Raw::Serve(args) => Action::Serve {
            mysql: args.pool.check()?,
            broker: args.broker.check()?,
            providers: args.providers.check(),
            saga: args.saga.check(),
            http: args.http.http_addr,
        },
        Raw::Providers(args) => Action::Providers {
            address: args.providers_addr,
            state: args.state,
        },
        Raw::Load(args) => Action::Load(args),
        Raw::Saga(raw) => {
            let (mysql, action) = saga(raw);
            Action::Saga(mysql.check()?, action)
        }
        Raw::Stock(raw) => {
            let (mysql, action) = stock(raw);
            Action::Stock(mysql.check()?, action)
        }
        Raw::Migrate(args) => Action::Migrate(args.check()?),
    };
    Ok(Command {
        log: cli.log,
        log_format: cli.log_format,
        action,
    })
}

fn saga(raw: RawSaga) -> (MysqlArgs, SagaAction) {
    match raw {
        RawSaga::List {
            mysql,
            status,
            limit,
            json,
        } => {
            let limit = checked(limit);
            (
                mysql,
                SagaAction::List {
                    status,
                    limit,
                    json,
                },
            )
        }
        RawSaga::Show { mysql, id, json } => (mysql, SagaAction::Show { id, json }),
        RawSaga::Retry { mysql, id } => (mysql, SagaAction::Retry { id }),
    }
}

fn stock(raw: RawStock) -> (MysqlArgs, StockAction) {
    match raw {
        RawStock::Set {
            mysql,
            sku,
            available,
        } => {
            let available = checked(available);
            (mysql, StockAction::Set { sku, available })
        }
        RawStock::Fill { mysql, available } => {
            let available = checked(available);
            (mysql, StockAction::Fill { available })
        }
        RawStock::List { mysql, json } => (mysql, StockAction::List { json }),
    }
}

/// A number that is within its bounds already.
fn checked(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl SagaArgs {
    fn check(self) -> SagaSettings {
        let time = Duration::from_millis;
        SagaSettings {
            lease: time(self.saga_lease_ms),
            poll_interval: time(self.saga_poll_ms),
            attempts: checked(self.saga_attempts),
            retry: time(self.saga_retry_ms),
            recover: time(self.saga_recover_ms),
            concurrency: usize::try_from(self.saga_concurrency).unwrap_or(1),
        }
    }
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

impl ProviderArgs {
    fn check(self) -> ProviderSettings {
        ProviderSettings {
            payment_url: self.payment_url,
            shipping_url: self.shipping_url,
            timeout: Duration::from_millis(self.provider_timeout_ms),
            open_for: Duration::from_millis(self.provider_open_ms),
            payment_rate: u32::try_from(self.payment_rate).unwrap_or(1),
            shipping_rate: u32::try_from(self.shipping_rate).unwrap_or(1),
        }
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
                format!("app serve {url} --payment-url 127.0.0.1"),
                ["--payment-url", "http://HOST:PORT", "APP_PAYMENT_URL"],
            ),
            (
                format!("app worker {url} --provider-timeout-ms 1"),
                ["--provider-timeout-ms", "'1'", "100 to 60000"],
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
