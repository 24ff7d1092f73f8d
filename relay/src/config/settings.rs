//! The list of settings: the one place that names them.

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Key in the TOML file; `RELAY_` + capitals is its variable, `--` + dashes its flag.
    pub key: &'static str,
    /// Value when nothing else is given; `None` where there is no such value.
    pub default: Option<&'static str>,
    /// What is allowed, in words that an error can end with.
    pub allowed: &'static str,
    /// What it is for.
    pub help: &'static str,
    /// Whether the value may hold a secret and is never printed.
    pub secret: bool,
}

impl Setting {
    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("RELAY_{}", self.key.to_ascii_uppercase())
    }

    /// The long flag, without its dashes.
    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }
}

const fn setting(
    key: &'static str,
    default: Option<&'static str>,
    allowed: &'static str,
    help: &'static str,
) -> Setting {
    Setting {
        key,
        default,
        allowed,
        help,
        secret: false,
    }
}

const fn secret(
    key: &'static str,
    default: Option<&'static str>,
    allowed: &'static str,
    help: &'static str,
) -> Setting {
    Setting {
        key,
        default,
        allowed,
        help,
        secret: true,
    }
}

const DURATION: &str = "a duration above zero such as 500ms, 30s, 5m or 1h";
const IDENTIFIER: &str =
    "a table name of letters, digits, _ and $, at most 64, in the database of mysql_url";
const COLUMN: &str = "a column name of letters, digits, _ and $, at most 64";
const OPTIONAL_COLUMN: &str =
    "a column name of letters, digits, _ and $, at most 64, or - for none";
const FILE: &str = "the path of a file that can be read";
const PEM_FILE: &str = "the path of a PEM file that can be read";

/// Every setting there is.
pub const SETTINGS: &[Setting] = &[
    secret(
        "mysql_url",
        None,
        "mysql://USER:PASSWORD@HOST:PORT/DATABASE, or a list HOST:PORT,HOST:PORT (percent-encode special characters)",
        "Server and database with the outbox table",
    ),
    setting(
        "mysql_password_file",
        None,
        FILE,
        "File with the password, instead of one in mysql_url",
    ),
    setting(
        "mysql_ca_file",
        None,
        PEM_FILE,
        "CA certificates (PEM) to trust for MySQL; turns TLS on, as ?require_ssl=true in mysql_url does",
    ),
    setting(
        "mysql_client_cert_file",
        None,
        PEM_FILE,
        "Client certificate (PEM, with those between it and its CA) that MySQL may ask for; turns TLS on, needs mysql_client_key_file",
    ),
    setting(
        "mysql_client_key_file",
        None,
        PEM_FILE,
        "Private key (PEM, without a passphrase) of mysql_client_cert_file",
    ),
    secret(
        "amqp_url",
        None,
        "amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps:// for TLS (the vhost / is written %2f)",
        "RabbitMQ server and virtual host",
    ),
    setting(
        "amqp_password_file",
        None,
        FILE,
        "File with the password, instead of one in amqp_url",
    ),
    setting(
        "amqp_ca_file",
        None,
        PEM_FILE,
        "CA certificates (PEM) to trust for RabbitMQ; needs amqps:// in amqp_url",
    ),
    setting(
        "amqp_client_cert_file",
        None,
        PEM_FILE,
        "Client certificate (PEM, with those between it and its CA) that RabbitMQ may ask for; needs amqps:// in amqp_url and amqp_client_key_file",
    ),
    setting(
        "amqp_client_key_file",
        None,
        PEM_FILE,
        "Private key (PEM, without a passphrase) of amqp_client_cert_file",
    ),
    setting(
        "amqp_heartbeat",
        Some("10s"),
        DURATION,
        "AMQP heartbeat interval",
    ),
    setting(
        "name",
        Some("outbox"),
        "1 to 64 letters, digits, '.', '_' or '-'",
        "Name of this relay: of its checkpoint, and app_id of its messages",
    ),
    setting(
        "source",
        Some("auto"),
        "auto, binlog or poll",
        "Where events are captured; auto means the binlog, and polling for as long as the binlog can't be read",
    ),
    setting(
        "claim",
        Some("auto"),
        "auto, skip_locked or token",
        "How polling claims rows: FOR UPDATE SKIP LOCKED (MySQL 8.0.1+, MariaDB 10.6+), or UPDATE with a token; auto means what the server knows",
    ),
    setting(
        "claim_batch",
        Some("500"),
        "a number from 1 to 10000",
        "Rows a claim when polling",
    ),
    setting(
        "claim_lease",
        Some("60s"),
        DURATION,
        "How long a row that was claimed by polling is out of other workers' reach; renewed for as long as it is held",
    ),
    setting(
        "poll_interval",
        Some("200ms"),
        DURATION,
        "Pause between claims when polling, once a claim finds less than a batch",
    ),
    setting(
        "binlog_probe_interval",
        Some("30s"),
        DURATION,
        "While source = auto polls: first pause before it looks whether the binlog can be read again; grows to 20 times that",
    ),
    setting(
        "sweep_interval",
        Some("30s"),
        DURATION,
        "Pause between looks for unpublished rows that the binlog did not bring: dead letters sent again, rows reset by hand or restored",
    ),
    setting(
        "server_id",
        None,
        "a number from 1 to 4294967295 that no other replica of the server uses",
        "Replica id shown to MySQL; by default derived from the name",
    ),
    setting(
        "binlog_heartbeat",
        Some("5s"),
        DURATION,
        "Heartbeat asked of an idle binlog stream; three missed ones mean a dead connection",
    ),
    setting("table", Some("outbox_events"), IDENTIFIER, "Outbox table"),
    setting(
        "preset",
        Some("outbox"),
        "outbox or debezium",
        "Names of the outbox table's columns: this project's, or id, aggregatetype, aggregateid, type and payload; column_* settings change single ones",
    ),
    setting(
        "column_id",
        None,
        COLUMN,
        "Primary key: a number, a text, or BINARY(16) for a UUID",
    ),
    setting(
        "column_aggregate_type",
        None,
        COLUMN,
        "Kind of the aggregate",
    ),
    setting(
        "column_aggregate_id",
        None,
        COLUMN,
        "Which aggregate: a number, a text, or BINARY(16) for a UUID",
    ),
    setting("column_event_type", None, COLUMN, "What happened"),
    setting(
        "column_payload",
        None,
        COLUMN,
        "JSON, in a JSON, text or binary column",
    ),
    setting(
        "column_idempotency_key",
        None,
        COLUMN,
        "The message_id that consumers recognise a duplicate by; may be the primary key",
    ),
    setting(
        "column_created_at",
        None,
        OPTIONAL_COLUMN,
        "When the event happened",
    ),
    setting(
        "column_headers",
        None,
        OPTIONAL_COLUMN,
        "Extra message headers: a flat JSON object",
    ),
    setting(
        "column_status",
        None,
        OPTIONAL_COLUMN,
        "PENDING, PROCESSING, PUBLISHED or FAILED; without it rows are not marked, and nothing but the binlog is read",
    ),
    setting(
        "column_exchange",
        None,
        OPTIONAL_COLUMN,
        "The exchange that a row asks for; NULL means the configured one",
    ),
    setting(
        "column_routing_key",
        None,
        OPTIONAL_COLUMN,
        "The routing key that a row asks for; NULL means the configured one",
    ),
    setting(
        "dead_letter_table",
        Some("dead_letter_events"),
        IDENTIFIER,
        "Table of dead letters",
    ),
    setting(
        "checkpoint_table",
        Some("relay_checkpoints"),
        IDENTIFIER,
        "Table of checkpoints",
    ),
    setting(
        "sink",
        Some("rabbitmq"),
        "rabbitmq or log",
        "What is published to; log is a dry run that prints what would be sent",
    ),
    setting(
        "exchange",
        Some("outbox.events"),
        "a text of at most 127 bytes, with fields such as {aggregate_type} in it as in routing_key",
        "Exchange that events go to; one with fields in it is neither declared nor checked",
    ),
    setting(
        "exchange_type",
        Some("topic"),
        "topic, direct, fanout, headers or a plugin's type",
        "Type of the exchange where the relay declares it",
    ),
    setting(
        "topology",
        Some("declare"),
        "declare, check or none",
        "Declare the exchange (durable), check that it is there, or trust that it is",
    ),
    setting(
        "routing_key",
        Some("{aggregate_type}.{event_type}"),
        "a text with {aggregate_type}, {aggregate_id}, {event_type}, {event_id} or {idempotency_key} in it",
        "Template of the routing key",
    ),
    setting(
        "envelope",
        Some("full"),
        "full, payload or cloudevents",
        "Message body: the payload with the row's fields round it, the payload alone, or CloudEvents 1.0",
    ),
    setting(
        "ordering",
        Some("aggregate"),
        "aggregate or none",
        "aggregate: commit order per aggregate, also across retries; none: fastest for few aggregates",
    ),
    setting(
        "window",
        Some("5000"),
        "a number from 1 to 1000000",
        "Events held at once: in flight, or waiting for their turn",
    ),
    setting(
        "window_bytes",
        Some("64MiB"),
        "a size from 1MiB to 64GiB such as 64MiB",
        "Bytes of events held at once",
    ),
    setting(
        "max_attempts",
        Some("10"),
        "a number from 1 to 1000000",
        "Failures of an event's own (unroutable, refused) before it becomes a dead letter",
    ),
    setting(
        "confirm_timeout",
        Some("30s"),
        DURATION,
        "Longest wait for a confirm before the broker connection is given up",
    ),
    setting(
        "connect_timeout",
        Some("10s"),
        DURATION,
        "Bound on one attempt to connect",
    ),
    setting(
        "shutdown_timeout",
        Some("30s"),
        DURATION,
        "Bound on waiting for confirms after SIGTERM",
    ),
    setting(
        "lease",
        Some("10s"),
        "a whole number of seconds from 2s to 10m",
        "How long a paused or cut-off leader keeps a standby of the same name from taking over",
    ),
    setting(
        "mark",
        Some("update"),
        "update, delete or none",
        "What becomes of a published row: status PUBLISHED, deletion, or nothing",
    ),
    setting(
        "mark_interval",
        Some("100ms"),
        DURATION,
        "How long a confirmed event may wait for its mark",
    ),
    setting(
        "retention",
        Some("30d"),
        "a duration above zero and up to 365d such as 12h or 30d, or off",
        "How long published rows are kept before they are deleted in the background; needs the columns status and published_at, and the grant DELETE",
    ),
    setting(
        "retention_interval",
        Some("1m"),
        DURATION,
        "Pause between rounds of deleting old published rows",
    ),
    setting(
        "checkpoint_file",
        None,
        "the path of a file in a folder that can be written",
        "Keep the checkpoint in this file rather than in MySQL",
    ),
    setting(
        "checkpoint_interval",
        Some("1s"),
        DURATION,
        "Shortest time between two checkpoint writes",
    ),
    setting(
        "http_addr",
        Some("127.0.0.1:9464"),
        "ADDRESS:PORT, or off",
        "Where /metrics, /livez, /readyz and /status are served",
    ),
    setting(
        "admin_token_file",
        None,
        "the path of a file with a token of 16 to 512 visible ASCII characters",
        "File with the bearer token for the HTTP calls on dead letters; without it they are off",
    ),
    setting(
        "log_level",
        Some("info"),
        "error, warn, info, debug, trace or a tracing filter",
        "How much is logged",
    ),
    setting(
        "log_format",
        Some("text"),
        "text or json",
        "Log lines for a person or a machine",
    ),
];

/// The setting of that key.
pub fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// The text of `docs/configuration.md`.
pub fn reference() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Each setting is a variable, a flag (`--window`), or a key of the TOML file that `RELAY_CONFIG` or `--config` names. A flag wins\n\
         over a variable, a variable over the file, the file over the default. A value that is not allowed, and a name that does not\n\
         exist, end the relay with exit code 2.\n\n\
         This page is written by a test from `relay/src/config/settings.rs`: `UPDATE_DOCS=1 cargo test -p relay settings`.\n",
    );
    for setting in SETTINGS {
        let default = match setting.default {
            Some(default) => format!("`{default}`"),
            None if setting.key.starts_with("column_") => "as `preset` says".to_owned(),
            None => "none".to_owned(),
        };
        text += &format!(
            "\n## `{}`\n\n{}.\n\n- variable `{}`, flag `--{}`\n- default: {default}\n- allowed: {}\n",
            setting.key,
            setting.help,
            setting.variable(),
            setting.flag(),
            setting.allowed,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, reference()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == reference(),
            "docs/configuration.md is not up to date; run: UPDATE_DOCS=1 cargo test -p relay settings"
        );
    }
}
