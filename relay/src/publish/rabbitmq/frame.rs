//! AMQP 0-9-1 frames, the hot ones by hand (pure). Specification: section 4.2 "AMQP Wire-Level Format".

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::publish::Refused;
use crate::route::{HeaderValue, Publication};

/// Frame types and the octet that ends every frame (4.2.3).
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const END: u8 = 0xCE;
/// Type, channel and size before a frame's payload; the end octet behind it.
pub(super) const OVERHEAD: usize = 8;
/// The only channel we use.
pub(super) const CHANNEL: u16 = 1;

/// Class `basic` and its method `publish` (1.8).
pub(super) const BASIC: u16 = 60;
pub(super) const PUBLISH: u16 = 40;
/// `mandatory`: come back rather than vanish where no queue takes the message.
const MANDATORY: u8 = 1;
/// `delivery-mode` of a message that survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// Property flags of the content header (4.2.6.1), from bit 15 down in the order of the properties.
const CONTENT_TYPE: u16 = 1 << 15;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;
const TYPE: u16 = 1 << 5;
const APP_ID: u16 = 1 << 3;

/// By what a returned message is recognised among those in flight.
pub(super) fn identity(message_id: &[u8], exchange: &[u8], routing_key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (message_id, exchange, routing_key).hash(&mut hasher);
    hasher.finish()
}

/// Appends `basic.publish`, the content header and the body.
///
/// # Errors
/// A field does not fit; `out` is as before.
pub(super) fn encode(
    publication: &Publication,
    frame_max: usize,
    out: &mut Vec<u8>,
) -> Result<(), Refused> {
    let before = out.len();
    out.reserve(publication.body.len() + 512);
    let encoded = encode_head(publication, frame_max, out);
    if encoded.is_err() {
        out.truncate(before);
        return encoded;
    }
    for chunk in publication.body.chunks(frame_max - OVERHEAD) {
        let start = begin(BODY, out);
        out.extend_from_slice(chunk);
        end(start, out);
    }
    Ok(())
}

fn encode_head(
    publication: &Publication,
    frame_max: usize,
    out: &mut Vec<u8>,
) -> Result<(), Refused> {
    let start = begin(METHOD, out);
    out.extend_from_slice(&BASIC.to_be_bytes());
    out.extend_from_slice(&PUBLISH.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    short("exchange", &publication.exchange, out)?;
    short("routing key", &publication.routing_key, out)?;
    out.push(MANDATORY);
    end(start, out);

    let start = begin(HEADER, out);
    out.extend_from_slice(&BASIC.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&(publication.body.len() as u64).to_be_bytes());
    let timestamp = if publication.timestamp.is_some() {
        TIMESTAMP
    } else {
        0
    };
    let flags = CONTENT_TYPE | HEADERS | DELIVERY_MODE | MESSAGE_ID | timestamp | TYPE | APP_ID;
    out.extend_from_slice(&flags.to_be_bytes());
    short("content type", publication.content_type, out)?;
    table(&publication.headers, out)?;
    out.push(PERSISTENT);
    short("message id", &publication.message_id, out)?;
    if let Some(seconds) = publication.timestamp {
        out.extend_from_slice(&seconds.to_be_bytes());
    }
    short("event type", &publication.kind, out)?;
    short("app id", &publication.app_id, out)?;
    let bytes = out.len() - start;
    if bytes + OVERHEAD > frame_max {
        return Err(Refused::HeadersTooLarge {
            bytes,
            allowed: frame_max - OVERHEAD,
        });
    }
    end(start, out);
    Ok(())
}

/// Writes a frame's head; where its payload starts.
fn begin(kind: u8, out: &mut Vec<u8>) -> usize {
    out.push(kind);
    out.extend_from_slice(&CHANNEL.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.len()
}

/// Fills in the size of the frame whose payload started there, and ends it.
fn end(start: usize, out: &mut Vec<u8>) {
    fill_length(start, out);
    out.push(END);
}

/// Writes the number of bytes behind `start` into the four before it.
fn fill_length(start: usize, out: &mut [u8]) {
    // Frames are below frame_max, which has 32 bits.
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(start - 4..start) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

fn short(field: &'static str, text: &str, out: &mut Vec<u8>) -> Result<(), Refused> {
    let Ok(length) = u8::try_from(text.len()) else {
        return Err(Refused::TooLong {
            field,
            bytes: text.len(),
        });
    };
    out.push(length);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// A field table (4.2.5.5), with the type letters that RabbitMQ uses.
fn table(headers: &[(String, HeaderValue)], out: &mut Vec<u8>) -> Result<(), Refused> {
    out.extend_from_slice(&[0; 4]);
    let start = out.len();
    for (name, value) in headers {
        short("a header's name", name, out)?;
        match value {
            HeaderValue::Text(text) => {
                out.push(b'S');
                out.extend_from_slice(&[0; 4]);
                let start = out.len();
                out.extend_from_slice(text.as_bytes());
                fill_length(start, out);
            }
            HeaderValue::Int(number) => {
                out.push(b'l');
                out.extend_from_slice(&number.to_be_bytes());
            }
            HeaderValue::Double(number) => {
                out.push(b'd');
                out.extend_from_slice(&number.to_be_bytes());
            }
            HeaderValue::Bool(truth) => out.extend_from_slice(&[b't', u8::from(*truth)]),
        }
    }
    fill_length(start, out);
    Ok(())
}

/// Why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// The first frame of `bytes`, whole with head and end; nothing if it is not all there yet.
pub(super) fn first_frame(bytes: &[u8], frame_max: usize) -> Result<Option<&[u8]>, Malformed> {
    let Some([kind, _, _, a, b, c, d]) = bytes.first_chunk() else {
        return Ok(None);
    };
    // 8 is the heartbeat; 65 is the A of "AMQP…", with which a server refuses our protocol version.
    if !matches!(kind, 1 | 2 | 3 | 8) {
        return Err(Malformed(
            "it answers with something other than AMQP 0-9-1 frames",
        ));
    }
    let size = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
    if size + OVERHEAD > frame_max {
        return Err(Malformed("a frame is larger than agreed"));
    }
    let Some(frame) = bytes.get(..size + OVERHEAD) else {
        return Ok(None);
    };
    if frame.last() != Some(&END) {
        return Err(Malformed("a frame does not end where it should"));
    }
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use amq_protocol::frame::{AMQPFrame, parse_frame};
    use amq_protocol::protocol::{AMQPClass, basic};
    use amq_protocol::types::AMQPValue;
    use proptest::prelude::*;

    use super::super::inbound::{self, Confirm, Inbound};
    use super::*;

    fn publication() -> impl Strategy<Value = Publication> {
        let value = prop_oneof![
            ".{0,40}".prop_map(HeaderValue::Text),
            any::<i64>().prop_map(HeaderValue::Int),
            (-1e9f64..1e9).prop_map(HeaderValue::Double),
            any::<bool>().prop_map(HeaderValue::Bool),
        ];
        (
            "[a-z.]{0,100}",
            ".{0,50}",
            ".{0,50}",
            prop::option::of(any::<u64>()),
            prop::collection::btree_map("[a-z]{1,9}", value, 0..5),
            prop::collection::vec(any::<u8>(), 0..5000),
        )
            .prop_map(
                |(routing_key, message_id, kind, timestamp, headers, body)| Publication {
                    exchange: "outbox.events".into(),
                    routing_key,
                    message_id,
                    kind,
                    content_type: "application/json",
                    app_id: "relay".into(),
                    timestamp,
                    headers: headers.into_iter().collect(),
                    body,
                },
            )
    }

    /// What the codec crate reads.
    fn read(
        mut bytes: &[u8],
        frame_max: usize,
    ) -> (basic::Publish, basic::AMQPProperties, Vec<u8>) {
        let mut frames = Vec::new();
        while let Some(frame) = first_frame(bytes, frame_max).unwrap() {
            let (rest, parsed) = parse_frame(frame).unwrap();
            assert!(rest.is_empty());
            frames.push(parsed);
            bytes = &bytes[frame.len()..];
        }
        assert!(bytes.is_empty());
        let mut frames = frames.into_iter();
        let Some(AMQPFrame::Method(1, AMQPClass::Basic(basic::AMQPMethod::Publish(publish)))) =
            frames.next()
        else {
            panic!("basic.publish comes first")
        };
        let Some(AMQPFrame::Header(1, header)) = frames.next() else {
            panic!("the header follows")
        };
        let body: Vec<u8> = frames
            .flat_map(|frame| match frame {
                AMQPFrame::Body(1, data) => data,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(header.body_size, body.len() as u64);
        (publish, header.properties, body)
    }

    proptest! {
        #[test]
        fn the_codec_crate_reads_what_was_written(publication in publication(), frame_max in 4096usize..6000) {
            let mut out = b"before".to_vec();
            encode(&publication, frame_max, &mut out).unwrap();
            let (publish, properties, body) = read(&out[6..], frame_max);
            prop_assert!(publish.mandatory && !publish.immediate);
            prop_assert_eq!(publish.exchange.as_str(), &*publication.exchange);
            prop_assert_eq!(publish.routing_key.as_str(), &publication.routing_key);
            prop_assert_eq!(properties.delivery_mode(), &Some(2));
            prop_assert_eq!(properties.message_id().as_ref().unwrap().as_str(), &publication.message_id);
            prop_assert_eq!(properties.kind().as_ref().unwrap().as_str(), &publication.kind);
            prop_assert_eq!(properties.app_id().as_ref().unwrap().as_str(), "relay");
            prop_assert_eq!(properties.timestamp(), &publication.timestamp);
            let table = properties.headers().as_ref().unwrap().inner();
            prop_assert_eq!(table.len(), publication.headers.len());
            for (name, value) in &publication.headers {
                let expected = match value {
                    HeaderValue::Text(text) => AMQPValue::LongString(text.as_str().into()),
                    HeaderValue::Int(number) => AMQPValue::LongLongInt(*number),
                    HeaderValue::Double(number) => AMQPValue::Double(*number),
                    HeaderValue::Bool(truth) => AMQPValue::Boolean(*truth),
                };
                prop_assert_eq!(&table[name.as_str()], &expected);
            }
            prop_assert_eq!(body, publication.body);
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some(frame)) = first_frame(&bytes, 4096) {
                drop(inbound::read(frame));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_leaves_no_trace() {
        let whole = Publication {
            exchange: "e".into(),
            routing_key: String::new(),
            message_id: String::new(),
            kind: String::new(),
            content_type: "application/json",
            app_id: "a".into(),
            timestamp: None,
            headers: Vec::new(),
            body: vec![1; 10],
        };
        let long = "x".repeat(256);
        let mut out = vec![7];
        let refused = encode(
            &Publication {
                routing_key: long.clone(),
                ..whole.clone()
            },
            4096,
            &mut out,
        );
        assert_eq!(
            refused,
            Err(Refused::TooLong {
                field: "routing key",
                bytes: 256
            })
        );
        let headers = vec![("h".to_owned(), HeaderValue::Text("x".repeat(5000)))];
        let refused = encode(
            &Publication {
                headers,
                ..whole.clone()
            },
            4096,
            &mut out,
        );
        assert!(matches!(refused, Err(Refused::HeadersTooLarge { .. })));
        assert_eq!(out, [7]);
    }

    #[test]
    fn frames_are_cut_at_their_ends() {
        let ack = [
            1, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 9, 1, 0xCE,
        ];
        for cut in 0..ack.len() {
            assert_eq!(first_frame(&ack[..cut], 4096), Ok(None));
        }
        let frame = first_frame(&ack, 4096).unwrap().unwrap();
        let confirm = Confirm {
            tag: 9,
            multiple: true,
            nack: false,
        };
        assert_eq!(inbound::read(frame), Ok(Inbound::Confirm(confirm)));
        assert!(first_frame(&ack, 20).is_err());
        assert!(first_frame(b"AMQP\0\0\x09\x01", 4096).is_err());
        let mut unended = ack;
        unended[20] = 0;
        assert!(first_frame(&unended, 4096).is_err());
    }
}
