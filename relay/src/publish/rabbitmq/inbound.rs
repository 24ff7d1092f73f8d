//! What a broker says to a publisher, read by hand (pure). Specification: section 4.2 "AMQP Wire-Level Format".
//!
//! Field tables are skipped, not read: nothing here depends on what is in them, and the codec crate descends into them
//! as deep as the peer nests, which ends on the stack's end.

use super::frame::{BASIC, CHANNEL, Malformed};

/// Frame types (4.2.3).
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;

/// Classes (1.1).
pub(super) const CONNECTION: u16 = 10;
const CHANNEL_CLASS: u16 = 20;
const EXCHANGE: u16 = 40;
const CONFIRM: u16 = 85;

/// Property flags of the content header (4.2.6.1) of what comes before the message id.
const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const PRIORITY: u16 = 1 << 11;
const CORRELATION_ID: u16 = 1 << 10;
const REPLY_TO: u16 = 1 << 9;
const EXPIRATION: u16 = 1 << 8;
const MESSAGE_ID: u16 = 1 << 7;

/// A confirm: `basic.ack` or `basic.nack`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Confirm {
    pub(super) tag: u64,
    pub(super) multiple: bool,
    pub(super) nack: bool,
}

/// `connection.close` or `channel.close`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Close {
    /// The whole connection, not just the channel.
    pub(super) connection: bool,
    pub(super) code: u16,
    pub(super) text: String,
    /// Class and method that the broker closes for; zeroes for none.
    pub(super) cause: (u16, u16),
}

/// `basic.return`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Return {
    pub(super) code: u16,
    pub(super) text: String,
    pub(super) exchange: Vec<u8>,
    pub(super) routing_key: Vec<u8>,
}

/// `connection.tune`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tune {
    pub(super) channel_max: u16,
    pub(super) frame_max: u32,
    pub(super) heartbeat: u16,
}

/// The answers that say nothing but yes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    ConnectionOpen,
    ConnectionClose,
    ChannelOpen,
    ExchangeDeclare,
    ExchangeUnbind,
    ConfirmSelect,
}

/// A frame from the broker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Inbound {
    Confirm(Confirm),
    Return(Return),
    /// The content header of a returned message.
    Header {
        message_id: Vec<u8>,
    },
    Body,
    Heartbeat,
    Blocked(String),
    Unblocked,
    Close(Close),
    /// `connection.start`, with the mechanisms it offers.
    Start(String),
    Tune(Tune),
    Done(Done),
}

/// Reads a whole frame, as [`first_frame`](super::frame::first_frame) has found it.
///
/// # Errors
/// It is none that a publisher can be sent, or it is shorter than what it should hold.
pub(super) fn read(frame: &[u8]) -> Result<Inbound, Malformed> {
    let mut bytes = Bytes(frame);
    let (kind, channel, _) = (bytes.u8()?, bytes.u16()?, bytes.u32()?);
    match (kind, channel) {
        (METHOD, channel) => method(channel, bytes),
        (HEADER, CHANNEL) => Ok(Inbound::Header {
            message_id: message_id(bytes)?,
        }),
        (BODY, CHANNEL) => Ok(Inbound::Body),
        (HEARTBEAT, 0) => Ok(Inbound::Heartbeat),
        _ => Err(Malformed("a frame comes on a channel that is not ours")),
    }
}

fn method(channel: u16, mut bytes: Bytes<'_>) -> Result<Inbound, Malformed> {
    let (class, method) = (bytes.u16()?, bytes.u16()?);
    if channel != if class == CONNECTION { 0 } else { CHANNEL } {
        return Err(Malformed("a method comes on a channel that is not ours"));
    }
    Ok(match (class, method) {
        (BASIC, 80 | 120) => Inbound::Confirm(Confirm {
            tag: bytes.u64()?,
            multiple: bytes.u8()? & 1 == 1,
            nack: method == 120,
        }),
        (BASIC, 50) => Inbound::Return(Return {
            code: bytes.u16()?,
            text: bytes.text()?,
            exchange: bytes.short()?.to_vec(),
            routing_key: bytes.short()?.to_vec(),
        }),
        (CONNECTION, 50) | (CHANNEL_CLASS, 40) => Inbound::Close(Close {
            connection: class == CONNECTION,
            code: bytes.u16()?,
            text: bytes.text()?,
            cause: (bytes.u16()?, bytes.u16()?),
        }),
        (CONNECTION, 10) => {
            // The protocol's version and the server's properties.
            bytes.take(2)?;
            bytes.long()?;
            Inbound::Start(String::from_utf8_lossy(bytes.long()?).into_owned())
        }
        (CONNECTION, 30) => Inbound::Tune(Tune {
            channel_max: bytes.u16()?,
            frame_max: bytes.u32()?,
            heartbeat: bytes.u16()?,
        }),
        (CONNECTION, 60) => Inbound::Blocked(bytes.text()?),
        (CONNECTION, 61) => Inbound::Unblocked,
        (CONNECTION, 41) => Inbound::Done(Done::ConnectionOpen),
        (CONNECTION, 51) => Inbound::Done(Done::ConnectionClose),
        (CHANNEL_CLASS, 11) => Inbound::Done(Done::ChannelOpen),
        (EXCHANGE, 11) => Inbound::Done(Done::ExchangeDeclare),
        (EXCHANGE, 51) => Inbound::Done(Done::ExchangeUnbind),
        (CONFIRM, 11) => Inbound::Done(Done::ConfirmSelect),
        _ => return Err(Malformed("a method comes that has no place here")),
    })
}

/// The message id in a content header; empty if it has none.
fn message_id(mut bytes: Bytes<'_>) -> Result<Vec<u8>, Malformed> {
    // Class, weight, size of the body.
    bytes.take(2 + 2 + 8)?;
    let flags = bytes.u16()?;
    for (flag, kind) in [
        (CONTENT_TYPE, 's'),
        (CONTENT_ENCODING, 's'),
        (HEADERS, 'F'),
        (DELIVERY_MODE, 'B'),
        (PRIORITY, 'B'),
        (CORRELATION_ID, 's'),
        (REPLY_TO, 's'),
        (EXPIRATION, 's'),
    ] {
        if flags & flag == 0 {
            continue;
        }
        match kind {
            's' => bytes.short()?,
            'F' => bytes.long()?,
            _ => bytes.take(1)?,
        };
    }
    if flags & MESSAGE_ID == 0 {
        return Ok(Vec::new());
    }
    Ok(bytes.short()?.to_vec())
}

/// What is left to read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(Malformed("a frame is shorter than what it holds"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(Malformed("a frame is shorter than what it holds"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// A short string: RabbitMQ cuts its texts to 255 bytes, maybe within a character.
    fn short(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u8()?;
        self.take(usize::from(length))
    }

    fn text(&mut self) -> Result<String, Malformed> {
        self.short()
            .map(|text| String::from_utf8_lossy(text).into_owned())
    }

    /// A long string or a table: its length comes first.
    fn long(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.take(length as usize)
    }
}

#[cfg(test)]
mod tests {
    use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame};
    use amq_protocol::protocol::{AMQPClass, basic, channel, connection};
    use amq_protocol::types::{AMQPValue, FieldTable, ShortString};
    use proptest::prelude::*;

    use super::super::frame::first_frame;
    use super::*;

    fn bytes_of(frame: &AMQPFrame) -> Vec<u8> {
        let context = WriteContext::from(Vec::new());
        gen_frame(frame)(context).unwrap().into_inner().0
    }

    /// What the codec crate writes, read here.
    fn understood(channel: u16, class: AMQPClass) -> Inbound {
        let bytes = bytes_of(&AMQPFrame::Method(channel, class));
        for cut in 0..bytes.len() {
            assert_eq!(first_frame(&bytes[..cut], 4096), Ok(None));
        }
        read(first_frame(&bytes, 4096).unwrap().unwrap()).unwrap()
    }

    fn short(text: &str) -> ShortString {
        text.into()
    }

    proptest! {
        #[test]
        fn what_the_codec_crate_writes_is_understood(
            tag in any::<u64>(), multiple in any::<bool>(), code in any::<u16>(), cause in any::<(u16, u16)>(),
            text in ".{0,60}", exchange in ".{0,60}", key in ".{0,60}",
        ) {
            let ack = basic::AMQPMethod::Ack(basic::Ack { delivery_tag: tag, multiple });
            let expected = Inbound::Confirm(Confirm { tag, multiple, nack: false });
            prop_assert_eq!(understood(1, AMQPClass::Basic(ack)), expected);
            let nack = basic::AMQPMethod::Nack(basic::Nack { delivery_tag: tag, multiple, requeue: !multiple });
            let expected = Inbound::Confirm(Confirm { tag, multiple, nack: true });
            prop_assert_eq!(understood(1, AMQPClass::Basic(nack)), expected);
            let back = basic::AMQPMethod::Return(basic::Return {
                reply_code: code, reply_text: short(&text), exchange: short(&exchange), routing_key: short(&key),
            });
            let expected = Inbound::Return(Return {
                code, text: text.clone(), exchange: exchange.into_bytes(), routing_key: key.into_bytes(),
            });
            prop_assert_eq!(understood(1, AMQPClass::Basic(back)), expected);
            let (reply_text, (class_id, method_id)) = (short(&text), cause);
            let close = channel::Close { reply_code: code, reply_text: reply_text.clone(), class_id, method_id };
            let expected = |connection| Inbound::Close(Close { connection, code, text: text.clone(), cause });
            prop_assert_eq!(understood(1, AMQPClass::Channel(channel::AMQPMethod::Close(close))), expected(false));
            let close = connection::Close { reply_code: code, reply_text, class_id, method_id };
            prop_assert_eq!(understood(0, AMQPClass::Connection(connection::AMQPMethod::Close(close))), expected(true));
        }

        #[test]
        fn the_message_id_is_found_behind_any_other_properties(has in any::<[bool; 9]>(), id in ".{0,60}") {
            let mut properties = basic::AMQPProperties::default().with_type(short("behind"));
            let mut table = FieldTable::default();
            table.insert(short("n"), AMQPValue::LongLongInt(7));
            let all: [&dyn Fn(basic::AMQPProperties) -> basic::AMQPProperties; 9] = [
                &|given| given.with_content_type(short("text/plain")),
                &|given| given.with_content_encoding(short("gzip")),
                &|given| given.with_headers(table.clone()),
                &|given| given.with_delivery_mode(2),
                &|given| given.with_priority(9),
                &|given| given.with_correlation_id(short("c")),
                &|given| given.with_reply_to(short("r")),
                &|given| given.with_expiration(short("60000")),
                &|given| given.with_message_id(short(&id)),
            ];
            for (property, _) in all.iter().zip(has).filter(|(_, has)| *has) {
                properties = property(properties);
            }
            let header = AMQPContentHeader { class_id: BASIC, body_size: 5, properties };
            let bytes = bytes_of(&AMQPFrame::Header(1, header));
            let expected = if has[8] { id.into_bytes() } else { Vec::new() };
            prop_assert_eq!(read(&bytes), Ok(Inbound::Header { message_id: expected }));
        }

        #[test]
        fn any_payload_is_read_without_harm(
            kind in 1u8..9, channel in 0u16..3, class in prop::sample::select(&[10u16, 20, 40, 60, 85]),
            method in 0u16..130, payload in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut frame = vec![kind];
            frame.extend(channel.to_be_bytes());
            frame.extend(u32::try_from(payload.len() + 4).unwrap().to_be_bytes());
            frame.extend(class.to_be_bytes());
            frame.extend(method.to_be_bytes());
            frame.extend(payload);
            frame.push(0xCE);
            drop(read(&frame));
        }
    }

    #[test]
    fn the_handshake_is_understood() {
        let mut properties = FieldTable::default();
        properties.insert(short("product"), AMQPValue::LongString("RabbitMQ".into()));
        let start = connection::AMQPMethod::Start(connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: properties,
            mechanisms: "PLAIN AMQPLAIN".into(),
            locales: "en_US".into(),
        });
        assert_eq!(
            understood(0, AMQPClass::Connection(start)),
            Inbound::Start("PLAIN AMQPLAIN".to_owned())
        );
        let tune = connection::AMQPMethod::Tune(connection::Tune {
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat: 60,
        });
        let expected = Tune {
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat: 60,
        };
        assert_eq!(
            understood(0, AMQPClass::Connection(tune)),
            Inbound::Tune(expected)
        );
        let blocked = connection::AMQPMethod::Blocked(connection::Blocked {
            reason: short("low on disk"),
        });
        assert_eq!(
            understood(0, AMQPClass::Connection(blocked)),
            Inbound::Blocked("low on disk".to_owned())
        );
        assert_eq!(
            read(&bytes_of(&AMQPFrame::Heartbeat)),
            Ok(Inbound::Heartbeat)
        );
    }
}
