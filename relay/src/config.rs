//! Raw TOML, `RELAY_*` variables and flags become one validated [`Config`].
//!
//! Every setting is one row of [`settings::SETTINGS`]: its key in the file, its variable
//! (`RELAY_` and the key in capitals), its flag (`--` and the key with dashes), its default and what is
//! allowed. A flag wins over a variable, a variable over the file, the file over the default.

mod columns;
mod raw;
mod reading;
pub mod settings;
mod tls;
mod token;
mod url;
mod value;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use columns::Columns;
pub use raw::{ConfigError, Origin, Raw};
pub use token::AdminToken;
pub use url::{AmqpUrl, MysqlUrl, Pin};
pub use value::{Identifier, Template, duration};

use crate::tls::TlsFiles;

/// Where events are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceMode {
    /// The binlog where the server offers one that is fit for it.
    Auto,
    /// The binlog, and an error where it is not fit.
    Binlog,
    /// Claims by query.
    Poll,
}

/// How rows are claimed by polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimForm {
    /// The first that the server knows.
    Auto,
    /// `SELECT … FOR UPDATE SKIP LOCKED`.
    SkipLocked,
    /// `UPDATE … ORDER BY id LIMIT`, then `SELECT` of what it has leased.
    Token,
}

/// What order the broker must see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// At most one unconfirmed event of an aggregate in flight: commit order holds also across retries.
    Aggregate,
    /// No limit: a retried event may arrive after a later one of its aggregate.
    None,
}

/// What becomes of a row whose event is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// `status = 'PUBLISHED'`, in batches.
    Update,
    /// The row is deleted, in batches.
    Delete,
    /// The table is left alone.
    None,
}

/// What is round the payload in a message body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Envelope {
    /// A JSON object with the row's fields, the payload among them.
    Full,
    /// Nothing.
    Payload,
    /// A CloudEvents 1.0 object.
    CloudEvents,
}

/// Where the checkpoint is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointStore {
    /// A row of `relay_checkpoints`, in the outbox's database.
    Mysql,
    /// A file, replaced atomically.
    File(PathBuf),
}

/// What is published to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sink {
    /// RabbitMQ.
    Rabbitmq,
    /// The log: a dry run that publishes nothing.
    Log,
}

/// What is done about the exchange on connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Declare it, durable.
    Declare,
    /// Check that it exists.
    Check,
    /// Nothing.
    None,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For a person.
    Text,
    /// One JSON object a line.
    Json,
}

/// Everything the relay is told. Every value in it is valid.
#[derive(Debug, Clone)]
pub struct Config {
    /// Relay name: names the checkpoint row, the lock and the `app_id` of messages.
    pub name: String,
    /// The MySQL or MariaDB server and database with the outbox table.
    pub mysql: MysqlUrl,
    /// CA and client certificate for MySQL; naming any turns TLS on.
    pub mysql_tls: TlsFiles,
    /// The RabbitMQ server.
    pub amqp: AmqpUrl,
    /// CA and client certificate for RabbitMQ; empty without `amqps://`.
    pub amqp_tls: TlsFiles,
    /// AMQP heartbeat interval asked for.
    pub amqp_heartbeat: Duration,
    /// Binlog or polling.
    pub source: SourceMode,
    /// How rows are claimed by polling.
    pub claim: ClaimForm,
    /// Rows a claim.
    pub claim_batch: usize,
    /// How long a claimed row is leased.
    pub claim_lease: Duration,
    /// Pause between claims that found less than a batch.
    pub poll_interval: Duration,
    /// First pause before a polling relay looks whether the binlog can be read again.
    pub binlog_probe_interval: Duration,
    /// Pause between sweeps.
    pub sweep_interval: Duration,
    /// Server id the relay shows to MySQL as a replica; unique among its replicas.
    pub server_id: u32,
    /// Heartbeat period asked of the binlog stream; three of them without an event is a dead connection.
    pub binlog_heartbeat: Duration,
    /// Outbox table.
    pub table: Identifier,
    /// Its columns.
    pub columns: Columns,
    /// Dead letter table.
    pub dead_letter_table: Identifier,
    /// Checkpoint table.
    pub checkpoint_table: Identifier,
    /// Where publications go.
    pub sink: Sink,
    /// Exchange template, for rows that name none.
    pub exchange: Template,
    /// Type of the exchange when it is declared.
    pub exchange_type: String,
    /// Declare, check or trust the exchange.
    pub topology: Topology,
    /// Routing key template, for rows that name none.
    pub routing_key: Template,
    /// What is round the payload.
    pub envelope: Envelope,
    /// Order kept.
    pub ordering: Ordering,
    /// Events held at once: in flight, waiting for their aggregate, or for a retry.
    pub window: usize,
    /// Bytes of events held at once.
    pub window_bytes: usize,
    /// An event's own failures before it becomes a dead letter.
    pub max_attempts: u32,
    /// How long a confirm may take before the connection is given up.
    pub confirm_timeout: Duration,
    /// Bound on one attempt to connect, to either server.
    pub connect_timeout: Duration,
    /// Bound on draining after SIGTERM.
    pub shutdown_timeout: Duration,
    /// How long the lock of this relay's name outlives a pause of its holder; whole seconds.
    pub lease: Duration,
    /// Marks.
    pub mark: Mark,
    /// How long a confirmed event may wait for its mark.
    pub mark_interval: Duration,
    /// How long published rows are kept; none means for ever.
    pub retention: Option<Duration>,
    /// Pause between rounds of cleaning up.
    pub retention_interval: Duration,
    /// Checkpoint store.
    pub checkpoint: CheckpointStore,
    /// Shortest time between two checkpoint writes.
    pub checkpoint_interval: Duration,
    /// Address of `/metrics`, `/livez`, `/readyz`, `/status`; none turns HTTP off.
    pub http_addr: Option<SocketAddr>,
    /// What HTTP admin calls need; none turns them off.
    pub admin_token: Option<AdminToken>,
    /// Log filter, as `tracing` understands it.
    pub log_level: String,
    /// Log format.
    pub log_format: LogFormat,
}

impl Config {
    /// Validates what was given.
    ///
    /// # Errors
    /// The first key whose value is missing or not allowed, with the value and what is allowed.
    #[expect(clippy::too_many_lines, reason = "one line a setting")]
    pub fn from_raw(raw: &Raw) -> Result<Self, ConfigError> {
        let name = raw.name("name")?;
        let checkpoint = match raw.optional_path("checkpoint_file") {
            Some(path) => CheckpointStore::File(path),
            None => CheckpointStore::Mysql,
        };
        let mut mysql: MysqlUrl = raw.parsed("mysql_url", MysqlUrl::parse)?;
        if let Some(password) = raw.secret_file("mysql_password_file")? {
            mysql.set_password(password);
        }
        let mut amqp: AmqpUrl = raw.parsed("amqp_url", AmqpUrl::parse)?;
        if let Some(password) = raw.secret_file("amqp_password_file")? {
            amqp.set_password(password);
        }
        Ok(Self {
            server_id: raw.server_id("server_id", &name)?,
            mysql_tls: tls::mysql(raw, &mysql)?,
            mysql,
            amqp_tls: tls::amqp(raw, &amqp)?,
            amqp,
            amqp_heartbeat: raw.duration("amqp_heartbeat")?,
            source: raw.choice(
                "source",
                &[
                    ("auto", SourceMode::Auto),
                    ("binlog", SourceMode::Binlog),
                    ("poll", SourceMode::Poll),
                ],
            )?,
            claim: raw.choice(
                "claim",
                &[
                    ("auto", ClaimForm::Auto),
                    ("skip_locked", ClaimForm::SkipLocked),
                    ("token", ClaimForm::Token),
                ],
            )?,
            claim_batch: raw.number("claim_batch", 1..=10_000)?,
            claim_lease: raw.duration("claim_lease")?,
            poll_interval: raw.duration("poll_interval")?,
            binlog_probe_interval: raw.duration("binlog_probe_interval")?,
            sweep_interval: raw.duration("sweep_interval")?,
            binlog_heartbeat: raw.duration("binlog_heartbeat")?,
            table: raw.parsed("table", Identifier::parse)?,
            columns: Columns::from_raw(raw)?,
            dead_letter_table: raw.parsed("dead_letter_table", Identifier::parse)?,
            checkpoint_table: raw.parsed("checkpoint_table", Identifier::parse)?,
            sink: raw.choice("sink", &[("rabbitmq", Sink::Rabbitmq), ("log", Sink::Log)])?,
            exchange: raw.parsed("exchange", value::exchange)?,
            exchange_type: raw.short_text("exchange_type", 127)?,
            topology: raw.choice(
                "topology",
                &[
                    ("declare", Topology::Declare),
                    ("check", Topology::Check),
                    ("none", Topology::None),
                ],
            )?,
            routing_key: raw.parsed("routing_key", Template::parse)?,
            envelope: raw.choice(
                "envelope",
                &[
                    ("full", Envelope::Full),
                    ("payload", Envelope::Payload),
                    ("cloudevents", Envelope::CloudEvents),
                ],
            )?,
            ordering: raw.choice(
                "ordering",
                &[("aggregate", Ordering::Aggregate), ("none", Ordering::None)],
            )?,
            window: raw.number("window", 1..=1_000_000)?,
            window_bytes: raw.size("window_bytes", 1 << 20..=64 << 30)?,
            max_attempts: raw.number("max_attempts", 1..=1_000_000)?,
            confirm_timeout: raw.duration("confirm_timeout")?,
            connect_timeout: raw.duration("connect_timeout")?,
            shutdown_timeout: raw.duration("shutdown_timeout")?,
            lease: raw.seconds("lease", 2..=600)?,
            mark: raw.choice(
                "mark",
                &[
                    ("update", Mark::Update),
                    ("delete", Mark::Delete),
                    ("none", Mark::None),
                ],
            )?,
            mark_interval: raw.duration("mark_interval")?,
            retention: raw.parsed("retention", |text| match text {
                "off" | "-" => Ok(None),
                text => value::duration(text).map(Some),
            })?,
            retention_interval: raw.duration("retention_interval")?,
            checkpoint,
            checkpoint_interval: raw.duration("checkpoint_interval")?,
            http_addr: raw.address("http_addr")?,
            admin_token: raw.admin_token("admin_token_file")?,
            log_level: raw.parsed("log_level", value::log_filter)?,
            log_format: raw.choice(
                "log_format",
                &[("text", LogFormat::Text), ("json", LogFormat::Json)],
            )?,
            name,
        })
    }
}
