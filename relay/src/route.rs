//! From an event to a publication: exchange, routing key, properties, headers (pure).

use std::sync::Arc;

/// A header value of a publication.
#[derive(Debug, Clone, PartialEq)]
pub enum HeaderValue {
    /// A UTF-8 text (AMQP long string).
    Text(String),
    /// A signed 64-bit number.
    Int(i64),
    /// A double.
    Double(f64),
    /// A truth value.
    Bool(bool),
}

/// A message, ready to be encoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    /// Exchange name, at most 127 bytes.
    pub exchange: Arc<str>,
    /// Routing key, at most 255 bytes.
    pub routing_key: String,
    /// `message_id` property, at most 255 bytes.
    pub message_id: String,
    /// `type` property, at most 255 bytes.
    pub kind: String,
    /// `content_type` property.
    pub content_type: &'static str,
    /// `app_id` property: the relay's name.
    pub app_id: Arc<str>,
    /// `timestamp` property, in seconds since 1970.
    pub timestamp: Option<u64>,
    /// Application headers.
    pub headers: Vec<(String, HeaderValue)>,
    /// Message body.
    pub body: Vec<u8>,
}
