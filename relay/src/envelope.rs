//! Message bodies: the payload, with the row's other fields round it or not (pure).

use crate::config::Envelope;
use crate::event::{Key, OutboxEvent, rfc3339};

/// The `content_type` of bodies in that envelope.
pub fn content_type(envelope: Envelope) -> &'static str {
    match envelope {
        Envelope::Full | Envelope::Payload => "application/json",
        Envelope::CloudEvents => "application/cloudevents+json",
    }
}

/// The message body of an event that the relay of that name publishes.
pub fn body(envelope: Envelope, event: &OutboxEvent, relay: &str) -> Vec<u8> {
    match envelope {
        Envelope::Full => full(event),
        Envelope::Payload => event.payload.clone(),
        Envelope::CloudEvents => cloud_event(event, relay),
    }
}

fn full(event: &OutboxEvent) -> Vec<u8> {
    let mut body = Vec::with_capacity(event.payload.len() + 256);
    body.extend_from_slice(b"{\"event_id\":");
    json_key(&mut body, &event.id);
    body.extend_from_slice(b",\"event_type\":");
    json_text(&mut body, &event.event_type);
    body.extend_from_slice(b",\"aggregate_type\":");
    json_text(&mut body, &event.aggregate_type);
    body.extend_from_slice(b",\"aggregate_id\":");
    json_key(&mut body, &event.aggregate_id);
    body.extend_from_slice(b",\"idempotency_key\":");
    json_text(&mut body, &event.idempotency_key);
    body.extend_from_slice(b",\"created_at\":");
    match event.created_at {
        Some(micros) => json_text(&mut body, &rfc3339(micros)),
        None => body.extend_from_slice(b"null"),
    }
    body.extend_from_slice(b",\"payload\":");
    body.extend_from_slice(&event.payload);
    body.push(b'}');
    body
}

/// CloudEvents 1.0, JSON format, structured mode. `id` is the idempotency key: with `source` it is unique, and the same
/// on a second delivery, as the specification asks.
fn cloud_event(event: &OutboxEvent, relay: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(event.payload.len() + 320);
    body.extend_from_slice(b"{\"specversion\":\"1.0\",\"id\":");
    json_text(&mut body, &event.idempotency_key);
    body.extend_from_slice(b",\"source\":");
    json_text(&mut body, &format!("/outbox/{relay}"));
    body.extend_from_slice(b",\"type\":");
    json_text(&mut body, &event.event_type);
    body.extend_from_slice(b",\"subject\":");
    let subject = format!("{}/{}", event.aggregate_type, event.aggregate_id);
    json_text(&mut body, &subject);
    if let Some(micros) = event.created_at {
        body.extend_from_slice(b",\"time\":");
        json_text(&mut body, &rfc3339(micros));
    }
    body.extend_from_slice(b",\"datacontenttype\":\"application/json\",\"data\":");
    body.extend_from_slice(&event.payload);
    body.push(b'}');
    body
}

fn json_key(body: &mut Vec<u8>, key: &Key) {
    match key {
        Key::Int(_) | Key::UInt(_) => body.extend_from_slice(key.to_string().as_bytes()),
        Key::Text(text) => json_text(body, text),
        Key::Uuid(_) => json_text(body, &key.to_string()),
    }
}

/// A JSON string: quotes, backslashes and control characters escaped, all else as it is.
fn json_text(body: &mut Vec<u8>, text: &str) {
    body.push(b'"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..=0x1f => b"",
            _ => continue,
        };
        body.extend_from_slice(text.as_bytes().get(plain..at).unwrap_or_default());
        if escape.is_empty() {
            body.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
        } else {
            body.extend_from_slice(escape);
        }
        plain = at + 1;
    }
    body.extend_from_slice(text.as_bytes().get(plain..).unwrap_or_default());
    body.push(b'"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::tests::event;

    #[test]
    fn the_envelope_is_the_contract() {
        assert_eq!(
            String::from_utf8(body(Envelope::Full, &event(501, 1001), "relay-a")).unwrap(),
            "{\"event_id\":501,\"event_type\":\"OrderCreated\",\"aggregate_type\":\"order\",\
             \"aggregate_id\":1001,\"idempotency_key\":\"order:501:created\",\
             \"created_at\":\"2025-12-01T09:30:00.123456Z\",\"payload\":{\"total\": 5}}"
        );
    }

    #[test]
    fn the_payload_goes_out_as_it_is() {
        assert_eq!(
            body(Envelope::Payload, &event(1, 1), "r"),
            b"{\"total\": 5}"
        );
    }

    #[test]
    fn cloud_events_have_what_the_specification_requires() {
        let body = body(Envelope::CloudEvents, &event(501, 1001), "relay-a");
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let expected = serde_json::json!({
            "specversion": "1.0", "id": "order:501:created", "source": "/outbox/relay-a",
            "type": "OrderCreated", "subject": "order/1001", "time": "2025-12-01T09:30:00.123456Z",
            "datacontenttype": "application/json", "data": {"total": 5},
        });
        assert_eq!(json, expected);
    }

    proptest! {
        #[test]
        fn any_text_survives_the_envelope(
            aggregate_type in ".*", event_type in ".*", key in ".*", id in any::<u64>()
        ) {
            let mut event = event(1, 1);
            event.id = Key::UInt(id);
            event.aggregate_type = aggregate_type.as_str().into();
            event.aggregate_id = Key::Text(key.as_str().into());
            event.event_type = event_type.as_str().into();
            let body = body(Envelope::Full, &event, "relay-a");
            let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
            prop_assert_eq!(json["event_id"].as_u64(), Some(id));
            prop_assert_eq!(json["aggregate_type"].as_str(), Some(aggregate_type.as_str()));
            prop_assert_eq!(json["aggregate_id"].as_str(), Some(key.as_str()));
            prop_assert_eq!(json["event_type"].as_str(), Some(event_type.as_str()));
        }
    }
}
