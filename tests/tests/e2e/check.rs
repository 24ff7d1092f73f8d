//! `relay check` and `relay config`.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tests::port;
use tests::relay::RelayCommand;
use tests::scene::Scene;

tests::on_servers! {
    mysql Mysql: what_is_printed_mends_a_missing_grant, what_is_missing_is_named, config_keeps_secrets;
    mariadb Mariadb: what_is_printed_mends_a_missing_grant, what_is_missing_is_named, config_keeps_secrets;
}

/// The checks that failed.
async fn failed(relay: &RelayCommand, code: i32) -> Result<Vec<Value>> {
    let output = relay.output(&["check", "--json"]).await?;
    output.is(code, &[])?;
    let report: Vec<Value> = serde_json::from_str(&output.out)?;
    ensure!(!report.is_empty(), "nothing was checked");
    Ok(report
        .into_iter()
        .filter(|check| check["result"] == "failed")
        .collect())
}

/// With the README's grants nothing fails; each grant that is taken away is named, and what is printed gives it back.
async fn what_is_printed_mends_a_missing_grant(scene: &mut Scene) -> Result<()> {
    let relay = scene.relay();
    ensure!(failed(&relay, 0).await?.is_empty());
    let (database, account) = (scene.database.name(), scene.account().name());
    let mut taken = vec![format!("REPLICATION SLAVE, REPLICATION CLIENT ON *.*")];
    for (privileges, table) in [
        ("UPDATE", "outbox_events"),
        ("SELECT", "outbox_events"),
        ("INSERT", "relay_checkpoints"),
        ("UPDATE", "relay_checkpoints"),
        ("INSERT", "dead_letter_events"),
    ] {
        taken.push(format!("{privileges} ON `{database}`.{table}"));
    }
    for privileges in taken {
        let revoke = format!("REVOKE {privileges} FROM {account}");
        scene.database.execute(&revoke).await?;
        let found = failed(&relay, 1).await?;
        ensure!(!found.is_empty(), "{revoke} is not noticed");
        for check in found {
            let mend = check["mend"].as_str().unwrap_or_default();
            ensure!(mend.starts_with("GRANT "), "after {revoke}: {check}");
            scene
                .database
                .execute(mend)
                .await
                .with_context(|| mend.to_owned())?;
        }
        let left = failed(&relay, 0).await?;
        ensure!(left.is_empty(), "after {revoke} and its mending: {left:?}");
    }
    Ok(())
}

async fn what_is_missing_is_named(scene: &mut Scene) -> Result<()> {
    let relay = scene.relay();
    let check = ["check"];
    let _queue = scene.broker.queue("#").await?;
    relay
        .clone()
        .with("RELAY_EXCHANGE_TYPE", "fanout")
        .output(&check)
        .await?
        .is(
            1,
            &["FAILED", "RELAY_EXCHANGE_TYPE", scene.broker.exchange()],
        )?;
    let nobody = format!("127.0.0.1:{}", port::free()?);
    relay
        .clone()
        .with("RELAY_AMQP_URL", format!("amqp://u:hush@{nobody}/%2f"))
        .output(&check)
        .await?
        .is(1, &["FAILED", &nobody])?;
    let output = relay
        .clone()
        .with("RELAY_MYSQL_URL", format!("mysql://u:hush@{nobody}/d"))
        .output(&check)
        .await?;
    output.is(1, &["FAILED", &nobody])?;
    ensure!(!output.out.contains("hush"), "a password is printed");
    scene
        .database
        .execute("ALTER TABLE outbox_events DROP COLUMN payload")
        .await?;
    relay.output(&check).await?.is(1, &["FAILED", "payload"])?;
    scene
        .database
        .execute("DROP TABLE dead_letter_events")
        .await?;
    relay
        .output(&check)
        .await?
        .is(1, &["FAILED", "dead_letter_events", "relay migrate"])
}

/// Neither from a URL nor from a file.
async fn config_keeps_secrets(scene: &mut Scene) -> Result<()> {
    let file = scene.path("password");
    std::fs::write(&file, "hush-from-file\n")?;
    let relay = RelayCommand::new(scene.path("config.log"))
        .with("RELAY_MYSQL_URL", "mysql://u:hush-from-url@db.example/shop")
        .with("RELAY_AMQP_URL", "amqp://u@mq.example/%2f")
        .with("RELAY_AMQP_PASSWORD_FILE", file.display())
        .with("RELAY_WINDOW", 7);
    for arguments in [&["config"][..], &["config", "--json"]] {
        let output = relay.output(arguments).await?;
        output.is(0, &["db.example", "mq.example", "RELAY_WINDOW"])?;
        ensure!(
            !output.out.contains("hush"),
            "a secret is printed:\n{}",
            output.out
        );
    }
    relay
        .with("RELAY_WINDOW", "many")
        .output(&["config"])
        .await?
        .is(2, &["window", "many"])
}
