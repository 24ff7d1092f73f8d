//! Calls over real HTTP, to the simulated providers.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use prometheus::{Registry, TextEncoder};
use reliability::saga::FailureKind;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::*;
use crate::providers::testing::Providers;
use crate::telemetry::chain;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(3600);

struct Client {
    provider: Provider,
    registry: Registry,
}

fn settings(base: &str) -> ProviderSettings {
    ProviderSettings {
        payment_url: Target::parse(base).unwrap(),
        shipping_url: Target::parse(base).unwrap(),
        timeout: Duration::from_secs(30),
        open_for: LONG,
        payment_rate: 100_000,
        shipping_rate: 100_000,
    }
}

fn payments(settings: &ProviderSettings) -> Client {
    let registry = Registry::new();
    let external = External::new(&registry).unwrap();
    let provider = Provider::payment(settings, &external).unwrap();
    Client { provider, registry }
}

impl Client {
    async fn charge(&self, key: &str) -> Result<Value, Failure> {
        let body = json!({ "order_id": 1, "amount_cents": 1500 });
        self.provider.post("charge", "/payments", key, &body).await
    }

    async fn refund(&self, key: &str) -> Result<Value, Failure> {
        let path = format!("/payments/{key}/refund");
        let own = format!("{key}:undo");
        self.provider.post("refund", &path, &own, &json!({})).await
    }

    fn shows(&self, line: &str) -> bool {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather());
        text.unwrap().lines().any(|found| found == line)
    }
}

fn kind(result: &Result<Value, Failure>) -> Option<FailureKind> {
    result.as_ref().err().map(Failure::kind)
}

fn words(result: Result<Value, Failure>) -> String {
    let failure = result.unwrap_err();
    chain(&failure as &(dyn StdError + 'static))
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Counts calls at the server, and holds them while it is shut.
#[derive(Clone)]
struct Gate {
    arrived: Arc<AtomicUsize>,
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    open: watch::Sender<bool>,
}

impl Gate {
    fn new(open: bool) -> Self {
        let (arrived, inside, most) = Default::default();
        let open = watch::Sender::new(open);
        Self {
            arrived,
            inside,
            most,
            open,
        }
    }

    fn set(&self, open: bool) {
        self.open.send_replace(open);
    }

    fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }

    fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }

    async fn providers(&self) -> Providers {
        let gate = self.clone();
        Providers::with(|router| router.layer(from_fn_with_state(gate, pass))).await
    }
}

async fn pass(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    gate.arrived.fetch_add(1, Ordering::SeqCst);
    let inside = gate.inside.fetch_add(1, Ordering::SeqCst) + 1;
    gate.most.fetch_max(inside, Ordering::SeqCst);
    let mut open = gate.open.subscribe();
    open.wait_for(|open| *open).await.unwrap();
    let response = next.run(request).await;
    gate.inside.fetch_sub(1, Ordering::SeqCst);
    response
}

#[tokio::test]
async fn every_fault_says_what_became_of_the_work_and_the_same_key_mends_it() {
    for (fault, expected, charged) in [
        ("error", FailureKind::Unknown, 0),
        ("unavailable", FailureKind::Technical, 0),
        ("decline", FailureKind::Refused, 0),
        ("rate_limit", FailureKind::Technical, 0),
        ("lost_answer", FailureKind::Unknown, 1),
    ] {
        let providers = Providers::start().await;
        let client = payments(&settings(&providers.base));
        let change = json!({ "do": { "fault": fault, "times": 1 } });
        providers.mode("payment", change).await;
        let failed = client.charge("k").await;
        assert_eq!(kind(&failed), Some(expected), "{fault}");
        let ledger = providers.ledger().await;
        assert_eq!(ledger["payments"].as_array().unwrap().len(), charged);
        let paid = client.charge("k").await.unwrap();
        assert_eq!(
            (&paid["id"], &paid["status"]),
            (&json!("pay-1"), &json!("CHARGED"))
        );
        assert_eq!(
            providers.ledger().await["payments"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        let label = cause::label(expected);
        assert!(client.shows(&format!(
            "external_request_errors_total{{kind=\"{label}\",operation=\"charge\",provider=\"payment\"}} 1"
        )));
        providers.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_provider_that_hangs_is_left_with_the_outcome_unknown() {
    let providers = Providers::start().await;
    let hang = json!({ "do": { "fault": "hang" } });
    providers.mode("payment", hang).await;
    let hasty = payments(&ProviderSettings {
        timeout: Duration::from_millis(200),
        ..settings(&providers.base)
    });
    let failed = hasty.charge("k").await;
    assert_eq!(kind(&failed), Some(FailureKind::Unknown));
    assert!(words(failed).contains("no answer within 200ms"));
    assert!(
        hasty.shows("external_request_timeouts_total{operation=\"charge\",provider=\"payment\"} 1")
    );
    assert!(hasty.shows("external_requests_in_flight{provider=\"payment\"} 0"));
    // One that hangs at the end of the server does not hold it up.
    let client = payments(&settings(&providers.base));
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { kind(&client.charge("k2").await) });
    tokio::task::yield_now().await;
    providers.stop().await.unwrap();
    let failed = waiting.join_next().await.unwrap().unwrap();
    assert!(failed.is_some_and(|kind| kind != FailureKind::Refused));
}

#[tokio::test]
async fn no_charge_comes_after_its_undo() {
    let providers = Providers::start().await;
    let client = payments(&settings(&providers.base));
    let lost = json!({ "do": { "fault": "lost_answer", "times": 1 } });
    providers.mode("payment", lost).await;
    assert_eq!(
        kind(&client.charge("paid").await),
        Some(FailureKind::Unknown)
    );
    for _ in 0..2 {
        assert_eq!(client.refund("paid").await.unwrap()["status"], "REFUNDED");
        assert_eq!(client.refund("never").await.unwrap()["status"], "VOIDED");
    }
    for key in ["paid", "never"] {
        let late = client.charge(key).await;
        assert_eq!(kind(&late), Some(FailureKind::Refused));
        assert!(words(late).contains("answered 409: this idempotency key was undone"));
    }
    let other = json!({ "order_id": 1, "amount_cents": 1 });
    client.charge("mine").await.unwrap();
    let other = client.provider.post("charge", "/payments", "mine", &other);
    assert!(words(other.await).contains("answered 422"));
    let ledger = providers.ledger().await;
    let rows = ledger["payments"].as_array().unwrap();
    let status: BTreeMap<_, _> = rows
        .iter()
        .map(|row| {
            (
                row["key"].as_str().unwrap(),
                row["status"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("paid", "REFUNDED"),
        ("never", "VOIDED"),
        ("mine", "CHARGED"),
    ];
    assert_eq!(status, expected.into());
}

#[tokio::test]
async fn an_open_circuit_answers_without_a_call() {
    let gate = Gate::new(true);
    let providers = gate.providers().await;
    let client = payments(&settings(&providers.base));
    let error = json!({ "do": { "fault": "error" } });
    providers.mode("payment", error).await;
    for call in 0..5 {
        let failed = client.charge(&format!("k{call}")).await;
        assert_eq!(kind(&failed), Some(FailureKind::Unknown));
    }
    for _ in 0..20 {
        let spared = client.charge("k").await;
        assert_eq!(kind(&spared), Some(FailureKind::Technical));
        assert!(words(spared).contains("it was not asked: it failed too often"));
    }
    assert_eq!(gate.arrived(), 5);
    assert!(client.shows("external_circuit_state{provider=\"payment\"} 2"));
}

#[tokio::test]
async fn refusals_do_not_open_the_circuit() {
    let providers = Providers::start().await;
    let client = payments(&settings(&providers.base));
    let decline = json!({ "do": { "fault": "decline", "times": 20 } });
    providers.mode("payment", decline).await;
    for _ in 0..20 {
        assert_eq!(kind(&client.charge("k").await), Some(FailureKind::Refused));
    }
    client.charge("k").await.unwrap();
}

#[tokio::test]
async fn one_probe_closes_the_circuit() {
    let gate = Gate::new(true);
    let providers = gate.providers().await;
    let client = Arc::new(payments(&ProviderSettings {
        open_for: Duration::from_millis(1),
        ..settings(&providers.base)
    }));
    let error = json!({ "do": { "fault": "error", "times": 5 } });
    providers.mode("payment", error).await;
    for _ in 0..5 {
        assert_eq!(kind(&client.charge("k").await), Some(FailureKind::Unknown));
    }
    gate.set(false);
    let probing = client.clone();
    let probe = tokio::spawn(async move {
        loop {
            match probing.charge("k").await {
                Ok(paid) => return paid,
                Err(spared) => assert_eq!(spared.kind(), FailureKind::Technical),
            }
            sleep(Duration::from_millis(1)).await;
        }
    });
    until("the probe to arrive", || gate.inside() == 1).await;
    for _ in 0..10 {
        let spared = client.charge("k2").await;
        assert_eq!(kind(&spared), Some(FailureKind::Technical));
    }
    assert_eq!(gate.arrived(), 6);
    assert!(client.shows("external_circuit_state{provider=\"payment\"} 1"));
    gate.set(true);
    assert_eq!(probe.await.unwrap()["status"], "CHARGED");
    assert!(client.shows("external_circuit_state{provider=\"payment\"} 0"));
    client.charge("k2").await.unwrap();
}

#[tokio::test]
async fn each_provider_has_a_bounded_number_of_calls_at_once() {
    let gate = Gate::new(false);
    let providers = gate.providers().await;
    let settings = settings(&providers.base);
    let external = External::new(&Registry::new()).unwrap();
    let payment = Provider::payment(&settings, &external).unwrap();
    let shipping = Provider::shipping(&settings, &external).unwrap();
    for (provider, path, body, places) in [
        (
            payment,
            "/payments",
            json!({"order_id": 1, "amount_cents": 1}),
            5,
        ),
        (shipping, "/shipments", json!({"order_id": 1}), 3),
    ] {
        gate.set(false);
        gate.most.store(0, Ordering::SeqCst);
        let mut calls = JoinSet::new();
        for call in 0..20 {
            let (provider, body) = (provider.clone(), body.clone());
            calls.spawn(async move {
                let key = format!("k{call}");
                provider.post("ask", path, &key, &body).await.unwrap();
            });
        }
        let all_in = || gate.inside() == places && provider.0.places.waiting() == 20 - places;
        until("places to be taken and the others to wait", all_in).await;
        gate.set(true);
        calls.join_all().await;
        assert_eq!(gate.most.load(Ordering::SeqCst), places);
    }
}

#[tokio::test]
async fn a_provider_that_asks_for_a_pause_gets_it() {
    let gate = Gate::new(true);
    let count = gate.clone();
    let pause = from_fn(async |request: Request, next: Next| {
        let mut response = next.run(request).await;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            let hour = HeaderValue::from_static("3600");
            response.headers_mut().insert(header::RETRY_AFTER, hour);
        }
        response
    });
    let wrap = |router: Router| router.layer(pause).layer(from_fn_with_state(count, pass));
    let providers = Providers::with(wrap).await;
    let client = payments(&settings(&providers.base));
    let limit = json!({ "do": { "fault": "rate_limit", "times": 1 } });
    providers.mode("payment", limit).await;
    for words_of in ["answered 429", "rate limited for another"] {
        let failed = client.charge("k").await;
        assert_eq!(kind(&failed), Some(FailureKind::Technical));
        let said = words(failed);
        assert!(said.contains(words_of), "{said}");
    }
    assert_eq!(gate.arrived(), 1);
}

#[tokio::test]
async fn a_provider_that_is_not_there_did_nothing() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let failed = payments(&settings(&base)).charge("k").await;
    assert_eq!(kind(&failed), Some(FailureKind::Technical));
    let said = words(failed);
    assert!(
        said.contains(&base) && said.contains("is it running?"),
        "{said}"
    );
}

#[tokio::test]
async fn an_answer_that_can_t_be_read_leaves_the_outcome_unknown() {
    for (status, body) in [
        (200, "done".to_owned()),
        (200, format!("\"{}\"", "x".repeat(ANSWER_MAX))),
        (302, String::new()),
    ] {
        let answer = move |_: Request, _: Next| {
            let status = StatusCode::from_u16(status).unwrap();
            let to = [(header::LOCATION, "/ledger")];
            std::future::ready((status, to, body.clone()).into_response())
        };
        let wrap = |router: Router| router.layer(from_fn(answer));
        let providers = Providers::with(wrap).await;
        let failed = payments(&settings(&providers.base)).charge("k").await;
        assert_eq!(kind(&failed), Some(FailureKind::Unknown), "{status}");
    }
}

#[tokio::test]
async fn a_key_that_fits_no_header_is_refused_before_a_call() {
    let gate = Gate::new(true);
    let providers = gate.providers().await;
    let failed = payments(&settings(&providers.base))
        .charge("two\nlines")
        .await;
    assert_eq!(kind(&failed), Some(FailureKind::Refused));
    assert_eq!(gate.arrived(), 0);
}
