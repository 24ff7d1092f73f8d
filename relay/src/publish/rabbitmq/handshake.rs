//! From nothing to a channel in confirm mode. Specification: section 2.2.4 "Connection Class", and RabbitMQ's
//! `confirm.select`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use amq_protocol::frame::{AMQPFrame, ProtocolVersion};
use amq_protocol::protocol::{AMQPClass, channel, confirm, connection, exchange};
use amq_protocol::types::{AMQPValue, FieldTable, LongString, ShortString};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::frame::CHANNEL;
use super::inbound::{Close, Done, Inbound, Tune};
use super::wire::{Transport, Wire};
use super::{RabbitSettings, broker_closed};
use crate::config::Topology;
use crate::publish::PublishError;
use crate::tls::TlsFailure;

/// Frames that we offer to take; RabbitMQ's own default.
const FRAME_MAX: u32 = 131_072;
/// The least that a peer may ask for (AMQP 0-9-1, `frame-min-size`).
const FRAME_MIN: u32 = 4_096;
/// `access-refused`, `connection-forced`, `resource-error`, `internal-error` (1.2).
const ACCESS_REFUSED: u16 = 403;
const CONNECTION_FORCED: u16 = 320;
const RESOURCE_ERROR: u16 = 506;
const INTERNAL_ERROR: u16 = 541;

pub(super) async fn connect(settings: &RabbitSettings) -> Result<Wire, PublishError> {
    let transport = dial(settings).await?;
    let mut wire = Wire::new(transport, settings.lease.clone(), FRAME_MAX as usize);
    authenticate(settings, &mut wire)
        .await
        .map_err(|error| match error {
            // In TLS 1.3 a server says what it thinks of the client's certificate only after the handshake.
            PublishError::Io(source) if TlsFailure::of_io(&source).is_some() => PublishError::Tls {
                address: settings.address(),
                source,
            },
            other => other,
        })?;
    open(settings, &mut wire).await?;
    Ok(wire)
}

async fn dial(settings: &RabbitSettings) -> Result<Transport, PublishError> {
    let address = settings.address();
    let authority = &settings.uri.authority;
    let unreachable = |source| PublishError::Unreachable {
        address: address.clone(),
        source,
    };
    let stream = TcpStream::connect((authority.host.as_str(), authority.port))
        .await
        .map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    if !settings.is_tls() {
        return Ok(Transport::Plain(stream));
    }
    let tls = |source| PublishError::Tls {
        address: address.clone(),
        source,
    };
    let config = tls_config(settings).map_err(tls)?;
    let name = ServerName::try_from(authority.host.clone())
        .map_err(|error| tls(io::Error::other(error)))?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(tls)?;
    Ok(Transport::Tls(Box::new(stream)))
}

fn tls_config(settings: &RabbitSettings) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let material = settings.tls.load().map_err(io::Error::other)?;
    roots.add_parsable_certificates(material.ca);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    match material.client {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(io::Error::other),
    }
}

async fn authenticate(settings: &RabbitSettings, wire: &mut Wire) -> Result<(), PublishError> {
    wire.send(&AMQPFrame::ProtocolHeader(ProtocolVersion::amqp_0_9_1()))
        .await?;
    let mechanisms = match wire.receive().await? {
        Inbound::Start(mechanisms) => mechanisms,
        other => return Err(unexpected(other, "connection.start does not come first")),
    };
    let user = &settings.uri.authority.userinfo;
    let refused = |text: String| PublishError::AuthRefused {
        user: user.username.clone(),
        text,
    };
    if !mechanisms.split(' ').any(|mechanism| mechanism == "PLAIN") {
        return Err(refused(format!("it offers {mechanisms}, not PLAIN")));
    }
    let response = format!("\0{}\0{}", user.username, user.password);
    let answer = connection::StartOk {
        client_properties: client_properties(settings)?,
        mechanism: short("PLAIN")?,
        response: LongString::from(response),
        locale: short("en_US")?,
    };
    send_connection(wire, connection::AMQPMethod::StartOk(answer)).await?;
    let tune = match wire.receive().await {
        Ok(Inbound::Tune(tune)) => tune,
        Ok(Inbound::Close(close)) if close.code == ACCESS_REFUSED => {
            return Err(refused(close.text));
        }
        Ok(other) => return Err(unexpected(other, "connection.tune does not follow")),
        // Brokers that do not know authentication_failure_close just hang up.
        Err(PublishError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(refused("it hung up on our credentials".to_owned()));
        }
        Err(error) => return Err(error),
    };
    tune_ok(settings, wire, tune).await
}

async fn tune_ok(
    settings: &RabbitSettings,
    wire: &mut Wire,
    tune: Tune,
) -> Result<(), PublishError> {
    // 0 means no limit, or no heartbeat.
    let frame_max = match tune.frame_max {
        0 => FRAME_MAX,
        theirs => theirs.clamp(FRAME_MIN, FRAME_MAX),
    };
    let ours = u16::try_from(settings.heartbeat.as_secs().max(1)).unwrap_or(u16::MAX);
    let heartbeat = if tune.heartbeat == 0 {
        ours
    } else {
        ours.min(tune.heartbeat)
    };
    let answer = connection::TuneOk {
        channel_max: tune.channel_max,
        frame_max,
        heartbeat,
    };
    send_connection(wire, connection::AMQPMethod::TuneOk(answer)).await?;
    wire.tuned(
        frame_max as usize,
        Some(Duration::from_secs(u64::from(heartbeat))),
    );
    Ok(())
}

async fn open(settings: &RabbitSettings, wire: &mut Wire) -> Result<(), PublishError> {
    let vhost = settings.uri.vhost.clone();
    let open = connection::Open {
        virtual_host: short(&vhost)?,
    };
    send_connection(wire, connection::AMQPMethod::Open(open)).await?;
    match wire.receive().await? {
        Inbound::Done(Done::ConnectionOpen) => {}
        Inbound::Close(close) if !passes(&close) => {
            let (code, text) = (close.code, close.text);
            return Err(PublishError::VhostRefused { vhost, code, text });
        }
        other => return Err(unexpected(other, "connection.open-ok does not follow")),
    }
    let open = AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {}));
    match call(wire, open).await? {
        Inbound::Done(Done::ChannelOpen) => {}
        other => return Err(unexpected(other, "channel.open-ok does not follow")),
    }
    if settings.topology != Topology::None {
        declare(settings, wire).await?;
    }
    let select = AMQPClass::Confirm(confirm::AMQPMethod::Select(confirm::Select {
        nowait: false,
    }));
    match call(wire, select).await? {
        Inbound::Done(Done::ConfirmSelect) => Ok(()),
        other => Err(unexpected(other, "confirm.select-ok does not follow")),
    }
}

/// Whether what the broker closes for passes by itself: it stops, or something in it is down for now.
fn passes(close: &Close) -> bool {
    matches!(
        close.code,
        CONNECTION_FORCED | RESOURCE_ERROR | INTERNAL_ERROR
    )
}

/// A frame that is not the one waited for: a close has its words, anything else is a breach.
fn unexpected(frame: Inbound, breach: &'static str) -> PublishError {
    match frame {
        Inbound::Close(close) => broker_closed(close),
        _ => PublishError::Protocol(breach),
    }
}

async fn declare(settings: &RabbitSettings, wire: &mut Wire) -> Result<(), PublishError> {
    let Some(name) = &settings.exchange else {
        return Ok(());
    };
    let declare = exchange::Declare {
        exchange: short(name)?,
        kind: short(&settings.exchange_type)?,
        passive: settings.topology == Topology::Check,
        durable: true,
        auto_delete: false,
        internal: false,
        nowait: false,
        arguments: FieldTable::default(),
    };
    let declare = AMQPClass::Exchange(exchange::AMQPMethod::Declare(declare));
    match call(wire, declare).await? {
        Inbound::Done(Done::ExchangeDeclare) => Ok(()),
        // An unknown exchange type closes the whole connection (503).
        Inbound::Close(close) if !passes(&close) => Err(PublishError::Topology {
            exchange: name.clone(),
            code: close.code,
            text: close.text,
        }),
        other => Err(unexpected(other, "exchange.declare-ok does not follow")),
    }
}

fn client_properties(settings: &RabbitSettings) -> Result<FieldTable, PublishError> {
    let mut capabilities = FieldTable::default();
    for name in [
        "publisher_confirms",
        "basic.nack",
        "connection.blocked",
        "exchange_exchange_bindings",
        "consumer_cancel_notify",
        "authentication_failure_close",
    ] {
        capabilities.insert(short(name)?, AMQPValue::Boolean(true));
    }
    let mut properties = FieldTable::default();
    for (name, value) in [
        ("product", "outbox-relay"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("platform", "Rust"),
        ("connection_name", &settings.connection_name),
    ] {
        properties.insert(short(name)?, AMQPValue::LongString(LongString::from(value)));
    }
    properties.insert(short("capabilities")?, AMQPValue::FieldTable(capabilities));
    Ok(properties)
}

pub(super) fn short(text: &str) -> Result<ShortString, PublishError> {
    ShortString::try_new(text)
        .map_err(|_| PublishError::Protocol("a name of ours is longer than 255 bytes"))
}

async fn send_connection(
    wire: &mut Wire,
    method: connection::AMQPMethod,
) -> Result<(), PublishError> {
    wire.send(&AMQPFrame::Method(0, AMQPClass::Connection(method)))
        .await
}

/// Sends a method on our channel and waits for the answer. RabbitMQ says that it blocks only once something is
/// published, so what it says of that here may be forgotten.
pub(super) async fn call(wire: &mut Wire, method: AMQPClass) -> Result<Inbound, PublishError> {
    wire.send(&AMQPFrame::Method(CHANNEL, method)).await?;
    loop {
        match wire.receive().await? {
            Inbound::Blocked(_) | Inbound::Unblocked => {}
            other => return Ok(other),
        }
    }
}
