//! `app` as its operator runs it, on real servers.

mod support;

use std::time::Duration;

use anyhow::{Result, ensure};
use mysql_async::prelude::Queryable as _;
use serde_json::{Value, json};
use support::{Scene, event, until};
use tokio::time::sleep;

const INBOX: &str = "SELECT COUNT(*) FROM inbox_events WHERE processed_at IS NOT NULL";
const DEAD: &str = "SELECT COUNT(*) FROM dead_letter_events";

#[tokio::test(flavor = "multi_thread")]
async fn events_take_effect_once() -> Result<()> {
    let scene = Scene::new("MYSQL_URL").await?;
    let worker = scene.start("worker").await?;
    for round in 0..3 {
        for number in 0..200 {
            scene
                .publish_event(&format!("order:{number}:created"))
                .await?;
            if number % 50 == round {
                // Twice in a row: likely in one batch.
                scene
                    .publish_event(&format!("order:{number}:created"))
                    .await?;
            }
        }
    }
    until("all messages to be recorded", async || {
        Ok(worker.metric("app_events_received_total").await? == 612
            && worker.metric("app_events_processed_total").await? == 200
            && worker.metric("app_events_duplicate_total").await? == 412)
    })
    .await?;
    assert_eq!(scene.number(INBOX).await?, 200);
    worker.stop().await?;
    // Acknowledged, all of them.
    assert_eq!(scene.queued().await?, 0);
    scene.end().await
}

async fn unreadable_messages_go_to_dead_letters(server: &str) -> Result<()> {
    let scene = Scene::new(server).await?;
    let worker = scene.start("worker").await?;
    let deep = format!("{}1{}", "[".repeat(150), "]".repeat(150));
    let long = "x".repeat(129);
    let bad: [(&str, &str, Vec<u8>); 6] = [
        ("garbage", "OrderSeen", b"\xff\x00 not json".to_vec()),
        ("empty", "", Vec::new()),
        (
            "no-payload",
            "OrderSeen",
            br#"{"event_type":"A","idempotency_key":"k"}"#.to_vec(),
        ),
        (
            "long-type",
            &long,
            event("k", "{}").replace("OrderSeen", &long).into_bytes(),
        ),
        // JSON, but more than the servers take.
        ("deep", "OrderSeen", event("deep", &deep).into_bytes()),
        (
            "deep-too",
            "OrderSeen",
            event("deep-too", &deep).into_bytes(),
        ),
    ];
    for (number, (id, kind, body)) in bad.iter().enumerate() {
        scene.publish_event(&format!("before:{number}")).await?;
        scene.publish(id, kind, body).await?;
        scene.publish_event(&format!("after:{number}")).await?;
    }
    until("all messages to be settled", async || {
        Ok(scene.number(INBOX).await? == 12 && scene.number(DEAD).await? == 6)
    })
    .await?;
    assert_eq!(worker.metric("app_events_poison_total").await?, 6);
    assert_eq!(worker.metric("app_events_processed_total").await?, 12);
    let mut conn = scene.connect().await?;
    let rows: Vec<(String, String, String)> = conn
        .query("SELECT event_type, payload, error FROM dead_letter_events ORDER BY id")
        .await?;
    conn.disconnect().await?;
    let kept = |id: &str| -> Option<(&str, Value)> {
        rows.iter().find_map(|(_, payload, error)| {
            let payload: Value = serde_json::from_str(payload).ok()?;
            (payload["message_id"] == id).then_some((error.as_str(), payload))
        })
    };
    for (id, _, body) in &bad {
        let Some((error, payload)) = kept(id) else {
            anyhow::bail!("{id} is not there: {rows:?}")
        };
        ensure!(!error.is_empty(), "{id}");
        assert_eq!(payload["body"], *String::from_utf8_lossy(body), "{id}");
    }
    worker.stop().await?;
    assert_eq!(scene.queued().await?, 0);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_messages_go_to_dead_letters_on_mysql() -> Result<()> {
    unreadable_messages_go_to_dead_letters("MYSQL_URL").await
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_messages_go_to_dead_letters_on_mariadb() -> Result<()> {
    unreadable_messages_go_to_dead_letters("MARIADB_URL").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_outlives_its_servers() -> Result<()> {
    let scene = Scene::new("MYSQL_URL").await?;
    let worker = scene.start("worker").await?;
    let mut sent = 0;
    for wire in [&scene.broker, &scene.mysql, &scene.broker, &scene.mysql] {
        for _ in 0..150 {
            scene
                .publish_event(&format!("order:{sent}:created"))
                .await?;
            sent += 1;
            if sent % 150 == 75 {
                wire.cut();
            }
        }
        until("the outage to be noticed", async || {
            Ok(worker.get("/readyz").await?.0 == 503)
        })
        .await?;
        assert_eq!(worker.get("/livez").await?.0, 200);
        wire.mend();
        until("all events to be recorded", async || {
            Ok(scene.number(INBOX).await? == sent)
        })
        .await?;
        until("the worker to be ready", async || {
            Ok(worker.get("/readyz").await?.0 == 200)
        })
        .await?;
    }
    worker.stop().await?;
    assert_eq!(
        (scene.number(INBOX).await?, scene.number(DEAD).await?),
        (600, 0)
    );
    assert_eq!(scene.queued().await?, 0);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_loses_and_repeats_nothing() -> Result<()> {
    let scene = Scene::new("MYSQL_URL").await?;
    scene.start("worker").await?.stop().await?;
    for number in 0..1000 {
        scene
            .publish_event(&format!("order:{number}:created"))
            .await?;
    }
    for pause in [20, 35, 50] {
        let worker = scene.start("worker").await?;
        sleep(Duration::from_millis(pause)).await;
        worker.kill().await?;
    }
    let worker = scene.start("worker").await?;
    until("all events to be recorded", async || {
        Ok(scene.number(INBOX).await? == 1000)
    })
    .await?;
    worker.stop().await?;
    assert_eq!((scene.queued().await?, scene.number(DEAD).await?), (0, 0));
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_stops_while_mysql_is_away() -> Result<()> {
    let scene = Scene::new("MYSQL_URL").await?;
    let worker = scene.start("worker").await?;
    scene.mysql.cut();
    for number in 0..10 {
        scene
            .publish_event(&format!("order:{number}:created"))
            .await?;
    }
    until("a message to be delivered", async || {
        Ok(worker.metric("app_events_received_total").await? > 0)
    })
    .await?;
    worker.stop().await?;
    // They are back in the queue.
    until("the messages to be back", async || {
        Ok(scene.queued().await? == 10)
    })
    .await?;
    assert_eq!(scene.number(INBOX).await?, 0);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_and_its_event_are_one() -> Result<()> {
    let scene = Scene::new("MARIADB_URL").await?;
    let api = scene.start("serve").await?;
    let http = reqwest::Client::new();
    let page = format!("{}/orders", api.base);
    let order = json!({"customer_id": 7, "items": [
        {"sku": "A-1", "qty": 2, "price_cents": 1500}, {"sku": "B", "qty": 1, "price_cents": 1},
    ]});
    let place = async || {
        let key = uuid::Uuid::new_v4().to_string();
        http.post(&page)
            .header("Idempotency-Key", key)
            .json(&order)
            .send()
            .await
    };
    let answer = place().await?;
    assert_eq!(answer.status(), 201);
    assert_eq!(answer.headers()["location"], "/orders/1");
    let body: Value = answer.json().await?;
    assert_eq!(
        body,
        json!({"id": 1, "status": "CREATED", "total_cents": 3001})
    );
    let (_, shown) = api.get("/orders/1").await?;
    assert_eq!(
        serde_json::from_str::<Value>(&shown)?["items"],
        order["items"]
    );
    let mut conn = scene.connect().await?;
    let row: Option<(String, i64, String, String, String)> = conn
        .query_first(
            "SELECT aggregate_type, aggregate_id, event_type, idempotency_key, payload FROM outbox_events",
        )
        .await?;
    let Some((aggregate, id, kind, key, payload)) = row else {
        anyhow::bail!("no event")
    };
    assert_eq!(
        (aggregate.as_str(), id, kind.as_str(), key.as_str()),
        ("order", 1, "OrderCreated", "order:1:created")
    );
    let expected =
        json!({"order_id": 1, "customer_id": 7, "items": order["items"], "total_cents": 3001});
    assert_eq!(serde_json::from_str::<Value>(&payload)?, expected);
    // Refused by the server at the last of the three inserts: nothing stays.
    conn.query_drop("RENAME TABLE outbox_events TO elsewhere")
        .await?;
    assert_eq!(place().await?.status(), 503);
    conn.query_drop("RENAME TABLE elsewhere TO outbox_events")
        .await?;
    conn.disconnect().await?;
    assert_eq!(scene.number("SELECT COUNT(*) FROM orders").await?, 1);
    assert_eq!(scene.number("SELECT COUNT(*) FROM order_items").await?, 2);
    // MySQL away: said so, and nothing hangs; back again: served again.
    scene.mysql.cut();
    let answer = place().await?;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "1");
    scene.mysql.mend();
    assert_eq!(place().await?.status(), 201);
    api.stop().await?;
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_api_leaves_whole_orders() -> Result<()> {
    let scene = Scene::new("MYSQL_URL").await?;
    let api = scene.start("serve").await?;
    let page = format!("{}/orders", api.base);
    let order = json!({"customer_id": 7, "items": [{"sku": "A-1", "qty": 2, "price_cents": 1500}]});
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (page, order) = (page.clone(), order.clone());
        clients.spawn(async move {
            let http = reqwest::Client::new();
            let mut placed = 0_u64;
            while http
                .post(&page)
                .header("Idempotency-Key", uuid::Uuid::new_v4().to_string())
                .json(&order)
                .send()
                .await
                .is_ok_and(|answer| answer.status() == 201)
            {
                placed += 1;
            }
            placed
        });
    }
    sleep(Duration::from_millis(500)).await;
    api.kill().await?;
    let placed: u64 = clients.join_all().await.into_iter().sum();
    // What the server is still busy with at this moment ends within its own time.
    sleep(Duration::from_millis(500)).await;
    let orders = scene.number("SELECT COUNT(*) FROM orders").await?;
    ensure!(
        placed > 0 && (placed..=placed + 8).contains(&orders),
        "{placed} placed, {orders} there"
    );
    let halves = "SELECT COUNT(*) FROM orders o WHERE NOT EXISTS (SELECT 1 FROM order_items i WHERE i.order_id = o.id) \
         OR NOT EXISTS (SELECT 1 FROM outbox_events e WHERE e.aggregate_id = o.id)";
    assert_eq!(scene.number(halves).await?, 0);
    assert_eq!(
        scene.number("SELECT COUNT(*) FROM outbox_events").await?,
        orders
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_too_big_for_mysql_go_to_dead_letters() -> Result<()> {
    let mut scene = Scene::new("MARIADB_URL").await?;
    // As if the server took packets of 1 MiB only.
    scene
        .mysql
        .url
        .set_query(Some("max_allowed_packet=1048576"));
    let worker = scene.start("worker").await?;
    scene.publish_event("before").await?;
    let text = |length| format!("\"{}\"", "x".repeat(length));
    // A text is no envelope, and the error quotes it.
    scene
        .publish("quoted", "OrderSeen", text(200_000).as_bytes())
        .await?;
    let big = event("big", &text(3_000_000));
    scene.publish("big", "OrderSeen", big.as_bytes()).await?;
    scene.publish_event("after").await?;
    until("all messages to be settled", async || {
        Ok(scene.number(INBOX).await? == 2 && scene.number(DEAD).await? == 2)
    })
    .await?;
    worker.stop().await?;
    assert_eq!(scene.queued().await?, 0);
    scene.end().await
}
