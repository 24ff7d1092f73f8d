//! RabbitMQ: one connection, one channel, confirms on, everything mandatory and persistent.
//!
//! The publishing side of AMQP is small, and the guarantee rests on its order: a message's return comes before its
//! ack. So frames go through code of our own that keeps that order, on the `amq-protocol` codec for all but the
//! hottest of them.

mod frame;
mod handshake;
mod settle;
mod wire;

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, basic, channel, connection};
use amq_protocol::types::ShortString;
use amq_protocol_uri::{AMQPScheme, AMQPUri};

use super::{PublishError, Publisher, Refused, Signal};
use crate::config::{Config, Topology};
use crate::leader::Lease;
use crate::route::Publication;
use frame::{BASIC, CHANNEL, Confirm, confirm, encode, identity};
use settle::InFlight;
use wire::{Wire, breach, parse};

/// Unwritten bytes below which more should be published.
const LOW_WATER: usize = 256 << 10;
/// `reply-success` (1.4).
const REPLY_SUCCESS: u16 = 200;

/// How to get there.
#[derive(Clone)]
pub struct RabbitSettings {
    uri: AMQPUri,
    ca_file: Option<PathBuf>,
    connection_name: String,
    exchange: String,
    exchange_type: String,
    topology: Topology,
    heartbeat: Duration,
    connect_timeout: Duration,
    lease: Lease,
}

impl RabbitSettings {
    /// As configured, publishing while the lease stands.
    pub fn new(config: &Config, lease: Lease) -> Self {
        Self {
            uri: config.amqp.uri().clone(),
            ca_file: config.amqp_ca_file.clone(),
            connection_name: format!("outbox-relay {}", config.name),
            exchange: config.exchange.clone(),
            exchange_type: config.exchange_type.clone(),
            topology: config.topology,
            heartbeat: config.amqp_heartbeat,
            connect_timeout: config.connect_timeout,
            lease,
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

/// A message on its way back.
#[derive(Debug)]
struct Returning {
    code: u16,
    text: String,
    exchange: String,
    routing_key: String,
}

/// A publishing connection.
pub struct RabbitMq {
    wire: Wire,
    in_flight: InFlight,
    returning: Option<Returning>,
}

/// What an inbound frame is.
enum Inbound {
    Confirm(Confirm),
    Other(Result<Box<AMQPFrame>, PublishError>),
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
        })
    }

    fn take_frames(&mut self, out: &mut Vec<Signal>) -> Result<(), PublishError> {
        loop {
            let inbound = self.wire.next_frame(|frame| match confirm(frame) {
                Some(confirm) => Inbound::Confirm(confirm),
                None => Inbound::Other(parse(frame).map(Box::new)),
            })?;
            match inbound {
                None => return Ok(()),
                Some(Inbound::Confirm(confirm)) => {
                    self.in_flight.confirmed(confirm, out).map_err(breach)?;
                }
                Some(Inbound::Other(frame)) => self.take_frame(*frame?, out)?,
            }
        }
    }

    fn take_frame(&mut self, frame: AMQPFrame, out: &mut Vec<Signal>) -> Result<(), PublishError> {
        match frame {
            AMQPFrame::Heartbeat => Ok(()),
            AMQPFrame::Method(CHANNEL, AMQPClass::Basic(basic::AMQPMethod::Return(back))) => {
                self.returning = Some(Returning {
                    code: back.reply_code,
                    text: back.reply_text.to_string(),
                    exchange: back.exchange.to_string(),
                    routing_key: back.routing_key.to_string(),
                });
                Ok(())
            }
            AMQPFrame::Header(CHANNEL, header) if header.class_id == BASIC => {
                let back = self.returning.take();
                let back = back.ok_or(PublishError::Protocol(
                    "a message comes that nobody asked for",
                ))?;
                let message_id = header.properties.message_id();
                let message_id = message_id.as_ref().map_or("", ShortString::as_str);
                let identity = identity(message_id, &back.exchange, &back.routing_key);
                self.in_flight
                    .returned(identity, back.code, back.text)
                    .map_err(breach)
            }
            // The body of a returned message: we have it.
            AMQPFrame::Body(CHANNEL, _) => Ok(()),
            AMQPFrame::Method(0, AMQPClass::Connection(method)) => self.connection(method, out),
            AMQPFrame::Method(CHANNEL, AMQPClass::Channel(channel::AMQPMethod::Close(close))) => {
                let answer = channel::AMQPMethod::CloseOk(channel::CloseOk {});
                self.wire
                    .push(&AMQPFrame::Method(CHANNEL, AMQPClass::Channel(answer)))?;
                Err(PublishError::Closed {
                    what: "channel",
                    code: close.reply_code,
                    text: close.reply_text.to_string(),
                })
            }
            _ => Err(PublishError::Protocol(
                "a frame comes that has no place here",
            )),
        }
    }

    fn connection(
        &mut self,
        method: connection::AMQPMethod,
        out: &mut Vec<Signal>,
    ) -> Result<(), PublishError> {
        match method {
            connection::AMQPMethod::Blocked(blocked) => {
                out.push(Signal::Blocked {
                    reason: blocked.reason.to_string(),
                });
                Ok(())
            }
            connection::AMQPMethod::Unblocked(_) => {
                out.push(Signal::Unblocked);
                Ok(())
            }
            connection::AMQPMethod::Close(close) => {
                let answer = connection::AMQPMethod::CloseOk(connection::CloseOk {});
                self.wire
                    .push(&AMQPFrame::Method(0, AMQPClass::Connection(answer)))?;
                Err(PublishError::Closed {
                    what: "connection",
                    code: close.reply_code,
                    text: close.reply_text.to_string(),
                })
            }
            _ => Err(PublishError::Protocol(
                "a connection method comes that has no place here",
            )),
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>, out: &mut Vec<Signal>) -> Result<(), PublishError> {
        self.wire.poll_write(cx)?;
        while self.wire.poll_read(cx)? {
            let taken = self.take_frames(out);
            if taken.is_err() {
                // The answer to a close goes out if the socket takes it.
                self.wire.poll_write(cx)?;
                return taken;
            }
        }
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
        loop {
            if let AMQPFrame::Method(0, AMQPClass::Connection(connection::AMQPMethod::CloseOk(_))) =
                self.wire.receive().await?
            {
                return Ok(());
            }
        }
    }
}

impl Publisher for RabbitMq {
    fn publish(&mut self, publication: &Publication) -> Result<u64, Refused> {
        encode(publication, self.wire.frame_max, &mut self.wire.out)?;
        let identity = identity(
            &publication.message_id,
            &publication.exchange,
            &publication.routing_key,
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
        let (signals, full) = (out.len(), self.wire.buffered() > LOW_WATER);
        if let Err(error) = self.turn(cx, out) {
            return Poll::Ready(Err(error));
        }
        let emptied = full && self.wire.buffered() <= LOW_WATER;
        if out.len() > signals || emptied {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
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
