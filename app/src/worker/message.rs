//! From a delivery to an event (pure).

use std::time::SystemTime;

use lapin::message::Delivery;
use lapin::types::{AMQPValue, ShortString};
use reliability::inbox;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::fulfilment::{ORDER_CREATED, Order, OrderError};
use crate::rfc3339;

/// Longest part of an unreadable body that is kept, in characters.
const KEPT: usize = 64 * 1024;
/// Longest part of an error that is kept, in characters: it may quote the body, and its column holds 65,535 bytes.
const ERROR_KEPT: usize = 1000;

/// An event to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Incoming {
    /// Idempotency key of the event.
    pub(super) id: String,
    /// What happened.
    pub(super) kind: String,
    /// Its payload, JSON.
    pub(super) payload: String,
    /// When its row was written.
    pub(super) created_at: Option<SystemTime>,
    /// The order that it asks to be fulfilled.
    pub(super) order: Option<Order>,
}

/// A message that can't be read, as it goes to `dead_letter_events`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Poison {
    /// Id of the outbox row, if the message has it.
    pub(super) source_event_id: Option<i64>,
    /// The `type` property, as far as its column holds it.
    pub(super) kind: String,
    /// What is left of the message, JSON.
    pub(super) payload: String,
    /// What is wrong with it.
    pub(super) error: String,
}

/// Why a message can't be read.
#[derive(Debug, Error)]
enum Unreadable {
    #[error("its body is not the envelope of an event: {0}")]
    Body(#[from] serde_json::Error),
    #[error("its {field} is empty or longer than {bound} characters")]
    Field { field: &'static str, bound: usize },
    #[error("{0}")]
    Order(#[from] OrderError),
}

/// The relay's envelope; see DESIGN, section 6.
#[derive(Deserialize)]
struct Envelope<'a> {
    event_type: String,
    idempotency_key: String,
    created_at: Option<String>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// Reads a message.
pub(super) fn read(delivery: &Delivery) -> Result<Incoming, Box<Poison>> {
    let id = text(delivery.properties.message_id());
    event(id, &delivery.data).map_err(|error| Box::new(poison(delivery, &error.to_string())))
}

/// What is left of a message with that error.
pub(super) fn poison(delivery: &Delivery, error: &str) -> Poison {
    let kind = text(delivery.properties.kind());
    let body = String::from_utf8_lossy(&delivery.data);
    let payload = json!({
        "message_id": text(delivery.properties.message_id()),
        "exchange": delivery.exchange.as_str(),
        "routing_key": delivery.routing_key.as_str(),
        "body": body.chars().take(KEPT).collect::<String>(),
    });
    Poison {
        source_event_id: source_event_id(delivery),
        kind: kind
            .unwrap_or("unknown")
            .chars()
            .take(inbox::EVENT_TYPE_MAX)
            .collect(),
        payload: payload.to_string(),
        error: error.chars().take(ERROR_KEPT).collect(),
    }
}

fn event(message_id: Option<&str>, body: &[u8]) -> Result<Incoming, Unreadable> {
    let envelope: Envelope<'_> = serde_json::from_slice(body)?;
    let id = message_id.map_or(envelope.idempotency_key, str::to_owned);
    within("message_id", &id, inbox::EVENT_ID_MAX)?;
    within("event_type", &envelope.event_type, inbox::EVENT_TYPE_MAX)?;
    let payload = envelope.payload.get();
    let order = match envelope.event_type.as_str() {
        ORDER_CREATED => Some(Order::read(payload)?),
        _ => None,
    };
    Ok(Incoming {
        id,
        kind: envelope.event_type,
        payload: payload.to_owned(),
        created_at: envelope.created_at.as_deref().and_then(rfc3339::parse),
        order,
    })
}

fn within(field: &'static str, text: &str, bound: usize) -> Result<(), Unreadable> {
    if text.is_empty() || text.chars().count() > bound {
        return Err(Unreadable::Field { field, bound });
    }
    Ok(())
}

fn text(property: &Option<ShortString>) -> Option<&str> {
    property
        .as_ref()
        .map(ShortString::as_str)
        .filter(|text| !text.is_empty())
}

fn source_event_id(delivery: &Delivery) -> Option<i64> {
    let headers = delivery.properties.headers().as_ref()?;
    match headers.inner().get("event_id")? {
        AMQPValue::LongLongInt(id) => Some(*id),
        AMQPValue::LongInt(id) => Some(i64::from(*id)),
        AMQPValue::LongUInt(id) => Some(i64::from(*id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"event_id":501,"event_type":"OrderSeen","aggregate_type":"order","aggregate_id":1001,
        "idempotency_key":"order:1001:created","created_at":"2026-01-02T03:04:05.000006Z","payload":{"b": 1.10,"a":"я"}}"#;

    #[test]
    fn the_contract_is_read_and_the_payload_kept_as_it_is() {
        let incoming = event(Some("order:1001:created"), BODY.as_bytes()).unwrap();
        assert_eq!(
            (incoming.id.as_str(), incoming.kind.as_str()),
            ("order:1001:created", "OrderSeen")
        );
        assert_eq!(incoming.payload, r#"{"b": 1.10,"a":"я"}"#);
        assert!(incoming.created_at.is_some());
    }

    #[test]
    fn an_order_is_read_and_one_that_makes_no_sense_is_poison() {
        let order = r#"{"order_id":7,"customer_id":1,"total_cents":5,"items":[{"sku":"A","qty":1,"price_cents":5}]}"#;
        let body = BODY
            .replace("OrderSeen", "OrderCreated")
            .replace(r#"{"b": 1.10,"a":"я"}"#, order);
        let incoming = event(None, body.as_bytes()).unwrap();
        assert_eq!(incoming.order.map(|order| order.order_id), Some(7));
        let error = event(None, body.replace("\"qty\":1", "\"qty\":-1").as_bytes()).unwrap_err();
        assert!(error.to_string().contains("items[0].qty"), "{error}");
    }

    #[test]
    fn the_key_stands_in_for_a_missing_message_id() {
        assert_eq!(
            event(None, BODY.as_bytes()).unwrap().id,
            "order:1001:created"
        );
        assert_eq!(event(Some("x"), BODY.as_bytes()).unwrap().id, "x");
    }

    #[test]
    fn what_is_wrong_is_told() {
        let error = |id, body: &str| event(id, body.as_bytes()).unwrap_err().to_string();
        assert!(error(None, "").contains("not the envelope"));
        assert!(error(None, "{}").contains("event_type"));
        assert!(error(None, &BODY.replace("OrderSeen", "")).contains("event_type is empty"));
        assert!(
            error(None, &BODY.replace("order:1001:created", "")).contains("message_id is empty")
        );
        assert!(event(None, &[0xff, 0xfe]).is_err());
    }

    #[test]
    fn an_error_that_quotes_the_body_is_cut() {
        let body = format!("\"{}\"", "я".repeat(100_000)).into_bytes();
        let delivery = Delivery::mock(7, "e".into(), "order.X".into(), false, body);
        let poison = read(&delivery).unwrap_err();
        assert_eq!(poison.error.chars().count(), ERROR_KEPT);
    }

    #[test]
    fn poison_is_json_whatever_came() {
        let delivery = Delivery::mock(7, "e".into(), "order.X".into(), false, vec![b'{', 0xff, 0]);
        let poison = read(&delivery).unwrap_err();
        assert_eq!(poison.kind, "unknown");
        let kept: serde_json::Value = serde_json::from_str(&poison.payload).unwrap();
        assert_eq!(kept["body"], "{\u{fffd}\u{0}");
        assert_eq!(kept["routing_key"], "order.X");
    }
}
