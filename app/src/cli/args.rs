//! The flags as `clap` reads them, each with its variable.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

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
    /// Simulate the payment and the shipping provider.
    ///
    /// Both over HTTP at one address, with faults that can be switched on while they run: PUT /modes/payment and
    /// /modes/shipment. GET /ledger shows what they did.
    Providers(ProvidersArgs),
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
    #[arg(long, env = "APP_MYSQL_CONNECTIONS", default_value = "16", value_name = "N",
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
