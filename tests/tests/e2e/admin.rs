//! `relay status`, `/status`, and dead letters by HTTP.

use anyhow::{Context as _, Result, ensure};
use reqwest::Method;
use serde_json::Value;
use tests::database::NewEvent;
use tests::relay::{RelayCommand, RelayProcess};
use tests::scene::Scene;
use tests::until::{Seen, until};

use crate::dlq::{audit, bury, is_pending, letters};

tests::on_servers! {
    mysql Mysql: calls_need_the_token, calls_look_and_change, many_letters_go_in_several_calls, status_tells_how_things_are,
        status_without_http_or_status_column;
    mariadb Mariadb: calls_need_the_token, calls_look_and_change, many_letters_go_in_several_calls, status_tells_how_things_are,
        status_without_http_or_status_column;
}

const TOKEN: &str = "a-token-that-nobody-guesses";

/// Rows that are PENDING again stay so, for the test to see.
fn quiet(scene: &Scene) -> RelayCommand {
    scene.relay().with("RELAY_SWEEP_INTERVAL", "1h")
}

fn with_token(scene: &Scene) -> Result<RelayCommand> {
    let file = scene.path("token");
    std::fs::write(&file, format!("{TOKEN}\n"))?;
    Ok(quiet(scene).with("RELAY_ADMIN_TOKEN_FILE", file.display()))
}

async fn json(relay: &RelayProcess, method: Method, path: &str) -> Result<Value> {
    let (code, body) = relay.call(method, path, Some(TOKEN)).await?;
    ensure!(code == 200, "{path} answered {code}: {body}");
    serde_json::from_str(&body).with_context(|| format!("no JSON: {body}"))
}

async fn calls_need_the_token(scene: &mut Scene) -> Result<()> {
    bury(scene, 1..3).await?;
    let calls = [
        (Method::GET, "/dlq"),
        (Method::GET, "/dlq/1"),
        (Method::POST, "/dlq/1/replay"),
        (Method::POST, "/dlq/replay"),
        (Method::DELETE, "/dlq/1"),
        (Method::GET, "/dlq/no/such/page"),
    ];
    let relay = quiet(scene).start().await?;
    for (method, path) in calls.clone() {
        let (code, body) = relay.call(method, path, Some(TOKEN)).await?;
        ensure!(
            code == 403 && body.contains("RELAY_ADMIN_TOKEN_FILE"),
            "{path} answered {code}: {body}"
        );
    }
    relay.stop().await?;
    let relay = with_token(scene)?.start().await?;
    for token in [
        None,
        Some(""),
        Some("a-token-that-nobody-guesseS"),
        Some("a-token-that-nobody-guesses-too"),
    ] {
        for (method, path) in calls.clone() {
            let (code, body) = relay.call(method, path, token).await?;
            ensure!(code == 401, "{path} with {token:?} answered {code}: {body}");
        }
    }
    ensure!(
        letters(scene).await? == [1, 2],
        "a refused call changed something"
    );
    ensure!(
        audit(scene).await?.0.is_empty(),
        "a refused call is audited"
    );
    ensure!(!relay.log().contains(TOKEN), "the token is in the log");
    let shown = with_token(scene)?.output(&["config"]).await?;
    ensure!(
        shown.code == Some(0) && !shown.out.contains(TOKEN),
        "{shown:?}"
    );
    let short = scene.path("short");
    std::fs::write(&short, "short")?;
    scene
        .relay()
        .with("RELAY_ADMIN_TOKEN_FILE", short.display())
        .output(&["run"])
        .await?
        .is(2, &["admin_token_file", "16 to 512"])
}

async fn calls_look_and_change(scene: &mut Scene) -> Result<()> {
    bury(scene, 1..5).await?;
    tests::both::session(
        scene,
        &[
            "UPDATE dead_letter_events SET event_type = 'Order & Co' WHERE id = 2",
            "UPDATE outbox_events SET status = 'PUBLISHED' WHERE id = 4",
        ],
    )
    .await?;
    let relay = with_token(scene)?.start().await?;
    for (query, expected) in [
        ("", vec![1, 2, 3, 4]),
        ("?type=Order+%26+Co", vec![2]),
        ("?after=1&limit=2", vec![2, 3]),
    ] {
        let listing = json(&relay, Method::GET, &format!("/dlq{query}")).await?;
        let found = listing["letters"].as_array().context("no letters")?;
        let ids: Vec<i64> = found
            .iter()
            .filter_map(|letter| letter["id"].as_i64())
            .collect();
        ensure!(ids == expected, "{query} found {ids:?}");
        ensure!(listing["more"] == (ids == [2, 3]), "{listing}");
    }
    let letter = json(&relay, Method::GET, "/dlq/3").await?;
    ensure!(
        letter["payload"] == serde_json::json!({"a": 1}) && letter["error"] == "312 NO_ROUTE",
        "{letter}"
    );
    let changed = json(&relay, Method::POST, "/dlq/1/replay").await?;
    ensure!(
        changed["id"] == 1 && changed["event_key"] == "1",
        "{changed}"
    );
    is_pending(scene, 1).await?;
    json(&relay, Method::DELETE, "/dlq/3").await?;
    for (method, path, expected, words) in [
        (Method::POST, "/dlq/1/replay", 404, "no such letter: 1"),
        (Method::POST, "/dlq/4/replay", 409, "PUBLISHED, not FAILED"),
        (Method::GET, "/dlq/99", 404, "no such letter: 99"),
        (Method::GET, "/dlq?limit=0", 400, "limit must be"),
        (Method::GET, "/dlq?tipe=x", 400, "there is no tipe"),
        (Method::PUT, "/dlq/4", 405, "GET, DELETE"),
        (Method::DELETE, "/dlq/x", 404, "DELETE /dlq/ID"),
    ] {
        let (code, body) = relay.call(method, path, Some(TOKEN)).await?;
        ensure!(
            code == expected && body.contains(words),
            "{path} answered {code}: {body}"
        );
    }
    ensure!(letters(scene).await? == [2, 4]);
    let (lines, actor) = audit(scene).await?;
    ensure!(lines == ["replay 1 1", "discard 3 3"], "{lines:?}");
    ensure!(actor == "http 127.0.0.1", "actor {actor:?}");
    Ok(())
}

async fn many_letters_go_in_several_calls(scene: &mut Scene) -> Result<()> {
    bury(scene, 1..1_202).await?;
    tests::both::session(
        scene,
        &["UPDATE outbox_events SET status = 'PUBLISHED' WHERE id = 7"],
    )
    .await?;
    let relay = with_token(scene)?.start().await?;
    let first = json(&relay, Method::POST, "/dlq/replay?limit=700&error=ROUTE").await?;
    ensure!(
        first["replayed"] == 699 && first["last"] == 700 && first["more"] == true,
        "{first}"
    );
    let refused = first["refused"][0].as_str().unwrap_or_default();
    ensure!(refused.contains("row 7 of letter 7"), "{first}");
    let second = json(&relay, Method::POST, "/dlq/replay?limit=1000&after=700").await?;
    ensure!(
        second["replayed"] == 501
            && second["more"] == false
            && second["refused"] == serde_json::json!([]),
        "{second}"
    );
    ensure!(letters(scene).await? == [7]);
    ensure!(audit(scene).await?.0.len() == 1_200);
    Ok(())
}

async fn status_tells_how_things_are(scene: &mut Scene) -> Result<()> {
    bury(scene, 1..3).await?;
    // No queue is bound: each event becomes a dead letter at once.
    let command = quiet(scene).with("RELAY_MAX_ATTEMPTS", 1);
    // Nobody is there at this address.
    let nobody = command.clone().with("RELAY_HTTP_ADDR", "127.0.0.1:9");
    nobody.output(&["status"]).await?.is(
        0,
        &[
            "no relay of this name is running",
            "no relay of this name has led yet",
            "2 dead letters",
            "no answer from",
        ],
    )?;
    let relay = command.start().await?;
    let events: Vec<NewEvent> = (0..10)
        .map(|n| NewEvent::order(n, "OrderCreated", format!("unroutable:{n}")))
        .collect();
    scene.database.insert(&events).await?;
    let beside = command.clone().with("RELAY_HTTP_ADDR", relay.address());
    until("the status to show the events", async || {
        let status = beside.output(&["status", "--json"]).await?.json()?;
        let (rows, running) = (&status["rows"], &status["running"]);
        let done = running["role"] == "leading"
            && running["ready"] == true
            && running["dead_letters"].as_i64() == Some(10)
            && rows["pending"] == 0
            && rows["failed"] == 12
            && status["dead_letters"] == 12
            && status["leader_connection"].is_u64()
            && status["checkpoint"]["epoch"] == 1
            && status["checkpoint"]["position"].is_string()
            && status["server_position"].is_string();
        Ok(Seen::when(done, || status.to_string()))
    })
    .await?;
    let (code, page) = relay.get("/status").await?;
    ensure!(
        code == 200 && page.contains("\"circuit\":\"closed\""),
        "{page}"
    );
    beside.output(&["status"]).await?.is(
        0,
        &[
            "holds the lock",
            "epoch 1",
            "0 PENDING, 0 PROCESSING, 12 FAILED",
            "leading, ready; source binlog",
        ],
    )?;
    let other = beside.with("RELAY_NAME", "somebody-else");
    other
        .output(&["status"])
        .await?
        .is(0, &["another relay, ", "no relay of this name is running"])
}

async fn status_without_http_or_status_column(scene: &mut Scene) -> Result<()> {
    let command = scene
        .relay()
        .with("RELAY_HTTP_ADDR", "off")
        .with("RELAY_COLUMN_STATUS", "-");
    command
        .output(&["status"])
        .await?
        .is(0, &["no status column", "HTTP is off"])?;
    command
        .with("RELAY_MYSQL_URL", "mysql://nobody:secret@127.0.0.1:9/none")
        .output(&["status"])
        .await?
        .is(1, &["127.0.0.1:9"])
}
