//! `app providers` as a process that is killed.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use reqwest::Client;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::sleep;

/// Starts it on that port and waits until it is ready.
async fn start(port: u16, state: &Path) -> Result<Child> {
    let address = format!("127.0.0.1:{port}");
    let mut child = Command::new(env!("CARGO_BIN_EXE_app"))
        .args(["providers", "--providers-addr", &address, "--state"])
        .arg(state)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start app providers")?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let page = format!("http://{address}/readyz");
    while !reqwest::get(&page)
        .await
        .is_ok_and(|answer| answer.status() == 200)
    {
        ensure!(child.try_wait()?.is_none(), "app providers ended");
        ensure!(Instant::now() < deadline, "app providers is not ready");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(child)
}

async fn post(port: u16, path: &str, key: &str, body: Value) -> Result<(u16, Value)> {
    let page = format!("http://127.0.0.1:{port}{path}");
    // A connection of its own: the last one may be that of a process that was killed.
    let request = Client::new()
        .post(page)
        .header("Idempotency-Key", key)
        .json(&body);
    let answer = request.send().await?;
    Ok((answer.status().as_u16(), answer.json().await?))
}

#[tokio::test]
async fn what_was_answered_for_is_there_after_kill_9() -> Result<()> {
    let room = tempfile::tempdir()?;
    let state = room.path().join("providers.state");
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let charge = |key: &'static str| {
        post(
            port,
            "/payments",
            key,
            json!({"order_id": 1, "amount_cents": 5}),
        )
    };
    let undo = |key: &'static str| post(port, key, "undo", json!({}));
    let mut child = start(port, &state).await?;
    let first = charge("a").await?;
    assert_eq!((first.0, &first.1["id"]), (201, &json!("pay-1")));
    assert_eq!(charge("b").await?.0, 201);
    assert_eq!(undo("/payments/b/refund").await?.1["status"], "REFUNDED");
    assert_eq!(undo("/payments/c/refund").await?.1["status"], "VOIDED");
    child.kill().await?;
    let mut child = start(port, &state).await?;
    assert_eq!(charge("a").await?, first);
    assert_eq!(charge("b").await?.0, 409);
    assert_eq!(charge("c").await?.0, 409);
    assert_eq!(charge("d").await?.1["id"], "pay-3");
    child.kill().await?;
    Ok(())
}
