//! Where publications go, and what comes back.

pub mod log;
pub mod rabbitmq;

use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll};

use thiserror::Error;

use crate::route::Publication;
use crate::tls::{Peer, TlsFailure};

/// The broker's word on one publication. There is no default: what has no outcome is not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Routed, and taken over by the broker.
    Confirmed,
    /// No queue takes it: it came back, and the ack behind it means nothing.
    Returned {
        /// AMQP reply code (312 NO_ROUTE).
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// The broker could not take it.
    Nacked,
}

/// What the broker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// Its word on the publication of that tag.
    Settled {
        /// Delivery tag.
        tag: u64,
        /// The word.
        outcome: Outcome,
    },
    /// It takes no publications for now (memory or disk alarm).
    Blocked {
        /// Which alarm.
        reason: String,
    },
    /// It takes publications again.
    Unblocked,
}

/// Why a publication can't be encoded. Trying again can't help.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// AMQP short strings hold 255 bytes.
    #[error("{field} has {bytes} bytes, and AMQP allows 255")]
    TooLong {
        /// Which.
        field: &'static str,
        /// How long it is.
        bytes: usize,
    },
    /// The broker takes no body of that size.
    #[error(
        "the message has {bytes} bytes, and the broker's max_message_size allows {allowed} (raise it there and start the relay again)"
    )]
    BodyTooLarge {
        /// How large it is.
        bytes: usize,
        /// What the broker allows.
        allowed: usize,
    },
    /// All properties must fit into one frame.
    #[error(
        "the properties and headers take {bytes} bytes, and the broker's frames hold {allowed}"
    )]
    HeadersTooLarge {
        /// How large they are.
        bytes: usize,
        /// What fits.
        allowed: usize,
    },
}

/// Why there is no connection, or no more.
#[derive(Debug, Error)]
pub enum PublishError {
    /// Nobody answers there.
    #[error("cannot reach the broker at {address}")]
    Unreachable {
        /// Host and port.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No answer in time.
    #[error("the broker at {address} did not answer within the connect timeout")]
    ConnectTimeout {
        /// Host and port.
        address: String,
    },
    /// No trust.
    #[error("no TLS with the broker at {address}")]
    Tls {
        /// Host and port.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// User or password is wrong.
    #[error("the broker refuses user {user}: {text}")]
    AuthRefused {
        /// Who asked.
        user: String,
        /// The broker's words.
        text: String,
    },
    /// No such virtual host, or not for this user.
    #[error("the broker refuses virtual host {vhost}: {code} {text}")]
    VhostRefused {
        /// Which.
        vhost: String,
        /// AMQP reply code.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// The exchange is not there, or is another than ours.
    #[error("the broker refuses exchange {exchange}: {code} {text}")]
    Topology {
        /// Which.
        exchange: String,
        /// AMQP reply code.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// The broker has closed the channel over a publication to an exchange that is not there, or not for this user.
    #[error("the broker refuses a publication: {code} {text}")]
    PublicationRefused {
        /// AMQP reply code.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// The broker has closed it.
    #[error("the broker has closed the {what}: {code} {text}")]
    Closed {
        /// Connection or channel.
        what: &'static str,
        /// AMQP reply code.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// It broke.
    #[error("the connection to the broker broke")]
    Io(#[source] std::io::Error),
    /// Another relay may lead: nothing more may go out.
    #[error("the lease of this relay is over")]
    LeaseOver,
    /// Silence.
    #[error("the broker has been silent for two heartbeats")]
    HeartbeatMissed,
    /// Bytes that make no sense.
    #[error("the broker does not keep to the protocol: {0}")]
    Protocol(&'static str),
}

impl PublishError {
    /// Whether a person has to mend it.
    pub fn is_definite(&self) -> bool {
        match self {
            PublishError::AuthRefused { .. }
            | PublishError::VhostRefused { .. }
            | PublishError::Topology { .. } => true,
            // A broker, or a proxy before it, that comes up or goes down may hang up within the TLS handshake.
            PublishError::Tls { source, .. } => !matches!(
                source.kind(),
                ErrorKind::UnexpectedEof
                    | ErrorKind::ConnectionReset
                    | ErrorKind::ConnectionAborted
                    | ErrorKind::BrokenPipe
            ),
            PublishError::Unreachable { .. }
            | PublishError::ConnectTimeout { .. }
            | PublishError::PublicationRefused { .. }
            | PublishError::Closed { .. }
            | PublishError::Io(_)
            | PublishError::LeaseOver
            | PublishError::HeartbeatMissed
            | PublishError::Protocol(_) => false,
        }
    }

    /// A word to the operator.
    pub fn hint(&self) -> &'static str {
        match self {
            PublishError::Unreachable { .. } | PublishError::ConnectTimeout { .. } => {
                "check that RabbitMQ is running and that host and port of RELAY_AMQP_URL are right"
            }
            PublishError::Tls { source, .. } => TlsFailure::of_io(source)
                .unwrap_or(TlsFailure::Other)
                .hint(Peer::Amqp),
            PublishError::AuthRefused { .. } => {
                "check user and password in RELAY_AMQP_URL (or RELAY_AMQP_PASSWORD_FILE)"
            }
            PublishError::VhostRefused { .. } => {
                "create the virtual host (rabbitmqctl add_vhost) and permit the user (rabbitmqctl set_permissions), or correct it in RELAY_AMQP_URL"
            }
            PublishError::Topology { .. } => {
                "correct RELAY_EXCHANGE, RELAY_EXCHANGE_TYPE or RELAY_TOPOLOGY so that they fit the exchange that is there, and permit the user to declare it and to write to it"
            }
            PublishError::PublicationRefused { .. } => {
                "create the exchange, or permit the user to write to it; the relay connects again"
            }
            PublishError::LeaseOver => {
                "the relay stands by; look for what paused it if this comes often"
            }
            PublishError::Closed { .. } => "see the broker's words; the relay connects again",
            PublishError::Io(_) | PublishError::HeartbeatMissed => {
                "check that RabbitMQ is running and the network between; the relay connects again"
            }
            PublishError::Protocol(_) => {
                "check that RELAY_AMQP_URL names RabbitMQ's AMQP port; please report it if it does"
            }
        }
    }
}

/// Somewhere that publications go.
pub trait Publisher: Send {
    /// Encodes a publication into the output buffer. Its delivery tag: 1, 2, 3 … on each connection.
    ///
    /// # Errors
    /// It can't be encoded; nothing was written, and no tag is used.
    fn publish(&mut self, publication: &Publication) -> Result<u64, Refused>;

    /// Bytes encoded and not yet written.
    fn buffered(&self) -> usize;

    /// Publications without an outcome.
    fn in_flight(&self) -> usize;

    /// Writes what is buffered, reads what the broker says and appends it to `out`. Ready when there is something
    /// in `out`, or when the buffer has emptied so far that more should be published.
    ///
    /// # Errors
    /// The connection is gone; whatever has no outcome is undecided.
    ///
    /// # Cancel safety
    /// Safe: all state is in the publisher.
    fn poll_signals(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<Signal>,
    ) -> Poll<Result<(), PublishError>>;

    /// Says goodbye in good order.
    fn close(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}
