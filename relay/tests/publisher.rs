//! The publisher against real RabbitMQ, 4.x and 3.10.
//!
//! Needs `AMQP_URL` and `AMQP_LEGACY_URL`: `eval "$(scripts/services env)"`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::options::{
    BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use relay::config::{Config, Raw};
use relay::leader::Lease;
use relay::publish::rabbitmq::{RabbitMq, RabbitSettings};
use relay::publish::{Outcome, PublishError, Publisher, Refused, Signal};
use relay::route::{HeaderValue, Publication};

const DEADLINE: Duration = Duration::from_secs(60);

fn url(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set; run `make test`, or: scripts/services up; eval \"$(scripts/services env)\"")
    })
}

fn settings(url: &str, exchange: &str, more: &[(&str, &str)]) -> RabbitSettings {
    let base = [
        ("RELAY_MYSQL_URL", "mysql://u:p@127.0.0.1/none"),
        ("RELAY_AMQP_URL", url),
        ("RELAY_EXCHANGE", exchange),
    ];
    let variables = base
        .iter()
        .chain(more)
        .map(|(name, text)| ((*name).into(), (*text).into()));
    let raw = Raw::load(None, variables, std::iter::empty()).unwrap();
    RabbitSettings::new(&Config::from_raw(&raw).unwrap(), Lease::forever())
}

fn publication(exchange: &str, key: &str, id: usize, body: Vec<u8>) -> Publication {
    Publication {
        exchange: exchange.into(),
        routing_key: key.to_owned(),
        message_id: format!("id-{id}"),
        kind: "Tested".to_owned(),
        content_type: "application/json",
        app_id: "test".into(),
        timestamp: Some(1),
        headers: vec![("имя".to_owned(), HeaderValue::Text("😀".to_owned()))],
        body,
    }
}

/// An exchange and a queue for the key `routed`, deleted at the end of the test.
struct Place {
    name: String,
    channel: Channel,
    _connection: Connection,
}

impl Place {
    async fn new(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        let name = format!("test.publisher.{:016x}", fastrand::u64(..));
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let none = FieldTable::default;
        channel
            .exchange_declare(name.as_str().into(), ExchangeKind::Topic, durable, none())
            .await
            .unwrap();
        let durable = QueueDeclareOptions {
            durable: true,
            ..Default::default()
        };
        channel
            .queue_declare(name.as_str().into(), durable, none())
            .await
            .unwrap();
        let (queue, exchange) = (name.as_str().into(), name.as_str().into());
        channel
            .queue_bind(
                queue,
                exchange,
                "routed".into(),
                QueueBindOptions::default(),
                none(),
            )
            .await
            .unwrap();
        Self {
            name,
            channel,
            _connection: connection,
        }
    }

    async fn delete(self) {
        self.channel
            .queue_delete(self.name.as_str().into(), QueueDeleteOptions::default())
            .await
            .unwrap();
        self.channel
            .exchange_delete(self.name.as_str().into(), ExchangeDeleteOptions::default())
            .await
            .unwrap();
    }
}

async fn signals(publisher: &mut RabbitMq, out: &mut Vec<Signal>) {
    let polled = std::future::poll_fn(|cx| publisher.poll_signals(cx, out));
    tokio::time::timeout(DEADLINE, polled)
        .await
        .expect("the broker answers")
        .unwrap();
}

/// Publishes the bodies to those keys; the tags that were returned. All others are confirmed.
async fn publish_all(publisher: &mut RabbitMq, place: &str, keys: &[&str]) -> BTreeSet<u64> {
    let mut sent = BTreeSet::new();
    for (id, key) in keys.iter().enumerate() {
        // Ids repeat on purpose: a returned message must be told from another of its name.
        sent.insert(
            publisher
                .publish(&publication(place, key, id % 700, b"{}".to_vec()))
                .unwrap(),
        );
    }
    let (mut returned, mut out) = (BTreeSet::new(), Vec::new());
    while publisher.in_flight() > 0 {
        signals(publisher, &mut out).await;
    }
    for signal in out {
        let Signal::Settled { tag, outcome } = signal else {
            panic!("{signal:?}")
        };
        assert!(sent.remove(&tag), "tag {tag} is settled once");
        match outcome {
            Outcome::Confirmed => {}
            Outcome::Returned { code, .. } => {
                assert_eq!(code, 312);
                returned.insert(tag);
            }
            Outcome::Nacked => panic!("nacked"),
        }
    }
    assert!(sent.is_empty());
    returned
}

async fn exactly_the_unroutable_come_back(variable: &str) {
    let url = url(variable);
    let place = Place::new(&url).await;
    let mut publisher = RabbitMq::connect(&settings(&url, &place.name, &[]))
        .await
        .unwrap();
    let mut last = 0;
    for round in 0..15 {
        for unroutable in [1, 2, 50] {
            let mut keys = vec!["routed"; 1000];
            while keys.iter().filter(|key| **key != "routed").count() < unroutable {
                keys[fastrand::usize(..1000)] = "nowhere";
            }
            let expected: BTreeSet<u64> = (1..=1000)
                .filter(|at| keys[usize::try_from(at - 1).unwrap()] == "nowhere")
                .map(|at| at + last)
                .collect();
            let returned = publish_all(&mut publisher, &place.name, &keys).await;
            assert_eq!(returned, expected, "round {round}");
            last += 1000;
        }
    }
    Box::new(publisher).close().await;
    place.delete().await;
}

#[tokio::test]
async fn exactly_the_unroutable_come_back_from_rabbitmq_4() {
    exactly_the_unroutable_come_back("AMQP_URL").await;
}

#[tokio::test]
async fn exactly_the_unroutable_come_back_from_rabbitmq_3() {
    exactly_the_unroutable_come_back("AMQP_LEGACY_URL").await;
}

/// The broker says what it allows only by closing the channel, and then it is known.
async fn a_body_beyond_the_limit_is_refused(variable: &str, limit: usize) {
    let url = url(variable);
    let place = Place::new(&url).await;
    let settings = settings(&url, &place.name, &[]);
    let large = publication(&place.name, "routed", 1, vec![b'x'; limit + 1]);
    let mut publisher = RabbitMq::connect(&settings).await.unwrap();
    publisher.publish(&large).unwrap();
    let mut out = Vec::new();
    let error = loop {
        let polled = std::future::poll_fn(|cx| publisher.poll_signals(cx, &mut out));
        if let Err(error) = tokio::time::timeout(DEADLINE, polled).await.unwrap() {
            break error;
        }
    };
    assert!(
        matches!(error, PublishError::Closed { code: 406, .. }),
        "{error:?}"
    );
    assert!(out.is_empty(), "{out:?}");

    let mut publisher = RabbitMq::connect(&settings).await.unwrap();
    let refused = Refused::BodyTooLarge {
        bytes: limit + 1,
        allowed: limit,
    };
    assert_eq!(publisher.publish(&large), Err(refused));
    let small = publication(&place.name, "routed", 2, vec![b'x'; 10]);
    assert_eq!(publisher.publish(&small), Ok(1));
    while publisher.in_flight() > 0 {
        signals(&mut publisher, &mut out).await;
    }
    Box::new(publisher).close().await;
    place.delete().await;
}

#[tokio::test]
async fn a_body_beyond_the_limit_of_rabbitmq_4_is_refused() {
    a_body_beyond_the_limit_is_refused("AMQP_URL", 16 << 20).await;
}

#[tokio::test]
async fn a_body_beyond_the_limit_of_rabbitmq_3_is_refused() {
    a_body_beyond_the_limit_is_refused("AMQP_LEGACY_URL", 128 << 20).await;
}

#[tokio::test]
async fn bodies_of_every_size_arrive_as_they_are() {
    let url = url("AMQP_URL");
    let place = Place::new(&url).await;
    let mut publisher = RabbitMq::connect(&settings(&url, &place.name, &[]))
        .await
        .unwrap();
    let frame = 131_072;
    let sizes = [
        0,
        1,
        frame - 9,
        frame - 8,
        frame - 7,
        frame,
        frame + 8,
        5_000_000,
    ];
    for (id, size) in sizes.into_iter().enumerate() {
        let body: Vec<u8> = (0..size)
            .map(|at| u8::try_from(at % 251).unwrap())
            .collect();
        publisher
            .publish(&publication(&place.name, "routed", id, body.clone()))
            .unwrap();
        let mut out = Vec::new();
        while publisher.in_flight() > 0 {
            signals(&mut publisher, &mut out).await;
        }
        let get = place
            .channel
            .basic_get(place.name.as_str().into(), BasicGetOptions { no_ack: true });
        let message = get
            .await
            .unwrap()
            .expect("a confirmed message is in the queue");
        assert_eq!(message.delivery.data, body, "{size} bytes");
        let headers = message.delivery.properties.headers().clone().unwrap();
        let header = headers.inner()["имя"]
            .as_long_string()
            .unwrap()
            .as_bytes()
            .to_vec();
        assert_eq!(header, "😀".as_bytes());
    }
    Box::new(publisher).close().await;
    place.delete().await;
}

async fn refusal(url: &str, exchange: &str, more: &[(&str, &str)]) -> PublishError {
    match RabbitMq::connect(&settings(url, exchange, more)).await {
        Ok(_) => panic!("the broker should refuse"),
        Err(error) => {
            let shown = format!("{error} {error:?} {}", error.hint());
            assert!(!shown.contains("wr0ng"), "a secret in {shown}");
            assert!(!error.hint().is_empty());
            error
        }
    }
}

#[tokio::test]
async fn refusals_are_told_apart() {
    for variable in ["AMQP_URL", "AMQP_LEGACY_URL"] {
        let url = url(variable);
        let place = Place::new(&url).await;
        let wrong = url.replace("guest:guest", "guest:wr0ng");
        assert!(matches!(
            refusal(&wrong, &place.name, &[]).await,
            PublishError::AuthRefused { .. }
        ));
        let vhost = url.replace("%2f", "nowhere");
        let error = refusal(&vhost, &place.name, &[]).await;
        assert!(
            matches!(error, PublishError::VhostRefused { code: 530, .. }),
            "{error:?}"
        );
        let error = refusal(&url, &place.name, &[("RELAY_EXCHANGE_TYPE", "fanout")]).await;
        assert!(
            matches!(error, PublishError::Topology { code: 406, .. }),
            "{error:?}"
        );
        let error = refusal(&url, "test.nowhere", &[("RELAY_TOPOLOGY", "check")]).await;
        assert!(
            matches!(error, PublishError::Topology { code: 404, .. }),
            "{error:?}"
        );
        let error = refusal(
            &url,
            "test.nowhere",
            &[("RELAY_EXCHANGE_TYPE", "no-such-type")],
        )
        .await;
        assert!(
            matches!(
                error,
                PublishError::Topology {
                    code: 503 | 406,
                    ..
                }
            ),
            "{error:?}"
        );
        place.delete().await;
    }
    let error = refusal("amqp://guest:guest@127.0.0.1:1/%2f", "e", &[]).await;
    assert!(
        matches!(error, PublishError::Unreachable { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_exchange_that_vanishes_is_told_in_the_brokers_words() {
    let url = url("AMQP_URL");
    let place = Place::new(&url).await;
    let mut publisher = RabbitMq::connect(&settings(&url, &place.name, &[]))
        .await
        .unwrap();
    publisher
        .publish(&publication(
            "test.no.such.exchange",
            "routed",
            1,
            Vec::new(),
        ))
        .unwrap();
    let mut out = Vec::new();
    let polled = std::future::poll_fn(|cx| publisher.poll_signals(cx, &mut out));
    let error = tokio::time::timeout(DEADLINE, polled)
        .await
        .unwrap()
        .unwrap_err();
    let PublishError::PublicationRefused { code: 404, text } = error else {
        panic!("{error:?}")
    };
    assert!(text.contains("test.no.such.exchange"), "{text}");
    assert!(out.is_empty(), "nothing is settled");
    place.delete().await;
}
