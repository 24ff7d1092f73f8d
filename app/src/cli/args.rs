//! The flags as `clap` reads them, each with its variable.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use reliability::saga::SagaStatus;

use crate::orders;
use crate::target::Target;

/// Order service with a transactional outbox.
#[derive(Debug, Parser)]
#[command(
    name = "app",
    version,
    after_help = "Every flag can be given by the variable named beside it. Give URLs with a password in them by \
        variable: flags show in the process list.\n\nExit codes: 0 done, 1 failed, 2 wrong usage or configuration."
)]
pub(super) struct Cli {
    /// What to log: a level, or targets with levels ("warn,app=debug").
    #[arg(
        long,
        global = true,
        env = "APP_LOG",
        default_value = "info",
        display_order = 100
    )]
    pub(super) log: String,
    /// How to log.
    #[arg(
        long,
        global = true,
        env = "APP_LOG_FORMAT",
        value_enum,
        default_value_t,
        display_order = 101
    )]
    pub(super) log_format: LogFormat,
    #[command(subcommand)]
    pub(super) command: Raw,
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
pub(super) enum Raw {
    /// Serve the HTTP API: POST /orders, GET /orders/ID, GET /sagas/ID, /metrics, /livez, /readyz.
    ///
    /// An order, its items and its OrderCreated event are written in one transaction.
    Api(ApiArgs),
    /// Consume order events from RabbitMQ, each once, and run the saga of each new order.
    ///
    /// Declares the exchange, the queue and their binding if they are missing. A message is acknowledged after the
    /// transaction that recorded it in inbox_events, with the command that starts the saga; one that can't be read goes to
    /// dead_letter_events. Any number of workers may share the work; what one leaves behind, another carries on.
    Worker(WorkerArgs),
    /// API and worker in one process; /metrics and /readyz cover both.
    Serve(ServeArgs),
    /// Simulate the payment and the shipping provider.
    ///
    /// Both over HTTP at one address, with faults that can be switched on while they run: PUT /modes/payment and
    /// /modes/shipment. GET /ledger shows what they did.
    Providers(ProvidersArgs),
    /// Place orders over HTTP and measure.
    ///
    /// Prints rate and latency, as text or JSON, and exits with 1 if any order failed.
    Load(LoadArgs),
    /// Show sagas, and try a stuck one again.
    #[command(subcommand)]
    Saga(RawSaga),
    /// Show and change what can be sold.
    #[command(subcommand)]
    Stock(RawStock),
    /// Create or update the tables; safe to run twice, and by many processes at once.
    ///
    /// Creates the database too, if it is missing and the account may do so.
    Migrate(MysqlArgs),
}

#[derive(Debug, Subcommand)]
pub(super) enum RawSaga {
    /// The newest sagas.
    List {
        #[command(flatten)]
        mysql: MysqlArgs,
        /// Only those of this status.
        #[arg(long, value_name = "STATUS", value_parser = saga_status)]
        status: Option<SagaStatus>,
        /// Most sagas shown, 1 to 10000.
        #[arg(long, default_value = "50", value_name = "N",
            value_parser = |text: &str| number(text, 1, 10_000))]
        limit: u64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// One saga with the history of its steps.
    Show {
        #[command(flatten)]
        mysql: MysqlArgs,
        /// The saga.
        id: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Make a saga due now whose compensation has failed, or that waits for another attempt.
    ///
    /// Exits with 1 if there is nothing to try again.
    Retry {
        #[command(flatten)]
        mysql: MysqlArgs,
        /// The saga.
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum RawStock {
    /// Set what is available of one sku.
    Set {
        #[command(flatten)]
        mysql: MysqlArgs,
        /// Name of the goods, 1 to 64 characters.
        #[arg(value_parser = sku)]
        sku: String,
        /// How many can be sold, 0 to 2147483647.
        #[arg(value_parser = |text: &str| number(text, 0, 2_147_483_647))]
        available: u64,
    },
    /// Set what is available of all that `app load` orders.
    Fill {
        #[command(flatten)]
        mysql: MysqlArgs,
        /// How many of each can be sold, 0 to 2147483647.
        #[arg(long, default_value = "1000000", value_name = "N",
            value_parser = |text: &str| number(text, 0, 2_147_483_647))]
        available: u64,
    },
    /// Show what is available and reserved.
    List {
        #[command(flatten)]
        mysql: MysqlArgs,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// How the saga's workers behave.
#[derive(Debug, Args)]
pub(super) struct SagaArgs {
    /// How long a saga stays with a worker that died, 500 to 3600000 ms.
    #[arg(long, env = "APP_SAGA_LEASE_MS", default_value = "30000", value_name = "MS",
        value_parser = |text: &str| number(text, 500, 3_600_000))]
    pub(super) saga_lease_ms: u64,
    /// Longest time between two looks for work, 10 to 60000 ms.
    #[arg(long, env = "APP_SAGA_POLL_MS", default_value = "1000", value_name = "MS",
        value_parser = |text: &str| number(text, 10, 60_000))]
    pub(super) saga_poll_ms: u64,
    /// Attempts of a step before the saga is undone, and of an undo before it is stuck, 1 to 100.
    #[arg(long, env = "APP_SAGA_ATTEMPTS", default_value = "3", value_name = "N",
        value_parser = |text: &str| number(text, 1, 100))]
    pub(super) saga_attempts: u64,
    /// First delay between attempts, 1 to 600000 ms; it doubles, up to 10 s.
    #[arg(long, env = "APP_SAGA_RETRY_MS", default_value = "500", value_name = "MS",
        value_parser = |text: &str| number(text, 1, 600_000))]
    pub(super) saga_retry_ms: u64,
    /// First delay until a failed compensation is tried again, 1 to 3600000 ms; it doubles, up to 10 min.
    #[arg(long, env = "APP_SAGA_RECOVER_MS", default_value = "30000", value_name = "MS",
        value_parser = |text: &str| number(text, 1, 3_600_000))]
    pub(super) saga_recover_ms: u64,
    /// Sagas worked on at once, 1 to 1000.
    #[arg(long, env = "APP_SAGA_CONCURRENCY", default_value = "16", value_name = "N",
        value_parser = |text: &str| number(text, 1, 1000))]
    pub(super) saga_concurrency: u64,
}

#[derive(Debug, Args)]
pub(super) struct MysqlArgs {
    /// MySQL or MariaDB: mysql://USER:PASSWORD@HOST:PORT/DATABASE.
    #[arg(
        long,
        env = "APP_MYSQL_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub(super) mysql_url: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct PoolArgs {
    #[command(flatten)]
    pub(super) mysql: MysqlArgs,
    /// Most connections to MySQL, 1 to 1000.
    #[arg(long, env = "APP_MYSQL_CONNECTIONS", default_value = "32", value_name = "N",
        value_parser = |text: &str| number(text, 1, 1000))]
    pub(super) mysql_connections: u64,
}

#[derive(Debug, Args)]
pub(super) struct HttpArgs {
    /// Where the API listens; only this machine reaches the default.
    #[arg(long, env = "APP_HTTP_ADDR", default_value = "127.0.0.1:8080", value_name = "IP:PORT",
        value_parser = address)]
    pub(super) http_addr: SocketAddr,
}

#[derive(Debug, Args)]
pub(super) struct BrokerArgs {
    /// RabbitMQ: amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps://….
    #[arg(long, env = "APP_AMQP_URL", hide_env_values = true, value_name = "URL")]
    pub(super) amqp_url: Option<String>,
    /// Topic exchange that the relay publishes to.
    #[arg(long, env = "APP_EXCHANGE", default_value = "outbox.events", value_name = "NAME",
        value_parser = name)]
    pub(super) exchange: String,
    /// Queue of this worker; workers with the same queue share its messages.
    #[arg(long, env = "APP_QUEUE", default_value = "orders.worker", value_name = "NAME",
        value_parser = name)]
    pub(super) queue: String,
    /// Type of the queue, if it is declared now.
    #[arg(long, env = "APP_QUEUE_TYPE", value_enum, default_value_t)]
    pub(super) queue_type: QueueType,
    /// Most unacknowledged messages, 1 to 10000; up to 100 share a transaction.
    #[arg(long, env = "APP_PREFETCH", default_value = "100", value_name = "N",
        value_parser = |text: &str| number(text, 1, 10_000))]
    pub(super) prefetch: u64,
}

/// What the worker's sagas call.
#[derive(Debug, Args)]
pub(super) struct ProviderArgs {
    /// Where payments are charged and refunded.
    #[arg(long, env = "APP_PAYMENT_URL", default_value = "http://127.0.0.1:8090", value_name = "URL",
        value_parser = Target::parse)]
    pub(super) payment_url: Target,
    /// Where shipments are created and cancelled.
    #[arg(long, env = "APP_SHIPPING_URL", default_value = "http://127.0.0.1:8090", value_name = "URL",
        value_parser = Target::parse)]
    pub(super) shipping_url: Target,
    /// Longest wait for an answer of a provider, and before it for a turn to ask, in milliseconds, 100 to 60000.
    #[arg(long, env = "APP_PROVIDER_TIMEOUT_MS", default_value = "5000", value_name = "MS",
        value_parser = |text: &str| number(text, 100, 60_000))]
    pub(super) provider_timeout_ms: u64,
    /// How long a provider that failed five times is left alone, in milliseconds, 100 to 600000.
    #[arg(long, env = "APP_PROVIDER_OPEN_MS", default_value = "30000", value_name = "MS",
        value_parser = |text: &str| number(text, 100, 600_000))]
    pub(super) provider_open_ms: u64,
    /// Most calls a second to the payment provider, 1 to 100000.
    #[arg(long, env = "APP_PAYMENT_RATE", default_value = "200", value_name = "R",
        value_parser = |text: &str| number(text, 1, 100_000))]
    pub(super) payment_rate: u64,
    /// Most calls a second to the shipping provider, 1 to 100000.
    #[arg(long, env = "APP_SHIPPING_RATE", default_value = "200", value_name = "R",
        value_parser = |text: &str| number(text, 1, 100_000))]
    pub(super) shipping_rate: u64,
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
pub(super) struct ApiArgs {
    #[command(flatten)]
    pub(super) pool: PoolArgs,
    #[command(flatten)]
    pub(super) http: HttpArgs,
}

#[derive(Debug, Args)]
pub(super) struct WorkerArgs {
    #[command(flatten)]
    pub(super) pool: PoolArgs,
    #[command(flatten)]
    pub(super) broker: BrokerArgs,
    #[command(flatten)]
    pub(super) providers: ProviderArgs,
    #[command(flatten)]
    pub(super) saga: SagaArgs,
    /// Where /metrics, /livez and /readyz of the worker are.
    #[arg(long, env = "APP_WORKER_HTTP_ADDR", default_value = "127.0.0.1:8081", value_name = "IP:PORT",
        value_parser = address)]
    pub(super) worker_http_addr: SocketAddr,
}

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    pub(super) pool: PoolArgs,
    #[command(flatten)]
    pub(super) http: HttpArgs,
    #[command(flatten)]
    pub(super) broker: BrokerArgs,
    #[command(flatten)]
    pub(super) providers: ProviderArgs,
    #[command(flatten)]
    pub(super) saga: SagaArgs,
}

/// What `app providers` needs.
#[derive(Debug, Args)]
pub(super) struct ProvidersArgs {
    /// Where the providers listen; only this machine reaches the default.
    #[arg(long, env = "APP_PROVIDERS_ADDR", default_value = "127.0.0.1:8090", value_name = "IP:PORT",
        value_parser = address)]
    pub(super) providers_addr: SocketAddr,
    /// File that keeps what they did; without it a restart forgets that.
    #[arg(long, env = "APP_PROVIDERS_STATE", value_name = "FILE")]
    pub(super) state: Option<PathBuf>,
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

/// Names of goods, as the API takes them.
fn sku(text: &str) -> Result<String, &'static str> {
    if orders::is_sku(text) {
        return Ok(text.to_owned());
    }
    Err("1 to 64 characters are allowed, with no white space at the ends, none of control")
}

fn saga_status(text: &str) -> Result<SagaStatus, String> {
    let all = [
        SagaStatus::Running,
        SagaStatus::Completed,
        SagaStatus::Failed,
        SagaStatus::Compensating,
        SagaStatus::Compensated,
        SagaStatus::CompensationFailed,
    ];
    let wanted = |status: &SagaStatus| status.to_string().eq_ignore_ascii_case(text);
    all.into_iter().find(wanted).ok_or_else(|| {
        let names = all.map(|status| status.to_string()).join(", ");
        format!("one of these is allowed: {names}")
    })
}
