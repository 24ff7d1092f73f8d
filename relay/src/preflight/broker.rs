//! RabbitMQ: reached, logged in, the virtual host, the exchange, and leave to write to it. Nothing is published.

use super::report::Report;
use crate::config::{Config, Sink, Topology};
use crate::leader::Lease;
use crate::publish::PublishError;
use crate::publish::Publisher as _;
use crate::publish::rabbitmq::{RabbitMq, RabbitSettings, may_write};

/// Reply codes (AMQP 0-9-1, 1.2).
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
const COMMAND_INVALID: u16 = 503;

pub(super) async fn check(config: &Config, report: &mut Report) {
    if config.sink == Sink::Log {
        report.ok("RabbitMQ", "sink = log: nothing is published");
        return;
    }
    // First without the exchange, so that each step has its own line.
    if let Err(error) = connect(config, Topology::None).await {
        refused(config, report, &error);
        return;
    }
    login(config, report);
    match config.exchange.constant() {
        Some(name) => {
            if exchange(config, report, name).await {
                writing(config, report, name).await;
            }
        }
        None => report.warn(
            "exchange",
            format!("{} differs from event to event: not looked at", config.exchange),
            "declare every exchange that events name; an event of one that is not there becomes a dead letter",
        ),
    }
    report.warn(
        "queues",
        "whether a queue is bound can't be asked without publishing",
        format!(
            "bind a queue before the first event: one that no queue takes becomes a dead letter after {} attempts",
            config.max_attempts
        ),
    );
}

async fn connect(config: &Config, topology: Topology) -> Result<(), PublishError> {
    let publisher = RabbitMq::connect(&settings(config, topology)).await?;
    Box::new(publisher).close().await;
    Ok(())
}

fn settings(config: &Config, topology: Topology) -> RabbitSettings {
    let config = Config {
        topology,
        ..config.clone()
    };
    RabbitSettings::new(&config, Lease::forever())
}

fn login(config: &Config, report: &mut Report) {
    let uri = config.amqp.uri();
    let user = &uri.authority.userinfo.username;
    report.ok("RabbitMQ connection", format!("{} answers", config.amqp));
    report.ok("RabbitMQ login", format!("as {user}"));
    report.ok("virtual host", &uri.vhost);
}

/// The line of the step that failed, after those of the steps before it.
fn refused(config: &Config, report: &mut Report, error: &PublishError) {
    let found = crate::error::chain(error);
    let uri = config.amqp.uri();
    let user = &uri.authority.userinfo.username;
    match error {
        PublishError::AuthRefused { .. } => {
            report.ok("RabbitMQ connection", format!("{} answers", config.amqp));
            report.failed("RabbitMQ login", found, error.hint());
        }
        PublishError::VhostRefused { text, .. } => {
            report.ok("RabbitMQ connection", format!("{} answers", config.amqp));
            report.ok("RabbitMQ login", format!("as {user}"));
            let mend = if text.contains("not found") {
                format!("rabbitmqctl add_vhost {}", quoted(&uri.vhost))
            } else {
                permissions(config)
            };
            report.failed("virtual host", found, mend);
        }
        PublishError::Unreachable { .. }
        | PublishError::ConnectTimeout { .. }
        | PublishError::Tls { .. }
        | PublishError::Topology { .. }
        | PublishError::PublicationRefused { .. }
        | PublishError::Closed { .. }
        | PublishError::Io(_)
        | PublishError::LeaseOver
        | PublishError::HeartbeatMissed
        | PublishError::Protocol(_) => {
            report.failed("RabbitMQ connection", found, error.hint());
        }
    }
}

/// Whether the exchange is there, as the relay would find or make it.
async fn exchange(config: &Config, report: &mut Report, name: &str) -> bool {
    let check = "exchange";
    let there = connect(config, Topology::Check).await;
    let kind = &config.exchange_type;
    let outcome = match (config.topology, there) {
        // As `relay run` does: only declaring shows whether type and permission fit.
        (Topology::Declare, Ok(())) => connect(config, Topology::Declare)
            .await
            .map(|()| format!("{name} is there, durable, of type {kind}")),
        (
            Topology::Declare,
            Err(PublishError::Topology {
                code: NOT_FOUND, ..
            }),
        ) => connect(config, Topology::Declare)
            .await
            .map(|()| format!("{name} was not there; declared, durable, of type {kind}")),
        (Topology::Check | Topology::None, Ok(())) => {
            Ok(format!("{name} is there; its type is not looked at"))
        }
        (Topology::Declare | Topology::Check | Topology::None, Err(error)) => Err(error),
    };
    match outcome {
        Ok(found) => {
            report.ok(check, found);
            true
        }
        Err(error) => {
            let mend = mend(config, &error);
            report.failed(check, crate::error::chain(&error), mend);
            false
        }
    }
}

fn mend(config: &Config, error: &PublishError) -> String {
    let PublishError::Topology { code, text, .. } = error else {
        return error.hint().to_owned();
    };
    match *code {
        ACCESS_REFUSED => permissions(config),
        NOT_FOUND => "RELAY_TOPOLOGY=declare".to_owned(),
        PRECONDITION_FAILED => match type_of(text) {
            Some(kind) => format!("RELAY_EXCHANGE_TYPE={kind}"),
            None => "RELAY_TOPOLOGY=check".to_owned(),
        },
        COMMAND_INVALID => "RELAY_EXCHANGE_TYPE=topic".to_owned(),
        _ => error.hint().to_owned(),
    }
}

/// The type of the exchange that is there: "inequivalent arg 'type' for exchange … but current is 'fanout'".
fn type_of(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("inequivalent arg 'type'")?;
    let (_, current) = rest.rsplit_once("current is '")?;
    current.split('\'').next()
}

async fn writing(config: &Config, report: &mut Report, name: &str) {
    let check = "permission to write";
    match may_write(&settings(config, Topology::None), name).await {
        Ok(Ok(())) => report.ok(check, format!("on {name}")),
        Ok(Err(words)) => report.failed(check, words, permissions(config)),
        Err(error) => report.failed(check, crate::error::chain(&error), error.hint()),
    }
}

/// The command that permits the user what the relay does; it takes the place of what was permitted before.
fn permissions(config: &Config) -> String {
    let uri = config.amqp.uri();
    let exchange = match config.exchange.constant() {
        Some(name) => format!("^{}$", escaped(name)),
        None => ".*".to_owned(),
    };
    let configure = match config.topology {
        Topology::Declare => exchange.as_str(),
        Topology::Check | Topology::None => "^$",
    };
    format!(
        "rabbitmqctl set_permissions -p {} {} {} {} '^$'",
        quoted(&uri.vhost),
        quoted(&uri.authority.userinfo.username),
        quoted(configure),
        quoted(&exchange)
    )
}

/// A text as a regular expression.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        if c.is_ascii_punctuation() && !matches!(c, '_' | '-' | ':' | '/' | '\'' | '"') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// A text as a word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_that_is_there_is_read_from_the_refusal() {
        let text = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'a' in vhost '/': received 'topic' but current is 'fanout'";
        assert_eq!(type_of(text), Some("fanout"));
        let durable = "PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'a' in vhost '/': received 'true' but current is 'false'";
        assert_eq!(type_of(durable), None);
    }

    #[test]
    fn names_are_safe_in_the_command() {
        assert_eq!(escaped("outbox.events-1"), r"outbox\.events-1");
        assert_eq!(quoted("a'b"), r"'a'\''b'");
    }
}
