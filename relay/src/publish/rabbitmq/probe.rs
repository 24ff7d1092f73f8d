//! Whether the user may write to an exchange, without publishing to it.

use amq_protocol::protocol::{AMQPClass, exchange};
use amq_protocol::types::FieldTable;

use super::handshake::{call, connect, short};
use super::inbound::{Done, Inbound};
use super::{ACCESS_REFUSED, RabbitSettings, broker_closed};
use crate::publish::PublishError;

/// Every virtual host has these.
const SOURCES: [&str; 2] = ["amq.fanout", "amq.direct"];

/// Takes a binding away from the exchange that is not there. RabbitMQ asks first for leave to write to the exchange, as
/// for a publication, then for leave to read from the source; and taking away nothing changes nothing. If the user may
/// not write, the broker's words.
///
/// # Errors
/// The broker can't be reached, or the connection broke.
pub async fn may_write(
    settings: &RabbitSettings,
    name: &str,
) -> Result<Result<(), String>, PublishError> {
    let asking = Box::pin(ask(settings, name));
    let answer = tokio::time::timeout(settings.connect_timeout, asking).await;
    answer.map_err(|_| PublishError::ConnectTimeout {
        address: settings.address(),
    })?
}

async fn ask(settings: &RabbitSettings, name: &str) -> Result<Result<(), String>, PublishError> {
    let mut wire = connect(settings).await?;
    let source = SOURCES.into_iter().find(|source| *source != name);
    let unbind = exchange::Unbind {
        destination: short(name)?,
        source: short(source.unwrap_or_default())?,
        routing_key: short("outbox-relay check")?,
        nowait: false,
        arguments: FieldTable::default(),
    };
    let unbind = AMQPClass::Exchange(exchange::AMQPMethod::Unbind(unbind));
    match call(&mut wire, unbind).await? {
        Inbound::Done(Done::ExchangeUnbind) => Ok(Ok(())),
        // It names the exchange that is refused: the source says that the other was not.
        Inbound::Close(close)
            if close.code == ACCESS_REFUSED && close.text.contains(&format!("'{name}'")) =>
        {
            Ok(Err(close.text))
        }
        Inbound::Close(close) if !close.connection => Ok(Ok(())),
        Inbound::Close(close) => Err(broker_closed(close)),
        _ => Err(PublishError::Protocol("exchange.unbind-ok does not follow")),
    }
}
