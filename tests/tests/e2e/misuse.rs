//! Settings that are wrong, and servers that are not there.

use anyhow::{Result, ensure};
use tests::database::NewEvent;
use tests::inbox::Inbox;
use tests::proxy::Proxy;
use tests::relay::RelayCommand;
use tests::scene::Scene;
use tests::until::{Seen, until};

const SECRET: &str = "not-the-password-7d1f";

/// Exit code 2, and a message with the key, the value and what is allowed.
pub(crate) async fn bad_settings_are_named_with_exit_code_2(scene: &mut Scene) -> Result<()> {
    let file = scene.path("relay.toml");
    tokio::fs::write(&file, "windoww = 5\n").await?;
    let cases = [
        (
            scene.relay().with("RELAY_WINDOW", "many"),
            &["window", "many", "1000000"][..],
        ),
        (
            scene.relay().with("RELAY_WINDOW", "0"),
            &["window", "\"0\"", "1000000"],
        ),
        (
            scene.relay().with("RELAY_MARK", "maybe"),
            &["mark", "maybe", "update", "delete", "none"],
        ),
        (
            scene.relay().with("RELAY_SHUTDOWN_TIMEOUT", "5"),
            &["shutdown_timeout", "5", "30s"],
        ),
        (
            scene
                .relay()
                .with("RELAY_MYSQL_URL", format!("http://u:{SECRET}@h/d")),
            &["mysql_url"],
        ),
        (scene.relay().with("RELAY_WINDWO", "5"), &["RELAY_WINDWO"]),
        (
            scene.relay().with("RELAY_CONFIG", file.display()),
            &["windoww", "window"],
        ),
    ];
    for (command, words) in cases {
        let finished = command.finish("run").await?;
        ensure!(
            finished.code == Some(2),
            "expected exit code 2: {finished:?}"
        );
        let text = finished.text.to_lowercase();
        for word in words {
            ensure!(text.contains(&word.to_lowercase()), "no {word} in {text}");
        }
        ensure!(!text.contains(SECRET), "the password is shown: {text}");
    }
    Ok(())
}

/// A server that can't be used is named, with the server's reason and without the password.
pub(crate) async fn unreachable_servers_are_named(scene: &mut Scene) -> Result<()> {
    let (mysql, amqp) = (scene.account().url(), scene.broker.url());
    let mut wrong_password = mysql.clone();
    wrong_password.set_password(Some(SECRET)).ok();
    let mut unknown_host = mysql.clone();
    unknown_host.set_host(Some("no-such-host.invalid"))?;
    let mut no_database = mysql.clone();
    no_database.set_path("no_such_database_here");
    let mut wrong_amqp_password = amqp.clone();
    wrong_amqp_password.set_password(Some(SECRET)).ok();
    let mysql = |url| scene.relay().with("RELAY_MYSQL_URL", url);
    names(&mysql(wrong_password), &["access denied"]).await?;
    names(
        &mysql(unknown_host),
        &["no-such-host.invalid", "lookup address", "resolve"],
    )
    .await?;
    names(&mysql(no_database), &["no_such_database_here"]).await?;
    let amqp = scene.relay().with("RELAY_AMQP_URL", wrong_amqp_password);
    names(
        &amqp,
        &["access_refused", "access refused", "login was refused"],
    )
    .await
}

/// The relay either ends with 1 or 2, or stays and says it on `/readyz`; in one of those words.
async fn names(command: &RelayCommand, words: &[&str]) -> Result<()> {
    let mut relay = command.spawn()?;
    let said = |text: &str| {
        let text = text.to_lowercase();
        words.iter().any(|word| text.contains(word))
    };
    until(&format!("the relay to say one of {words:?}"), async || {
        if let Some(status) = relay.ended()? {
            let log = relay.log();
            ensure!(
                matches!(status.code(), Some(1 | 2)),
                "ended with {status}: {log}"
            );
            ensure!(said(&log), "none of {words:?} in {log}");
            return Ok(Seen::Yes(()));
        }
        Ok(match relay.get("/readyz").await {
            Ok((code, reason)) => {
                ensure!(
                    code == 503,
                    "ready with a server that can't be used: {reason}"
                );
                Seen::when(said(&reason), || reason.clone())
            }
            Err(error) => Seen::NotYet(format!("{error:#}")),
        })
    })
    .await?;
    let log = relay.log();
    ensure!(!log.contains(SECRET), "the password is logged: {log}");
    Ok(())
}

/// Without a broker the relay lives, is not ready, says why, and goes on once there is one.
pub(crate) async fn broker_that_is_down_at_start_is_waited_for(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let proxy = Proxy::start(scene.broker.url()).await?;
    proxy.refuse();
    let url = proxy.address_for(scene.broker.url())?;
    let mut relay = scene.relay().with("RELAY_AMQP_URL", url).spawn()?;
    until("readyz to name the broker", async || {
        let reason = relay.unready().await?;
        let named = reason.to_lowercase().contains("broker") && !reason.contains("starting");
        Ok(Seen::when(named, || reason))
    })
    .await?;
    let (code, _) = relay.get("/livez").await?;
    ensure!(code == 200, "/livez is {code} though the process is well");
    let events: Vec<NewEvent> = (0..100)
        .map(|id| NewEvent::order(id, "OrderCreated", format!("order:{id}")))
        .collect();
    scene.database.insert(&events).await?;

    proxy.resume();
    relay.ready().await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ensure!(
        inbox.distinct() == 100 && inbox.duplicates() == 0,
        "{}",
        inbox.messages().len()
    );
    Ok(())
}
