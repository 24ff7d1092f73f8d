//! `POST /orders` as clients meet it who repeat themselves.

mod support;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use reqwest::{Client, Response};
use serde_json::{Value, json};
use support::{App, Scene, until};
use tokio::task::JoinSet;

const ORDERS: &str = "SELECT COUNT(*) FROM orders";

fn order() -> Value {
    json!({"customer_id": 7, "items": [{"sku": "A-1", "qty": 2, "price_cents": 1500}]})
}

async fn post(api: &App, key: &str, body: impl Into<String>) -> reqwest::Result<Response> {
    Client::new()
        .post(format!("{}/orders", api.base))
        .header("Idempotency-Key", key)
        .header("Content-Type", "application/json")
        .body(body.into())
        .send()
        .await
}

/// Checks an error's status and form; its detail.
async fn problem(answer: Response, status: u16) -> Result<String> {
    assert_eq!(answer.status(), status);
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    let body: Value = answer.json().await?;
    assert_eq!(body["status"], status);
    Ok(body["detail"].as_str().context("no detail")?.to_owned())
}

async fn scenario_a_a_repeated_request_is_one_order(server: &str) -> Result<()> {
    let scene = Scene::new(server).await?;
    let api = scene.start("api").await?;
    let body = order().to_string();
    let without = Client::new()
        .post(format!("{}/orders", api.base))
        .json(&order());
    let missing = problem(without.send().await?, 400).await?;
    ensure!(missing.contains("Idempotency-Key"), "{missing}");
    for bad in ["", "two words", &"x".repeat(256)] {
        problem(post(&api, bad, body.as_str()).await?, 400).await?;
    }
    let twice = Client::new()
        .post(format!("{}/orders", api.base))
        .header("Idempotency-Key", "one")
        .header("Idempotency-Key", "two")
        .json(&order());
    problem(twice.send().await?, 400).await?;
    // An invalid order uses up no key.
    problem(post(&api, "abc-123", r#"{"customer_id":0}"#).await?, 422).await?;
    problem(post(&api, "abc-123", "{").await?, 400).await?;

    let first = post(&api, "abc-123", body.as_str()).await?;
    ensure!(first.status() == 201 && !first.headers().contains_key("idempotent-replayed"));
    let (location, kind) = (
        first.headers()["location"].clone(),
        first.headers()["content-type"].clone(),
    );
    let bytes = first.bytes().await?;
    let spaced =
        r#"{ "items": [ {"price_cents":1500,"qty":2,"sku":"\u0041-1"} ], "customer_id": 7 }"#;
    for body in [&body, spaced] {
        let again = post(&api, "abc-123", body).await?;
        assert_eq!(again.status(), 201);
        assert_eq!(again.headers()["idempotent-replayed"], "true");
        assert_eq!(
            (
                &again.headers()["location"],
                &again.headers()["content-type"]
            ),
            (&location, &kind)
        );
        assert_eq!(again.bytes().await?, bytes);
    }
    let other = body.replace("1500", "1501");
    let mismatch = problem(post(&api, "abc-123", other.as_str()).await?, 422).await?;
    ensure!(mismatch.contains("another request"), "{mismatch}");
    assert_eq!(post(&api, "abc-124", other).await?.status(), 201);
    assert_eq!(scene.number(ORDERS).await?, 2);
    assert_eq!(scene.number("SELECT COUNT(*) FROM outbox_events").await?, 2);
    for (metric, value) in [
        ("claimed", 2),
        ("replays", 2),
        ("mismatches", 1),
        ("conflicts", 0),
        ("released", 0),
    ] {
        assert_eq!(
            api.metric(&format!("idempotency_{metric}_total")).await?,
            value,
            "{metric}"
        );
    }
    api.stop().await?;
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_a_a_repeated_request_is_one_order_on_mysql() -> Result<()> {
    scenario_a_a_repeated_request_is_one_order("MYSQL_URL").await
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_a_a_repeated_request_is_one_order_on_mariadb() -> Result<()> {
    scenario_a_a_repeated_request_is_one_order("MARIADB_URL").await
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_with_one_key_place_one_order() -> Result<()> {
    let scene = Scene::new("MYSQL_URL").await?;
    let api = std::sync::Arc::new(scene.start("api").await?);
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let api = api.clone();
        tasks.spawn(async move {
            let answer = post(&api, "one", order().to_string()).await?;
            let again = answer.headers().contains_key("idempotent-replayed");
            let waits = answer.headers().contains_key("retry-after");
            anyhow::Ok((answer.status().as_u16(), again, waits))
        });
    }
    let answers: Vec<_> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
    assert_eq!(count((201, false, false)), 1, "{answers:?}");
    assert_eq!(
        count((201, true, false)) + count((409, false, true)),
        49,
        "{answers:?}"
    );
    assert_eq!(scene.number(ORDERS).await?, 1);
    std::sync::Arc::into_inner(api)
        .context("in use")?
        .stop()
        .await?;
    scene.end().await
}

/// The client is gone while its order waits for a lock: the order is placed, and the repetition gets its answer.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_c_a_lost_answer_is_given_again() -> Result<()> {
    let scene = Scene::new("MYSQL_URL").await?;
    let api = scene.start("api").await?;
    let mut holder = scene.connect().await?;
    holder.query_drop("LOCK TABLES orders WRITE").await?;
    let impatient = Client::new()
        .post(format!("{}/orders", api.base))
        .header("Idempotency-Key", "abc-123")
        .timeout(Duration::from_millis(500))
        .json(&order());
    let gone = impatient.send().await;
    ensure!(gone.is_err_and(|error| error.is_timeout()));
    let early = post(&api, "abc-123", order().to_string()).await?;
    assert_eq!(early.headers()["retry-after"], "1");
    problem(early, 409).await?;
    holder.query_drop("UNLOCK TABLES").await?;
    holder.disconnect().await?;
    until("the answer to be there", async || {
        let answer = post(&api, "abc-123", order().to_string()).await?;
        ensure!(answer.status() == 409 || answer.headers().contains_key("idempotent-replayed"));
        Ok(answer.status() == 201)
    })
    .await?;
    assert_eq!(scene.number(ORDERS).await?, 1);
    api.stop().await?;
    scene.end().await
}

/// Killed between the claim and the commit: the key stays in progress until its lease is over, and then the order is placed once.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_b_a_killed_api_leaves_a_key_that_is_taken_over() -> Result<()> {
    let scene = Scene::new("MARIADB_URL").await?;
    let api = scene.start("api").await?;
    let mut holder = scene.connect().await?;
    holder.query_drop("LOCK TABLES orders WRITE").await?;
    let waiting = post(&api, "abc-123", order().to_string());
    let claimed = until("the claim", async || {
        let claims = "SELECT COUNT(*) FROM idempotency_keys WHERE status = 'PROCESSING'";
        Ok(scene.number(claims).await? == 1)
    });
    tokio::select! {
        answer = waiting => anyhow::bail!("answered: {answer:?}"),
        claimed = claimed => claimed?,
    }
    api.kill().await?;
    holder.query_drop("UNLOCK TABLES").await?;
    let api = scene.start("api").await?;
    problem(post(&api, "abc-123", order().to_string()).await?, 409).await?;
    holder
        .query_drop("UPDATE idempotency_keys SET locked_until = NOW(6) - INTERVAL 1 SECOND")
        .await?;
    holder.disconnect().await?;
    let placed = post(&api, "abc-123", order().to_string()).await?;
    ensure!(placed.status() == 201 && !placed.headers().contains_key("idempotent-replayed"));
    assert_eq!(api.metric("idempotency_taken_over_total").await?, 1);
    assert_eq!(scene.number(ORDERS).await?, 1);
    api.stop().await?;
    scene.end().await
}

/// A failure of the database frees the key; the same request succeeds as soon as it can.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_request_may_try_again() -> Result<()> {
    let scene = Scene::new("MYSQL_URL").await?;
    let api = scene.start("api").await?;
    let mut conn = scene.connect().await?;
    conn.query_drop("RENAME TABLE outbox_events TO elsewhere")
        .await?;
    for _ in 0..2 {
        let failed = post(&api, "abc-123", order().to_string()).await?;
        assert_eq!(failed.headers()["retry-after"], "1");
        problem(failed, 503).await?;
    }
    conn.query_drop("RENAME TABLE elsewhere TO outbox_events")
        .await?;
    conn.disconnect().await?;
    assert_eq!(
        post(&api, "abc-123", order().to_string()).await?.status(),
        201
    );
    assert_eq!(api.metric("idempotency_released_total").await?, 2);
    assert_eq!(scene.number(ORDERS).await?, 1);
    api.stop().await?;
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_keys_go() -> Result<()> {
    let scene = Scene::new("MARIADB_URL").await?;
    let mut conn = scene.connect().await?;
    conn.query_drop(
        "INSERT INTO idempotency_keys (idempotency_key, request_hash, status, expires_at) \
         VALUES ('old', '', 'COMPLETED', NOW(6) - INTERVAL 1 SECOND), ('new', '', 'COMPLETED', NOW(6) + INTERVAL 1 HOUR)",
    )
    .await?;
    conn.disconnect().await?;
    let api = scene.start("api").await?;
    until("the expired key to go", async || {
        Ok(scene
            .number("SELECT COUNT(*) FROM idempotency_keys")
            .await?
            == 1)
    })
    .await?;
    api.stop().await?;
    scene.end().await
}
