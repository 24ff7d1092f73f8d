//! RabbitMQ: one connection, one channel, confirms on, everything mandatory and persistent.
//!
//! The publishing side of AMQP is small, and the guarantee rests on its order: a message's return comes before its
//! ack. So frames go through code of our own that keeps that order: what comes in and the hot frames that go out are
//! coded by hand, the rest by the `amq-protocol` codec.

mod frame;
mod handshake;
mod inbound;
mod probe;
mod settle;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, channel, connection};
use amq_protocol::types::ShortString;
use amq_protocol_uri::{AMQPScheme, AMQPUri};

use super::{PublishError, Publisher, Refused, Signal};
use crate::config::{Config, Topology};
use crate::leader::Lease;
use crate::route::Publication;
use crate::tls::TlsFiles;
use frame::{BASIC, CHANNEL, PUBLISH, encode, identity};
use inbound::{Close, Done, Inbound, Return};
pub use probe::may_write;
use settle::InFlight;
use wire::{Wire, breach};

/// Unwritten bytes below which more should be published.
const LOW_WATER: usize = 256 << 10;
/// `reply-success` (1.4).
const REPLY_SUCCESS: u16 = 200;
/// Reply codes (1.2): no such exchange, and not for this user.
const NOT_FOUND: u16 = 404;
const ACCESS_REFUSED: u16 = 403;

/// How to get there.
#[derive(Clone)]
pub struct RabbitSettings {
    uri: AMQPUri,
    tls: TlsFiles,
    connection_name: String,
    /// The exchange to be declared or checked; none where it differs from event to event.
    exchange: Option<String>,
    exchange_type: String,
    topology: Topology,
    heartbeat: Duration,
    connect_timeout: Duration,
    lease: Lease,
    /// The largest body that the broker takes. It tells only by closing the channel on a larger one, so what one
    /// connection has learnt must outlive it.
    body_max: Arc<AtomicUsize>,
}

impl RabbitSettings {
    /// As configured, publishing while the lease stands.
    pub fn new(config: &Config, lease: Lease) -> Self {
        Self {
            uri: config.amqp.uri().clone(),
            tls: config.amqp_tls.clone(),
            connection_name: format!("outbox-relay {}", config.name),
            exchange: config.exchange.constant().map(str::to_owned),
            exchange_type: config.exchange_type.clone(),
            topology: config.topology,
            heartbeat: config.amqp_heartbeat,
            connect_timeout: config.connect_timeout,
            lease,
            body_max: Arc::new(AtomicUsize::new(usize::MAX)),
        }
    }

    fn address(&self) -> String {
        format!("{}:{}", self.uri.authority.host, self.uri.authority.port)
    }

    fn is_tls(&self) -> bool {
        match self.uri.scheme {
            AMQPScheme::AMQP => false,
            AMQPScheme::AMQPS => true,
        }
    }
}

impl fmt::Debug for RabbitSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSettings")
            .field("address", &self.address())
            .field("user", &self.uri.authority.userinfo.username)
            .field("vhost", &self.uri.vhost)
            .field("exchange", &self.exchange)
            .finish_non_exhaustive()
    }
}

/// A publishing connection.
pub struct RabbitMq {
    wire: Wire,
    in_flight: InFlight,
    returning: Option<Return>,
    body_max: Arc<AtomicUsize>,
    /// How the connection has ended, while what came before that is being told.
    ended: Option<PublishError>,
}

impl RabbitMq {
    /// Connects, declares or checks the exchange, and turns confirms on.
    ///
    /// # Errors
    /// Each way in which that can fail has an error of its own.
    pub async fn connect(settings: &RabbitSettings) -> Result<Self, PublishError> {
        let connecting = Box::pin(handshake::connect(settings));
        let wire = tokio::time::timeout(settings.connect_timeout, connecting)
            .await
            .map_err(|_| PublishError::ConnectTimeout {
                address: settings.address(),
            })??;
        Ok(Self {
            wire,
            in_flight: InFlight::new(),
            returning: None,
            body_max: settings.body_max.clone(),
            ended: None,
        })
    }

    fn take_frames(&mut self, out: &mut Vec<Signal>) -> Result<(), PublishError> {
        while let Some(frame) = self.wire.next_frame()? {
            match frame {
                Inbound::Confirm(confirm) => {
                    self.in_flight.confirmed(confirm, out).map_err(breach)?;
                }
                Inbound::Return(back) => self.returning = Some(back),
                Inbound::Header { message_id } => self.returned(&message_id)?,
                // The body of a returned message: we have it.
                Inbound::Body | Inbound::Heartbeat => {}
                Inbound::Blocked(reason) => out.push(Signal::Blocked { reason }),
                Inbound::Unblocked => out.push(Signal::Unblocked),
                Inbound::Close(close) => return self.closed(close),
                Inbound::Start(_) | Inbound::Tune(_) | Inbound::Done(_) => {
                    return Err(PublishError::Protocol(
                        "a method comes that has no place here",
                    ));
                }
            }
        }
        Ok(())
    }

    fn returned(&mut self, message_id: &[u8]) -> Result<(), PublishError> {
        let back = self.returning.take().ok_or(PublishError::Protocol(
            "a message comes that nobody asked for",
        ))?;
        let identity = identity(message_id, &back.exchange, &back.routing_key);
        self.in_flight
            .returned(identity, back.code, back.text)
            .map_err(breach)
    }

    /// The broker has closed: answers, and learns from it.
    fn closed(&mut self, close: Close) -> Result<(), PublishError> {
        if let Some(largest) = body_max(&close) {
            self.body_max.store(largest, Ordering::Relaxed);
        }
        let (channel, answer) = if close.connection {
            let answer = connection::AMQPMethod::CloseOk(connection::CloseOk {});
            (0, AMQPClass::Connection(answer))
        } else {
            let answer = channel::AMQPMethod::CloseOk(channel::CloseOk {});
            (CHANNEL, AMQPClass::Channel(answer))
        };
        self.wire.push(&AMQPFrame::Method(channel, answer))?;
        Err(broker_closed(close))
    }

    /// Reads first what the broker says, even where it takes no more bytes: acks, and why it went.
    fn turn(&mut self, cx: &mut Context<'_>, out: &mut Vec<Signal>) -> Result<(), PublishError> {
        let written = self.wire.poll_write(cx);
        loop {
            if let Err(error) = self.take_frames(out) {
                // The answer to a close goes out if the socket takes it; the close is what is told.
                drop(self.wire.poll_write(cx));
                return Err(error);
            }
            if !self.wire.poll_read(cx)? {
                break;
            }
        }
        written?;
        self.wire.poll_heartbeat(cx)
    }

    /// `connection.close`, and the wait for its answer.
    async fn say_goodbye(mut self) -> Result<(), PublishError> {
        let close = connection::Close {
            reply_code: REPLY_SUCCESS,
            reply_text: ShortString::default(),
            class_id: 0,
            method_id: 0,
        };
        let close = AMQPClass::Connection(connection::AMQPMethod::Close(close));
        self.wire.send(&AMQPFrame::Method(0, close)).await?;
        while self.wire.receive().await? != Inbound::Done(Done::ConnectionClose) {}
        Ok(())
    }
}

fn broker_closed(close: Close) -> PublishError {
    let about_publication = !close.connection && close.cause == (BASIC, PUBLISH);
    if about_publication && matches!(close.code, NOT_FOUND | ACCESS_REFUSED) {
        return PublishError::PublicationRefused {
            code: close.code,
            text: close.text,
        };
    }
    PublishError::Closed {
        what: if close.connection {
            "connection"
        } else {
            "channel"
        },
        code: close.code,
        text: close.text,
    }
}

/// The largest body allowed, where the broker closes the channel on one that is larger: it says that "message size
/// 17000000 is larger than configured max size 16777216".
fn body_max(close: &Close) -> Option<usize> {
    let (said, largest) = close.text.rsplit_once("max size ")?;
    let about_size = close.cause == (BASIC, PUBLISH) && said.contains("message size");
    let digits: String = largest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|_| about_size)
}

impl Publisher for RabbitMq {
    fn publish(&mut self, publication: &Publication) -> Result<u64, Refused> {
        let (bytes, allowed) = (
            publication.body.len(),
            self.body_max.load(Ordering::Relaxed),
        );
        if bytes > allowed {
            return Err(Refused::BodyTooLarge { bytes, allowed });
        }
        encode(publication, self.wire.frame_max, &mut self.wire.out)?;
        let identity = identity(
            publication.message_id.as_bytes(),
            publication.exchange.as_bytes(),
            publication.routing_key.as_bytes(),
        );
        Ok(self.in_flight.push(identity))
    }

    fn buffered(&self) -> usize {
        self.wire.buffered()
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn poll_signals(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<Signal>,
    ) -> Poll<Result<(), PublishError>> {
        if let Some(error) = self.ended.take() {
            return Poll::Ready(Err(error));
        }
        let (signals, full) = (out.len(), self.wire.buffered() > LOW_WATER);
        let turned = self.turn(cx, out);
        let told = out.len() > signals;
        match turned {
            Err(error) if told => {
                self.ended = Some(error);
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(error)),
            Ok(()) if told || (full && self.wire.buffered() <= LOW_WATER) => Poll::Ready(Ok(())),
            Ok(()) => Poll::Pending,
        }
    }

    fn close(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            if let Err(error) = self.say_goodbye().await {
                tracing::debug!(%error, "the broker did not take the goodbye");
            }
        })
    }
}
