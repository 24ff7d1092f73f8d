//! From nothing to a channel in confirm mode. Specification: section 2.2.4 "Connection Class", and RabbitMQ's
//! `confirm.select`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use amq_protocol::frame::{AMQPFrame, ProtocolVersion};
use amq_protocol::protocol::{AMQPClass, channel, confirm, connection, exchange};
use amq_protocol::types::{AMQPValue, FieldTable, LongString, ShortString};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::RabbitSettings;
use super::frame::CHANNEL;
use super::wire::{Transport, Wire};
use crate::config::Topology;
use crate::publish::PublishError;

/// Frames that we offer to take; RabbitMQ's own default.
const FRAME_MAX: u32 = 131_072;
/// The least that a peer may ask for (AMQP 0-9-1, `frame-min-size`).
const FRAME_MIN: u32 = 4_096;

pub(super) async fn connect(settings: &RabbitSettings) -> Result<Wire, PublishError> {
    let transport = dial(settings).await?;
    let mut wire = Wire::new(transport, settings.lease.clone(), FRAME_MAX as usize);
    authenticate(settings, &mut wire).await?;
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
    if let Some(path) = &settings.ca_file {
        let described = |error: String| io::Error::other(format!("{}: {error}", path.display()));
        for certificate in
            CertificateDer::pem_file_iter(path).map_err(|error| described(error.to_string()))?
        {
            let certificate = certificate.map_err(|error| described(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| described(error.to_string()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

async fn authenticate(settings: &RabbitSettings, wire: &mut Wire) -> Result<(), PublishError> {
    wire.send(&AMQPFrame::ProtocolHeader(ProtocolVersion::amqp_0_9_1()))
        .await?;
    let connection::AMQPMethod::Start(start) = connection_method(wire).await? else {
        return Err(PublishError::Protocol(
            "connection.start does not come first",
        ));
    };
    let user = &settings.uri.authority.userinfo;
    let refused = |text: String| PublishError::AuthRefused {
        user: user.username.clone(),
        text,
    };
    let mechanisms = String::from_utf8_lossy(start.mechanisms.as_bytes()).into_owned();
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
    let tune = match connection_method(wire).await {
        Ok(connection::AMQPMethod::Tune(tune)) => tune,
        Ok(connection::AMQPMethod::Close(close)) => {
            return Err(refused(close.reply_text.to_string()));
        }
        Ok(_) => return Err(PublishError::Protocol("connection.tune does not follow")),
        // Brokers that do not know authentication_failure_close just hang up.
        Err(PublishError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(refused("it hung up on our credentials".to_owned()));
        }
        Err(error) => return Err(error),
    };
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
    match connection_method(wire).await? {
        connection::AMQPMethod::OpenOk(_) => {}
        connection::AMQPMethod::Close(close) => {
            let (code, text) = (close.reply_code, close.reply_text.to_string());
            return Err(PublishError::VhostRefused { vhost, code, text });
        }
        _ => return Err(PublishError::Protocol("connection.open-ok does not follow")),
    }
    let opened = call(
        wire,
        AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {})),
    )
    .await?;
    if !matches!(opened, AMQPClass::Channel(channel::AMQPMethod::OpenOk(_))) {
        return Err(PublishError::Protocol("channel.open-ok does not follow"));
    }
    if settings.topology != Topology::None {
        declare(settings, wire).await?;
    }
    let select = confirm::Select { nowait: false };
    let selected = call(
        wire,
        AMQPClass::Confirm(confirm::AMQPMethod::Select(select)),
    )
    .await?;
    match selected {
        AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(_)) => Ok(()),
        _ => Err(PublishError::Protocol("confirm.select-ok does not follow")),
    }
}

async fn declare(settings: &RabbitSettings, wire: &mut Wire) -> Result<(), PublishError> {
    let declare = exchange::Declare {
        exchange: short(&settings.exchange)?,
        kind: short(&settings.exchange_type)?,
        passive: settings.topology == Topology::Check,
        durable: true,
        auto_delete: false,
        internal: false,
        nowait: false,
        arguments: FieldTable::default(),
    };
    let refused = |code, text: &ShortString| PublishError::Topology {
        exchange: settings.exchange.clone(),
        code,
        text: text.to_string(),
    };
    match call(
        wire,
        AMQPClass::Exchange(exchange::AMQPMethod::Declare(declare)),
    )
    .await?
    {
        AMQPClass::Exchange(exchange::AMQPMethod::DeclareOk(_)) => Ok(()),
        AMQPClass::Channel(channel::AMQPMethod::Close(close)) => {
            Err(refused(close.reply_code, &close.reply_text))
        }
        // An unknown exchange type closes the whole connection (503).
        AMQPClass::Connection(connection::AMQPMethod::Close(close)) => {
            Err(refused(close.reply_code, &close.reply_text))
        }
        _ => Err(PublishError::Protocol(
            "exchange.declare-ok does not follow",
        )),
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

fn short(text: &str) -> Result<ShortString, PublishError> {
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

async fn connection_method(wire: &mut Wire) -> Result<connection::AMQPMethod, PublishError> {
    match wire.receive().await? {
        AMQPFrame::Method(_, AMQPClass::Connection(method)) => Ok(method),
        _ => Err(PublishError::Protocol(
            "another class answers than connection",
        )),
    }
}

/// Sends a method on our channel and waits for the answer. `connection.blocked` may come at any time; whoever blocks
/// goes on blocking, and says so again once we publish.
async fn call(wire: &mut Wire, method: AMQPClass) -> Result<AMQPClass, PublishError> {
    wire.send(&AMQPFrame::Method(CHANNEL, method)).await?;
    loop {
        match wire.receive().await? {
            AMQPFrame::Method(
                0,
                AMQPClass::Connection(
                    connection::AMQPMethod::Blocked(_) | connection::AMQPMethod::Unblocked(_),
                ),
            ) => {}
            AMQPFrame::Method(_, method) => return Ok(method),
            _ => return Err(PublishError::Protocol("no method answers")),
        }
    }
}
