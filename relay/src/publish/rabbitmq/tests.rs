//! Against a peer that says what a script tells it to.

use std::sync::Arc;
use std::time::Duration;

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame, parse_frame};
use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, connection, exchange};
use amq_protocol::types::FieldTable;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::frame::{BASIC, CHANNEL, first_frame};
use super::inbound::Close;
use super::{RabbitMq, RabbitSettings, body_max};
use crate::config::{Config, Raw};
use crate::leader::Lease;
use crate::publish::{Outcome, PublishError, Publisher, Signal};
use crate::route::Publication;

const DEADLINE: Duration = Duration::from_secs(20);

fn publication(id: &str, key: &str, body: usize) -> Publication {
    Publication {
        exchange: "events".into(),
        routing_key: key.to_owned(),
        message_id: id.to_owned(),
        kind: "Tested".to_owned(),
        content_type: "application/json",
        app_id: "test".into(),
        timestamp: None,
        headers: Vec::new(),
        body: vec![b'x'; body],
    }
}

fn settings(listener: &TcpListener) -> RabbitSettings {
    let port = listener.local_addr().unwrap().port();
    settings_for(&format!("amqp://guest:s3cret@127.0.0.1:{port}/%2f"), &[])
}

fn settings_for(url: &str, more: &[(&str, &str)]) -> RabbitSettings {
    let base = [
        ("RELAY_MYSQL_URL", "mysql://u:p@127.0.0.1/none"),
        ("RELAY_AMQP_URL", url),
    ];
    let variables = base
        .iter()
        .chain(more)
        .map(|(name, text)| ((*name).into(), (*text).into()));
    let raw = Raw::load(None, variables, std::iter::empty()).unwrap();
    RabbitSettings::new(&Config::from_raw(&raw).unwrap(), Lease::forever())
}

fn bytes_of(frame: &AMQPFrame) -> Vec<u8> {
    let context = WriteContext::from(Vec::new());
    gen_frame(frame)(context).unwrap().into_inner().0
}

fn method(class: AMQPClass) -> AMQPFrame {
    let channel = match class {
        AMQPClass::Connection(_) => 0,
        _ => CHANNEL,
    };
    AMQPFrame::Method(channel, class)
}

fn from_connection(said: connection::AMQPMethod) -> AMQPFrame {
    method(AMQPClass::Connection(said))
}

fn connection_close(code: u16, text: &str) -> AMQPFrame {
    from_connection(connection::AMQPMethod::Close(connection::Close {
        reply_code: code,
        reply_text: text.into(),
        class_id: 0,
        method_id: 0,
    }))
}

fn channel_close(code: u16, text: &str) -> AMQPFrame {
    method(AMQPClass::Channel(channel::AMQPMethod::Close(
        channel::Close {
            reply_code: code,
            reply_text: text.into(),
            class_id: BASIC,
            method_id: 40,
        },
    )))
}

fn ack(delivery_tag: u64, multiple: bool) -> AMQPFrame {
    method(AMQPClass::Basic(basic::AMQPMethod::Ack(basic::Ack {
        delivery_tag,
        multiple,
    })))
}

/// `basic.return`, header and body of a message on its way back.
fn back(of: &Publication) -> Vec<u8> {
    let said = basic::Return {
        reply_code: 312,
        reply_text: "NO_ROUTE".into(),
        exchange: (&*of.exchange).into(),
        routing_key: of.routing_key.as_str().into(),
    };
    let properties = basic::AMQPProperties::default()
        .with_content_type("application/json".into())
        .with_headers(FieldTable::default())
        .with_delivery_mode(2)
        .with_message_id(of.message_id.as_str().into());
    let header = AMQPContentHeader {
        class_id: BASIC,
        body_size: of.body.len() as u64,
        properties,
    };
    let mut bytes = bytes_of(&method(AMQPClass::Basic(basic::AMQPMethod::Return(said))));
    bytes.extend(bytes_of(&AMQPFrame::Header(CHANNEL, header)));
    if !of.body.is_empty() {
        bytes.extend(bytes_of(&AMQPFrame::Body(CHANNEL, of.body.clone())));
    }
    bytes
}

/// A stream of either kind.
trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// The broker's end.
struct Peer {
    socket: Box<dyn Socket>,
    input: Vec<u8>,
}

impl Peer {
    async fn accept(listener: &TcpListener) -> Self {
        let (socket, _) = listener.accept().await.unwrap();
        Self::greet(Box::new(socket)).await
    }

    async fn greet(mut socket: Box<dyn Socket>) -> Self {
        let mut header = [0; 8];
        socket.read_exact(&mut header).await.unwrap();
        assert_eq!(&header, b"AMQP\0\0\x09\x01");
        Self {
            socket,
            input: Vec::new(),
        }
    }

    async fn say(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
        self.socket.flush().await.unwrap();
    }

    async fn send(&mut self, frame: &AMQPFrame) {
        self.say(&bytes_of(frame)).await;
    }

    async fn hear(&mut self) -> AMQPFrame {
        loop {
            if let Some(frame) = first_frame(&self.input, 131_072).unwrap() {
                let (length, (_, parsed)) = (frame.len(), parse_frame(frame).unwrap());
                self.input.drain(..length);
                return parsed;
            }
            let read = self.socket.read_buf(&mut self.input);
            let count = tokio::time::timeout(DEADLINE, read).await.unwrap().unwrap();
            assert_ne!(count, 0, "the relay hung up");
        }
    }

    async fn start(&mut self) {
        let start = connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: FieldTable::default(),
            mechanisms: "AMQPLAIN PLAIN".into(),
            locales: "en_US".into(),
        };
        self.send(&from_connection(connection::AMQPMethod::Start(start)))
            .await;
        let AMQPFrame::Method(0, AMQPClass::Connection(connection::AMQPMethod::StartOk(_))) =
            self.hear().await
        else {
            panic!("connection.start-ok answers")
        };
    }

    async fn tune(&mut self, heartbeat: u16) {
        let tune = connection::Tune {
            channel_max: 10,
            frame_max: 131_072,
            heartbeat,
        };
        self.send(&from_connection(connection::AMQPMethod::Tune(tune)))
            .await;
        // tune-ok, open
        self.hear().await;
        self.hear().await;
    }

    async fn open(&mut self) {
        let opened = connection::AMQPMethod::OpenOk(connection::OpenOk {});
        self.send(&from_connection(opened)).await;
        self.hear().await;
    }

    async fn channel(&mut self) {
        let opened = channel::AMQPMethod::OpenOk(channel::OpenOk {});
        self.send(&method(AMQPClass::Channel(opened))).await;
        self.hear().await;
        let declared = exchange::AMQPMethod::DeclareOk(exchange::DeclareOk {});
        self.send(&method(AMQPClass::Exchange(declared))).await;
        self.hear().await;
    }

    /// The rest of what was set up, and some bytes right behind it.
    async fn select(&mut self, behind: &[u8]) {
        let selected = confirm::AMQPMethod::SelectOk(confirm::SelectOk {});
        let mut bytes = bytes_of(&method(AMQPClass::Confirm(selected)));
        bytes.extend_from_slice(behind);
        self.say(&bytes).await;
    }

    async fn welcome(listener: &TcpListener, heartbeat: u16, behind: &[u8]) -> Self {
        let mut peer = Self::accept(listener).await;
        peer.set_up(heartbeat, behind).await;
        peer
    }

    async fn set_up(&mut self, heartbeat: u16, behind: &[u8]) {
        self.start().await;
        self.tune(heartbeat).await;
        self.open().await;
        self.channel().await;
        self.select(behind).await;
    }

    /// Reads up to a publication's header.
    async fn hear_publication(&mut self) {
        loop {
            if let AMQPFrame::Header(CHANNEL, _) = self.hear().await {
                return;
            }
        }
    }
}

async fn pair(heartbeat: u16) -> (RabbitMq, Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = settings(&listener);
    let (publisher, peer) = tokio::join!(
        RabbitMq::connect(&settings),
        Peer::welcome(&listener, heartbeat, &[])
    );
    (publisher.unwrap(), peer)
}

async fn signals(publisher: &mut RabbitMq) -> Result<Vec<Signal>, PublishError> {
    let mut out = Vec::new();
    let polled = std::future::poll_fn(|cx| publisher.poll_signals(cx, &mut out));
    tokio::time::timeout(DEADLINE, polled)
        .await
        .expect("there is something to tell")?;
    Ok(out)
}

/// Everything until the connection ends, and how it ends.
async fn to_the_end(publisher: &mut RabbitMq) -> (Vec<Signal>, PublishError) {
    let mut all = Vec::new();
    loop {
        match signals(publisher).await {
            Ok(more) => all.extend(more),
            Err(error) => return (all, error),
        }
    }
}

fn settled(tag: u64, outcome: Outcome) -> Signal {
    Signal::Settled { tag, outcome }
}

fn returned() -> Outcome {
    Outcome::Returned {
        code: 312,
        text: "NO_ROUTE".to_owned(),
    }
}

#[tokio::test]
async fn a_return_belongs_to_its_own_tag_however_the_bytes_come() {
    let (mut publisher, mut peer) = pair(60).await;
    let lost = publication("b", "nowhere", 3);
    // The same id with a key that is routed must not be taken for it.
    for publication in [
        &publication("b", "routed", 3),
        &lost,
        &publication("c", "routed", 0),
    ] {
        publisher.publish(publication).unwrap();
    }
    let mut bytes = back(&lost);
    bytes.extend(bytes_of(&ack(3, true)));
    let script = async {
        for byte in bytes {
            peer.say(&[byte]).await;
            tokio::task::yield_now().await;
        }
        peer
    };
    let (told, _peer) = tokio::join!(signals(&mut publisher), script);
    let expected = [
        settled(1, Outcome::Confirmed),
        settled(2, returned()),
        settled(3, Outcome::Confirmed),
    ];
    assert_eq!(told.unwrap(), expected);
    assert_eq!(publisher.in_flight(), 0);
}

#[tokio::test]
async fn blocked_and_unblocked_are_told() {
    let (mut publisher, mut peer) = pair(60).await;
    let blocked = connection::Blocked {
        reason: "low on memory".into(),
    };
    peer.send(&from_connection(connection::AMQPMethod::Blocked(blocked)))
        .await;
    let expected = Signal::Blocked {
        reason: "low on memory".to_owned(),
    };
    assert_eq!(signals(&mut publisher).await.unwrap(), [expected]);
    let unblocked = connection::AMQPMethod::Unblocked(connection::Unblocked {});
    peer.send(&from_connection(unblocked)).await;
    assert_eq!(signals(&mut publisher).await.unwrap(), [Signal::Unblocked]);
}

#[tokio::test]
async fn what_comes_right_behind_the_handshake_is_not_left_lying() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let blocked = connection::Blocked {
        reason: "low on disk".into(),
    };
    let behind = bytes_of(&from_connection(connection::AMQPMethod::Blocked(blocked)));
    let settings = settings(&listener);
    let (publisher, _peer) = tokio::join!(
        RabbitMq::connect(&settings),
        Peer::welcome(&listener, 60, &behind)
    );
    let told = signals(&mut publisher.unwrap()).await.unwrap();
    assert!(matches!(told[..], [Signal::Blocked { .. }]), "{told:?}");
}

#[tokio::test]
async fn acks_before_a_close_count_and_the_close_is_answered() {
    let (mut publisher, mut peer) = pair(60).await;
    for id in ["a", "b"] {
        publisher.publish(&publication(id, "k", 1)).unwrap();
    }
    let mut bytes = bytes_of(&ack(1, false));
    bytes.extend(bytes_of(&channel_close(404, "NOT_FOUND - no exchange")));
    peer.say(&bytes).await;
    let (told, error) = to_the_end(&mut publisher).await;
    assert_eq!(told, [settled(1, Outcome::Confirmed)]);
    let PublishError::PublicationRefused { code: 404, text } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(text, "NOT_FOUND - no exchange");
    assert!(!error.is_definite());
    assert_eq!(publisher.in_flight(), 1);
    loop {
        if let AMQPFrame::Method(CHANNEL, AMQPClass::Channel(channel::AMQPMethod::CloseOk(_))) =
            peer.hear().await
        {
            break;
        }
    }
}

#[tokio::test]
async fn the_brokers_last_words_are_read_though_it_takes_no_more_bytes() {
    let (mut publisher, mut peer) = pair(60).await;
    publisher.publish(&publication("a", "k", 1)).unwrap();
    // More than sockets hold, so that the relay is still writing when the peer is gone.
    for _ in 0..8 {
        publisher.publish(&publication("b", "k", 4 << 20)).unwrap();
    }
    let mut out = Vec::new();
    std::future::poll_fn(|cx| {
        assert!(publisher.poll_signals(cx, &mut out).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    peer.hear_publication().await;
    let mut bytes = bytes_of(&ack(1, false));
    bytes.extend(bytes_of(&connection_close(320, "CONNECTION_FORCED - bye")));
    peer.say(&bytes).await;
    // Unread bytes make this a reset.
    drop(peer);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (told, error) = to_the_end(&mut publisher).await;
    assert_eq!(told, [settled(1, Outcome::Confirmed)]);
    let PublishError::Closed {
        what: "connection",
        code: 320,
        text,
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(text, "CONNECTION_FORCED - bye");
}

#[tokio::test]
async fn silence_is_noticed_also_when_writes_stall() {
    let (mut publisher, mut peer) = pair(1).await;
    let began = std::time::Instant::now();
    let watched = async {
        assert!(matches!(peer.hear().await, AMQPFrame::Heartbeat));
        peer
    };
    let (ended, _peer) = tokio::join!(to_the_end(&mut publisher), watched);
    assert!(matches!(ended, (_, PublishError::HeartbeatMissed)));
    let waited = began.elapsed();
    assert!(
        (Duration::from_secs(2)..Duration::from_secs(4)).contains(&waited),
        "{waited:?}"
    );

    let (mut publisher, _peer) = pair(1).await;
    for _ in 0..8 {
        publisher.publish(&publication("b", "k", 4 << 20)).unwrap();
    }
    let ended = to_the_end(&mut publisher).await;
    assert!(matches!(ended, (_, PublishError::HeartbeatMissed)));
    assert!(publisher.buffered() > 0);
}

#[tokio::test]
async fn heartbeats_keep_a_quiet_connection() {
    let (mut publisher, mut peer) = pair(1).await;
    let alive = async {
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            peer.send(&AMQPFrame::Heartbeat).await;
        }
        peer.send(&connection_close(320, "bye")).await;
    };
    let ((_, error), ()) = tokio::join!(to_the_end(&mut publisher), alive);
    assert!(matches!(error, PublishError::Closed { code: 320, .. }));
}

#[tokio::test]
async fn what_makes_no_sense_ends_the_connection() {
    let stranger = back(&publication("stranger", "k", 0));
    let unasked = bytes_of(&AMQPFrame::Method(
        7,
        AMQPClass::Basic(basic::AMQPMethod::Ack(basic::Ack {
            delivery_tag: 1,
            multiple: false,
        })),
    ));
    let scripts = [
        bytes_of(&ack(2, false)),
        bytes_of(&ack(0, false)),
        bytes_of(&ack(9, true)),
        stranger,
        unasked,
        b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
        vec![1, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF],
        vec![1, 0, 1, 0, 0, 0, 1, 0, 0xCE],
        nested(60_000),
    ];
    for bytes in scripts {
        let (mut publisher, mut peer) = pair(60).await;
        publisher.publish(&publication("a", "k", 1)).unwrap();
        peer.say(&bytes).await;
        let (told, error) = to_the_end(&mut publisher).await;
        assert!(told.is_empty(), "{told:?}");
        assert!(matches!(error, PublishError::Protocol(_)), "{error:?}");
    }
}

/// A content header whose table holds arrays in arrays in arrays.
fn nested(bytes: usize) -> Vec<u8> {
    let mut table = vec![1, b'a'];
    for depth in (0..bytes / 5).rev() {
        table.push(b'A');
        table.extend_from_slice(&u32::try_from(depth * 5).unwrap().to_be_bytes());
    }
    let mut payload = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0];
    payload.extend_from_slice(&u32::try_from(table.len()).unwrap().to_be_bytes());
    payload.extend(table);
    let mut frame = vec![2, 0, 1];
    frame.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
    frame.extend(payload);
    frame.push(0xCE);
    frame
}

#[tokio::test]
async fn an_orderly_goodbye() {
    let (mut publisher, mut peer) = pair(60).await;
    publisher.publish(&publication("a", "k", 1)).unwrap();
    let script = async {
        peer.hear_publication().await;
        loop {
            if let AMQPFrame::Method(0, AMQPClass::Connection(connection::AMQPMethod::Close(_))) =
                peer.hear().await
            {
                break;
            }
        }
        let closed = connection::AMQPMethod::CloseOk(connection::CloseOk {});
        peer.send(&from_connection(closed)).await;
    };
    tokio::join!(Box::new(publisher).close(), script);
}

/// How connecting ends when the peer does that.
async fn refusal(at: usize, last: Option<AMQPFrame>) -> PublishError {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = settings(&listener);
    let script = async {
        let mut peer = Peer::accept(&listener).await;
        peer.start().await;
        if at > 0 {
            peer.tune(60).await;
        }
        if at > 1 {
            peer.open().await;
        }
        match &last {
            Some(frame) => peer.send(frame).await,
            None => drop(peer),
        }
    };
    let (connected, ()) = tokio::join!(RabbitMq::connect(&settings), script);
    let Err(error) = connected else {
        panic!("connected")
    };
    assert!(!format!("{error} {error:?} {settings:?}").contains("s3cret"));
    error
}

#[tokio::test]
async fn what_a_person_must_mend_is_told_from_what_passes() {
    let error = refusal(0, Some(connection_close(403, "ACCESS_REFUSED"))).await;
    assert!(
        matches!(error, PublishError::AuthRefused { .. }),
        "{error:?}"
    );
    assert!(error.is_definite());
    let error = refusal(0, None).await;
    assert!(
        matches!(error, PublishError::AuthRefused { .. }),
        "{error:?}"
    );
    let error = refusal(1, Some(connection_close(530, "vhost not found"))).await;
    assert!(
        matches!(error, PublishError::VhostRefused { .. }),
        "{error:?}"
    );
    // A broker that stops, or whose virtual host is down, mends itself.
    for (at, code) in [(0, 320), (1, 320), (1, 541), (2, 320), (2, 504)] {
        let error = refusal(at, Some(connection_close(code, "its words"))).await;
        let PublishError::Closed {
            code: told, text, ..
        } = &error
        else {
            panic!("step {at}, {code}: {error:?}")
        };
        assert_eq!((*told, text.as_str()), (code, "its words"));
        assert!(!error.is_definite());
    }
}

#[tokio::test]
async fn a_text_that_is_cut_within_a_character_is_still_told() {
    let (mut publisher, mut peer) = pair(60).await;
    let mut bytes = bytes_of(&channel_close(404, "NOT_FOUND - \u{fc}"));
    let cut = bytes.len() - 1 - 4 - 1;
    assert_eq!(bytes[cut], 0xBC);
    bytes[cut] = b'.';
    peer.say(&bytes).await;
    let (_, error) = to_the_end(&mut publisher).await;
    assert!(
        matches!(error, PublishError::PublicationRefused { code: 404, .. }),
        "{error:?}"
    );
}

#[test]
fn the_limit_of_a_body_is_read_from_the_brokers_words() {
    let close = |cause, text: &str| Close {
        connection: false,
        code: 406,
        text: text.to_owned(),
        cause,
    };
    for (largest, text) in [
        (
            16_777_216,
            "PRECONDITION_FAILED - message size 20000000 is larger than configured max size 16777216",
        ),
        (
            512,
            "PRECONDITION_FAILED - message size 1000 is larger than max size 512",
        ),
    ] {
        assert_eq!(body_max(&close((BASIC, 40), text)), Some(largest));
        assert_eq!(body_max(&close((BASIC, 20), text)), None);
    }
    for text in [
        "",
        "max size ",
        "max size 7",
        "message size 9, max size many",
    ] {
        assert_eq!(body_max(&close((BASIC, 40), text)), None);
    }
}

fn acceptor() -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    acceptor_of(builder.with_no_client_auth())
}

/// A server that ends the connection of a client without a certificate.
fn strict_acceptor(version: &'static rustls::SupportedProtocolVersion) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(include_bytes!("tests/ca.pem")).unwrap();
    roots.add(ca).unwrap();
    let roots = Arc::new(roots);
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
    let builder = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap();
    acceptor_of(builder.with_client_cert_verifier(verifier.build().unwrap()))
}

fn acceptor_of(
    builder: rustls::ConfigBuilder<rustls::ServerConfig, rustls::server::WantsServerCert>,
) -> TlsAcceptor {
    let chain = CertificateDer::pem_slice_iter(include_bytes!("tests/server.pem"));
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("tests/server.key")).unwrap();
    let config = builder
        .with_single_cert(chain.map(Result::unwrap).collect(), key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Settings for TLS to that listener, by that name, with the CA of the tests trusted or not.
fn tls_settings(listener: &TcpListener, host: &str, trusted: bool) -> RabbitSettings {
    let port = listener.local_addr().unwrap().port();
    let ca = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/publish/rabbitmq/tests/ca.pem"
    );
    let trust = [("RELAY_AMQP_CA_FILE", ca)];
    let more: &[_] = if trusted { &trust } else { &[] };
    settings_for(&format!("amqps://guest:s3cret@{host}:{port}/%2f"), more)
}

#[tokio::test]
async fn megabytes_go_and_confirms_come_over_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for host in ["localhost", "127.0.0.1"] {
        let settings = tls_settings(&listener, host, true);
        let script = async {
            let (socket, _) = listener.accept().await.unwrap();
            let socket = acceptor().accept(socket).await.unwrap();
            let mut peer = Peer::greet(Box::new(socket)).await;
            peer.set_up(60, &[]).await;
            peer
        };
        let (publisher, mut peer) = tokio::join!(RabbitMq::connect(&settings), script);
        let mut publisher = publisher.unwrap();
        for _ in 0..100 {
            publisher.publish(&publication("a", "k", 50_000)).unwrap();
        }
        let script = async {
            for _ in 0..100 {
                peer.hear_publication().await;
                let AMQPFrame::Body(CHANNEL, body) = peer.hear().await else {
                    panic!("the body follows")
                };
                assert_eq!(body.len(), 50_000);
            }
            peer.send(&ack(100, true)).await;
        };
        let settle = async {
            let mut told = Vec::new();
            while publisher.in_flight() > 0 {
                told.extend(signals(&mut publisher).await.unwrap());
            }
            told
        };
        let (told, ()) = tokio::join!(settle, script);
        assert_eq!(told.len(), 100);
        assert_eq!(publisher.buffered(), 0);
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_told_from_a_broker_that_hangs_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = tls_settings(&listener, "localhost", false);
    let script = async {
        let (socket, _) = listener.accept().await.unwrap();
        assert!(acceptor().accept(socket).await.is_err());
    };
    let (connected, ()) = tokio::join!(RabbitMq::connect(&settings), script);
    let Err(error @ PublishError::Tls { .. }) = connected else {
        panic!("connected, or failed in another way")
    };
    assert!(error.is_definite());
    let told = crate::error::chain(&error);
    assert!(told.contains("certificate"), "{told}");

    let hang_up = async { drop(listener.accept().await.unwrap()) };
    let (connected, ()) = tokio::join!(RabbitMq::connect(&settings), hang_up);
    let Err(error @ PublishError::Tls { .. }) = connected else {
        panic!("connected, or failed in another way")
    };
    assert!(!error.is_definite(), "{error:?}");
}

#[tokio::test]
async fn a_broker_that_wants_a_client_certificate_is_told_from_one_that_is_down() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = tls_settings(&listener, "localhost", true);
        let script = async {
            let (socket, _) = listener.accept().await.unwrap();
            assert!(strict_acceptor(version).accept(socket).await.is_err());
        };
        let (connected, ()) = tokio::join!(RabbitMq::connect(&settings), script);
        let Err(error @ PublishError::Tls { .. }) = connected else {
            panic!("connected, or failed in another way")
        };
        assert!(error.is_definite());
        let hint = error.hint();
        assert!(hint.contains("RELAY_AMQP_CLIENT_CERT_FILE"), "{hint}");
    }
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = settings(&listener);
    settings.connect_timeout = Duration::from_millis(200);
    let connected = RabbitMq::connect(&settings).await;
    assert!(matches!(
        connected,
        Err(PublishError::ConnectTimeout { .. })
    ));
}
