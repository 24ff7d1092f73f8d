//! What a queue delivered.

use std::collections::HashMap;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, ShortString};

/// A message as a consumer sees it.
#[derive(Debug, Clone)]
pub struct Message {
    /// Exchange it was published to.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// All properties.
    pub properties: BasicProperties,
    /// Its body.
    pub body: Vec<u8>,
}

impl Message {
    /// The `message_id`: the event's idempotency key.
    pub fn key(&self) -> &str {
        text(self.properties.message_id())
    }

    /// The `type` property.
    pub fn kind(&self) -> &str {
        text(self.properties.kind())
    }

    /// The `content_type` property.
    pub fn content_type(&self) -> &str {
        text(self.properties.content_type())
    }

    /// The `app_id` property.
    pub fn app_id(&self) -> &str {
        text(self.properties.app_id())
    }

    /// All headers, by name, in [`Header`] terms.
    pub fn headers(&self) -> Vec<(String, Header)> {
        let Some(table) = self.properties.headers() else {
            return Vec::new();
        };
        table
            .inner()
            .iter()
            .map(|(name, value)| (name.to_string(), Header::of(value)))
            .collect()
    }
}

fn text(value: &Option<ShortString>) -> &str {
    value.as_ref().map_or("", ShortString::as_str)
}

impl From<Delivery> for Message {
    fn from(delivery: Delivery) -> Self {
        Self {
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            properties: delivery.properties,
            body: delivery.data,
        }
    }
}

/// A header value, whatever its width on the wire.
#[derive(Debug, Clone, PartialEq)]
pub enum Header {
    /// A text.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A float or double.
    Double(f64),
    /// A truth value.
    Bool(bool),
    /// Anything else, as lapin prints it.
    Other(String),
}

impl Header {
    /// A text.
    pub fn text(text: &str) -> Self {
        Header::Text(text.to_owned())
    }

    fn of(value: &AMQPValue) -> Self {
        match value {
            AMQPValue::LongString(text) => {
                Header::Text(String::from_utf8_lossy(text.as_bytes()).into_owned())
            }
            AMQPValue::ShortString(text) => Header::Text(text.to_string()),
            AMQPValue::Boolean(truth) => Header::Bool(*truth),
            AMQPValue::ShortShortInt(number) => Header::Int((*number).into()),
            AMQPValue::ShortShortUInt(number) => Header::Int((*number).into()),
            AMQPValue::ShortInt(number) => Header::Int((*number).into()),
            AMQPValue::ShortUInt(number) => Header::Int((*number).into()),
            AMQPValue::LongInt(number) => Header::Int((*number).into()),
            AMQPValue::LongUInt(number) => Header::Int((*number).into()),
            AMQPValue::LongLongInt(number) => Header::Int(*number),
            AMQPValue::Float(number) => Header::Double((*number).into()),
            AMQPValue::Double(number) => Header::Double(*number),
            other => Header::Other(format!("{other:?}")),
        }
    }
}

/// Messages in the order in which they were delivered.
#[derive(Debug, Default)]
pub struct Inbox {
    messages: Vec<Message>,
    first: HashMap<String, usize>,
}

impl Inbox {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one more.
    pub fn push(&mut self, message: Message) {
        self.first
            .entry(message.key().to_owned())
            .or_insert(self.messages.len());
        self.messages.push(message);
    }

    /// Every delivery.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// How many different events.
    pub fn distinct(&self) -> usize {
        self.first.len()
    }

    /// How many deliveries were of an event delivered before.
    pub fn duplicates(&self) -> usize {
        self.messages.len() - self.first.len()
    }

    /// Whether that event was delivered.
    pub fn has(&self, key: &str) -> bool {
        self.first.contains_key(key)
    }

    /// The keys, each once, in the order of their first delivery.
    pub fn first_deliveries(&self) -> impl Iterator<Item = &str> {
        self.messages
            .iter()
            .enumerate()
            .filter(|(at, message)| self.first.get(message.key()) == Some(at))
            .map(|(_, message)| message.key())
    }

    /// The first delivery of an event.
    pub fn get(&self, key: &str) -> Option<&Message> {
        self.messages.get(*self.first.get(key)?)
    }
}
