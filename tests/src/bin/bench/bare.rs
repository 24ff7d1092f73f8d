//! The yardstick: lapin alone, with the relay's window and guarantees.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, PublisherConfirm,
};
use reqwest::Url;
use tests::process::Usage;

use crate::backlog;
use crate::measurement::Spent;

/// The relay's default.
const WINDOW: usize = 5_000;

/// Publishes that many messages, persistent and mandatory, and awaits every confirm.
pub(crate) async fn publish(url: &Url, exchange: &str, events: u64) -> Result<Spent> {
    let (_connection, channel) = open(url).await?;
    let start = Instant::now();
    let mut in_flight = VecDeque::with_capacity(WINDOW);
    for number in 0..events {
        if in_flight.len() >= WINDOW {
            confirmed(in_flight.pop_front()).await?;
        }
        in_flight.push_back(send(&channel, exchange, number, events).await?);
    }
    while !in_flight.is_empty() {
        confirmed(in_flight.pop_front()).await?;
    }
    Ok(Spent {
        time: start.elapsed(),
        usage: Usage::of(std::process::id())?,
    })
}

/// A connection and a channel with confirms on.
pub(crate) async fn open(url: &Url) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(url.as_str(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    Ok((connection, channel))
}

/// Makes the message of event `number` and publishes it.
async fn send(
    channel: &Channel,
    exchange: &str,
    number: u64,
    events: u64,
) -> Result<PublisherConfirm> {
    let aggregate = backlog::aggregate(number, events);
    let key = backlog::key(number);
    let body = format!(
        "{{\"event_id\":{number},\"event_type\":\"{}\",\"aggregate_type\":\"order\",\
         \"aggregate_id\":{aggregate},\"idempotency_key\":\"{key}\",\
         \"created_at\":\"2026-01-02T03:04:05.000006Z\",\"payload\":{}}}",
        backlog::EVENT_TYPE,
        backlog::payload(number)
    );
    post(
        channel,
        exchange,
        &Post {
            id: number,
            aggregate,
            key,
            body,
        },
    )
    .await
}

/// What varies in a message.
pub(crate) struct Post {
    pub(crate) id: u64,
    pub(crate) aggregate: u64,
    pub(crate) key: String,
    pub(crate) body: String,
}

/// Publishes a message with the contract's properties and headers.
pub(crate) async fn post(
    channel: &Channel,
    exchange: &str,
    post: &Post,
) -> Result<PublisherConfirm> {
    let number = |number: u64| AMQPValue::LongLongInt(number.cast_signed());
    let mut headers = FieldTable::default();
    headers.insert("event_id".into(), number(post.id));
    headers.insert(
        "aggregate_type".into(),
        AMQPValue::LongString("order".into()),
    );
    headers.insert("aggregate_id".into(), number(post.aggregate));
    let properties = BasicProperties::default()
        .with_message_id(post.key.as_str().into())
        .with_type(backlog::EVENT_TYPE.into())
        .with_content_type("application/json".into())
        .with_delivery_mode(2)
        .with_timestamp(1_767_323_045)
        .with_app_id("bench".into())
        .with_headers(headers);
    let options = BasicPublishOptions {
        mandatory: true,
        immediate: false,
    };
    let (exchange, key) = (exchange.into(), backlog::ROUTING_KEY.into());
    Ok(channel
        .basic_publish(exchange, key, options, post.body.as_bytes(), properties)
        .await?)
}

/// Awaits a confirm and takes nothing but a plain ack for one.
pub(crate) async fn confirmed(confirm: Option<PublisherConfirm>) -> Result<()> {
    match confirm.context("nothing in flight")?.await? {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) => bail!("a message was returned"),
        Confirmation::Nack(_) => bail!("a message was nacked"),
        Confirmation::NotRequested => bail!("confirms are off"),
    }
}
