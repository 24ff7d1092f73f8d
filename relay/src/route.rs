//! From an event to a publication: exchange, routing key, properties, headers (pure).

use std::sync::Arc;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::config::{Config, Envelope, Template};
use crate::envelope;
use crate::event::{Key, OutboxEvent};
use crate::table::first_chars;

/// Characters that an error shows of an exchange name which is too long.
const SHOWN_CHARS: usize = 128;

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

/// Why an event has no publication; trying again can't help.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RouteError {
    /// The row itself is at fault.
    #[error("{0}")]
    Defect(Box<str>),
    /// The `headers` column does not hold a JSON object.
    #[error("column headers is not a JSON object")]
    Headers,
    /// The exchange name has no bytes, or too many.
    #[error("the exchange name {begin:?} has {bytes} bytes, and AMQP allows 1 to 127")]
    Exchange {
        /// How the name begins.
        begin: Box<str>,
        /// How long it is.
        bytes: usize,
    },
}

/// Makes publications of events.
#[derive(Debug, Clone)]
pub struct Router {
    exchange: Template,
    /// The exchange, where it is the same for every event that names none.
    constant: Option<Arc<str>>,
    app_id: Arc<str>,
    routing_key: Template,
    envelope: Envelope,
}

impl Router {
    /// A router as configured.
    pub fn new(config: &Config) -> Self {
        Self {
            constant: config.exchange.constant().map(Arc::from),
            exchange: config.exchange.clone(),
            app_id: config.name.as_str().into(),
            routing_key: config.routing_key.clone(),
            envelope: config.envelope,
        }
    }

    /// The exchange of an event: the row's own, or the configured one.
    pub fn exchange(&self, event: &OutboxEvent) -> Arc<str> {
        match (&event.exchange, &self.constant) {
            (Some(own), _) => Arc::from(&**own),
            (None, Some(constant)) => constant.clone(),
            (None, None) => self.exchange.render(event).into(),
        }
    }

    /// Whether that exchange is the one that the relay declares or checks on connecting.
    pub fn is_checked(&self, exchange: &str) -> bool {
        self.constant.as_deref() == Some(exchange)
    }

    /// The publication of an event.
    ///
    /// # Errors
    /// The event has none: see [`RouteError`].
    pub fn publication(&self, event: &OutboxEvent) -> Result<Publication, RouteError> {
        if let Some(defect) = &event.defect {
            return Err(RouteError::Defect(defect.clone()));
        }
        let exchange = self.exchange(event);
        // The default exchange, of the empty name, would route past every binding.
        if exchange.is_empty() || exchange.len() > 127 {
            return Err(RouteError::Exchange {
                begin: first_chars(&exchange, SHOWN_CHARS).into(),
                bytes: exchange.len(),
            });
        }
        let mut headers = vec![
            ("event_id".to_owned(), header_of_key(&event.id)),
            (
                "aggregate_type".to_owned(),
                HeaderValue::Text(event.aggregate_type.to_string()),
            ),
            (
                "aggregate_id".to_owned(),
                header_of_key(&event.aggregate_id),
            ),
        ];
        if let Some(text) = &event.headers {
            let own: Option<Map<String, Value>> =
                serde_json::from_slice(text).map_err(|_| RouteError::Headers)?;
            headers.extend(own.unwrap_or_default().into_iter().filter_map(extra_header));
        }
        Ok(Publication {
            exchange,
            routing_key: match &event.routing_key {
                Some(own) => own.to_string(),
                None => self.routing_key.render(event),
            },
            message_id: event.idempotency_key.to_string(),
            kind: event.event_type.to_string(),
            content_type: envelope::content_type(self.envelope),
            app_id: self.app_id.clone(),
            timestamp: event
                .created_at
                .and_then(|micros| u64::try_from(micros / 1_000_000).ok()),
            headers,
            body: envelope::body(self.envelope, event, &self.app_id),
        })
    }
}

fn header_of_key(key: &Key) -> HeaderValue {
    match key {
        Key::Int(number) => HeaderValue::Int(*number),
        // AMQP has no unsigned 64-bit header that RabbitMQ accepts.
        Key::UInt(number) => match i64::try_from(*number) {
            Ok(number) => HeaderValue::Int(number),
            Err(_) => HeaderValue::Text(number.to_string()),
        },
        Key::Text(text) => HeaderValue::Text(text.to_string()),
        Key::Uuid(_) => HeaderValue::Text(key.to_string()),
    }
}

/// The row's own fields win over a header of the same name; NULL means no header.
fn extra_header((name, value): (String, Value)) -> Option<(String, HeaderValue)> {
    if matches!(
        name.as_str(),
        "event_id" | "aggregate_type" | "aggregate_id"
    ) {
        return None;
    }
    let value = match value {
        Value::Null => return None,
        Value::Bool(truth) => HeaderValue::Bool(truth),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => HeaderValue::Int(integer),
            (None, Some(double)) if !number.is_u64() => HeaderValue::Double(double),
            (None, _) => HeaderValue::Text(number.to_string()),
        },
        Value::String(text) => HeaderValue::Text(text),
        nested @ (Value::Array(_) | Value::Object(_)) => HeaderValue::Text(nested.to_string()),
    };
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::event;

    fn router() -> Router {
        router_to("outbox.events")
    }

    fn router_to(exchange: &str) -> Router {
        let exchange = Template::parse(exchange).unwrap();
        Router {
            constant: exchange.constant().map(Arc::from),
            exchange,
            app_id: "relay-a".into(),
            routing_key: Template::parse("{aggregate_type}.{event_type}").unwrap(),
            envelope: Envelope::Full,
        }
    }

    #[test]
    fn the_row_wins_over_the_configured_route() {
        let mut event = event(1, 1);
        let publication = router_to("out.{aggregate_type}")
            .publication(&event)
            .unwrap();
        assert_eq!(&*publication.exchange, "out.order");
        event.exchange = Some("special".into());
        event.routing_key = Some("a.b".into());
        let publication = router().publication(&event).unwrap();
        assert_eq!(
            (&*publication.exchange, &*publication.routing_key),
            ("special", "a.b")
        );
        event.exchange = Some("".into());
        assert!(
            router().publication(&event).is_err(),
            "the default exchange"
        );
        event.exchange = Some("x".repeat(128).into());
        assert!(router().publication(&event).is_err());
    }

    #[test]
    fn properties_and_headers_are_the_contract() {
        let mut event = event(501, 1001);
        event.headers = Some(
            br#"{"traceparent": "00-ab", "n": 1, "event_id": 9, "o": {"a": []}, "z": null}"#
                .to_vec(),
        );
        let publication = router().publication(&event).unwrap();
        assert_eq!(publication.routing_key, "order.OrderCreated");
        assert_eq!(publication.message_id, "order:501:created");
        assert_eq!(publication.kind, "OrderCreated");
        assert_eq!(publication.timestamp, Some(1_764_581_400));
        let expected = [
            ("event_id", HeaderValue::Int(501)),
            ("aggregate_type", HeaderValue::Text("order".into())),
            ("aggregate_id", HeaderValue::Int(1001)),
            ("n", HeaderValue::Int(1)),
            ("o", HeaderValue::Text("{\"a\":[]}".into())),
            ("traceparent", HeaderValue::Text("00-ab".into())),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        assert_eq!(publication.headers, expected);
    }

    #[test]
    fn headers_must_be_an_object() {
        let mut event = event(1, 1);
        event.headers = Some(b"[1]".to_vec());
        assert_eq!(router().publication(&event), Err(RouteError::Headers));
        event.headers = Some(b"null".to_vec());
        assert!(router().publication(&event).is_ok());
    }

    #[test]
    fn templates() {
        let event = event(7, 9);
        for (template, key) in [
            ("{aggregate_type}.{aggregate_id}", "order.9"),
            ("x-{event_id}-{idempotency_key}", "x-7-order:7:created"),
            ("fixed", "fixed"),
            ("", ""),
        ] {
            assert_eq!(Template::parse(template).unwrap().render(&event), key);
        }
        assert!(Template::parse("{aggregate_type").is_err());
        assert!(Template::parse("aggregate_type}").is_err());
        assert!(Template::parse("{x}").is_err());
    }
}
