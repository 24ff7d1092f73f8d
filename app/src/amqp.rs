//! The broker's address, its connections, and what its errors mean.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, ErrorKind};
use thiserror::Error;
use tokio::time::timeout;

/// Longest wait for a connection to be ready.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for the broker's answer to one method.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);
/// Seconds between heartbeats; a connection without two of them is taken for lost.
const HEARTBEAT: u16 = 15;

/// A RabbitMQ address. Neither `Display` nor `Debug` shows the password.
#[derive(Clone)]
pub(crate) struct AmqpUrl(AMQPUri);

impl FromStr for AmqpUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut uri: AMQPUri = text
            .parse()
            .map_err(|_| "it is not amqp://USER:PASSWORD@HOST:PORT/VHOST")?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        Ok(Self(uri))
    }
}

impl fmt::Display for AmqpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.0.scheme {
            AMQPScheme::AMQP => "amqp",
            AMQPScheme::AMQPS => "amqps",
        };
        let authority = &self.0.authority;
        let (user, host, port) = (
            &authority.userinfo.username,
            &authority.host,
            authority.port,
        );
        write!(f, "{scheme}://{user}@{host}:{port}/{}", self.0.vhost)
    }
}

impl fmt::Debug for AmqpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a call to the broker failed.
#[derive(Debug, Error)]
pub(crate) enum AmqpError {
    /// The broker or the connection said no.
    #[error("cannot {doing}")]
    Failed {
        /// What was tried, and on which object.
        doing: String,
        #[source]
        source: lapin::Error,
    },
    /// No answer.
    #[error("no answer within {after:?} to: {doing}")]
    Timeout {
        /// What was tried, and on which object.
        doing: String,
        after: Duration,
    },
    /// The broker ended the consumer.
    #[error("the broker cancelled the consumer of queue {queue}; was the queue deleted?")]
    Cancelled { queue: String },
    /// MySQL took neither a message nor a dead letter.
    #[error("a message of queue {queue} could not be recorded")]
    Unrecorded { queue: String },
}

impl AmqpError {
    /// What a person has to do, if time alone mends nothing.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        let AmqpError::Failed { source, doing } = self else {
            return None;
        };
        let ErrorKind::ProtocolError(error) = source.kind() else {
            return None;
        };
        // AMQP 0-9-1, section 1.8: reply codes.
        match error.get_id() {
            403 => Some("check user, password and permissions in APP_AMQP_URL"),
            406 if doing.starts_with("declare") => Some(
                "the exchange or queue exists with other properties: choose APP_QUEUE_TYPE as it is, or another \
                 APP_QUEUE or APP_EXCHANGE, or delete it",
            ),
            530 => {
                Some("check the vhost at the end of APP_AMQP_URL, and that the user may enter it")
            }
            _ => None,
        }
    }
}

/// Waits for a call, not longer than `after`.
pub(crate) async fn bounded<T>(
    doing: impl Into<String>,
    after: Duration,
    call: impl Future<Output = lapin::Result<T>>,
) -> Result<T, AmqpError> {
    match timeout(after, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(AmqpError::Failed {
            doing: doing.into(),
            source,
        }),
        Err(_) => Err(AmqpError::Timeout {
            doing: doing.into(),
            after,
        }),
    }
}

/// Opens a connection that shows under `name` in the broker's management page.
pub(crate) async fn connect(url: &AmqpUrl, name: String) -> Result<Connection, AmqpError> {
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let call = Connection::connect_uri(url.0.clone(), properties);
    bounded(format!("connect to {url}"), CONNECT, call).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_stays_inside() {
        let url: AmqpUrl = "amqp://app:s3cret@mq.example:5673/%2f".parse().unwrap();
        assert_eq!(url.to_string(), "amqp://app@mq.example:5673//");
        assert!(!format!("{url:?}").contains("s3cret"));
        assert!("mysql://app:s3cret@h".parse::<AmqpUrl>().is_err());
    }
}
