//! Rows that can't be published, for every reason there is: each becomes a dead letter that says why, and the rest flows.

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use tests::both::{arrives, insert, run, session};
use tests::broker::QueueKind;
use tests::inbox::Inbox;
use tests::private::PrivateServer;
use tests::relay::RelayProcess;
use tests::scene::Scene;
use tests::until::{Seen, until};

tests::on_servers! {
    mysql Mysql: poison_becomes_dead_letters_and_the_rest_flows, polled_poison_becomes_dead_letters;
    mariadb Mariadb: poison_becomes_dead_letters_and_the_rest_flows, polled_poison_becomes_dead_letters;
}

mod small_packets {
    use super::*;

    tests::on_private_servers! {
        mysql Mysql ["--max-allowed-packet=64M"] => letter_that_is_too_large_for_the_server_is_cut;
        mariadb Mariadb ["--max-allowed-packet=64M"] => letter_that_is_too_large_for_the_server_is_cut;
    }
}

/// Columns that take anything.
const LOOSE: &str = "ALTER TABLE outbox_events MODIFY payload LONGBLOB NOT NULL, MODIFY headers LONGTEXT NULL, \
     MODIFY event_type VARCHAR(400) NOT NULL, MODIFY aggregate_type VARCHAR(64) CHARACTER SET latin1 NOT NULL, \
     MODIFY idempotency_key VARBINARY(255) NOT NULL, MODIFY last_error VARCHAR(100) NULL, \
     ADD COLUMN to_exchange LONGTEXT NULL";

/// A row: name, kind of aggregate, kind of event, payload, headers and exchange, as SQL.
struct Bad {
    name: &'static str,
    aggregate: &'static str,
    event: &'static str,
    payload: &'static str,
    headers: &'static str,
    exchange: &'static str,
    /// What its letter says.
    why: &'static str,
    /// A condition on the letter's payload.
    kept: &'static str,
}

/// A row that is well but for what a test changes.
const WELL: Bad = Bad {
    name: "'well'",
    aggregate: "'order'",
    event: "'OrderTouched'",
    payload: "'{}'",
    headers: "NULL",
    exchange: "NULL",
    why: "",
    kept: "TRUE",
};

/// Nothing is bound for the kind `nowhere`.
const BAD: [Bad; 11] = [
    Bad {
        name: "CONCAT('key', x'ff')",
        why: "idempotency_key is not valid UTF-8",
        ..WELL
    },
    Bad {
        name: "'no-json'",
        payload: "'not json'",
        why: "not valid JSON",
        kept: "JSON_UNQUOTE(payload) = 'not json'",
        ..WELL
    },
    Bad {
        name: "'half-json'",
        payload: "'{\"a\": '",
        why: "not valid JSON",
        ..WELL
    },
    Bad {
        name: "'no-text'",
        payload: "x'7b2261223a2022ff227d'",
        why: "not valid JSON in UTF-8",
        ..WELL
    },
    // JSON that neither server takes into a JSON column.
    Bad {
        name: "'deep'",
        aggregate: "'nowhere'",
        payload: "CONCAT(REPEAT('[', 5000), REPEAT(']', 5000))",
        why: "NO_ROUTE",
        kept: "JSON_TYPE(payload) = 'STRING' AND CHAR_LENGTH(JSON_UNQUOTE(payload)) = 10000",
        ..WELL
    },
    Bad {
        name: "'huge-number'",
        aggregate: "'nowhere'",
        payload: "'[1e999]'",
        why: "NO_ROUTE",
        ..WELL
    },
    Bad {
        name: "'half-pair'",
        aggregate: "'nowhere'",
        payload: "'\"\\\\ud800\"'",
        why: "NO_ROUTE",
        ..WELL
    },
    Bad {
        name: "'deep-headers'",
        headers: "CONCAT('{\"a\":', REPEAT('[', 5000), REPEAT(']', 5000), '}')",
        why: "headers is not a JSON object",
        ..WELL
    },
    Bad {
        name: "'long-event'",
        event: "REPEAT('é', 400)",
        why: "255",
        kept: "event_type = REPEAT('é', 128)",
        ..WELL
    },
    Bad {
        name: "'long-exchange'",
        exchange: "REPEAT('x', 100000)",
        why: "has 100000 bytes",
        kept: "CHAR_LENGTH(error) < 400",
        ..WELL
    },
    // RabbitMQ's max_message_size is 16 MiB.
    Bad {
        name: "'large'",
        payload: "CONCAT('\"', REPEAT('x', 40000000), '\"')",
        why: "max_message_size",
        kept: "CHAR_LENGTH(JSON_UNQUOTE(payload)) = 40000000",
        ..WELL
    },
];

fn statement(bad: &Bad, aggregate: usize) -> String {
    format!(
        "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, idempotency_key, headers, to_exchange) \
         VALUES ({}, {aggregate}, {}, {}, {}, {}, {})",
        bad.aggregate, bad.event, bad.payload, bad.name, bad.headers, bad.exchange
    )
}

async fn poison(scene: &mut Scene, source: &str) -> Result<()> {
    let queue = scene.broker.queue_of(QueueKind::Classic, "order.#").await?;
    let latin = scene.broker.queue_of(QueueKind::Classic, "é.#").await?;
    scene.database.execute(LOOSE).await?;
    let command = scene
        .relay()
        .with("RELAY_SOURCE", source)
        .with("RELAY_COLUMN_EXCHANGE", "to_exchange")
        .with("RELAY_MAX_ATTEMPTS", 2);
    let mut relay = command.start().await?;
    let mut flowing = Vec::new();
    for (nth, bad) in BAD.iter().enumerate() {
        let (before, after) = (format!("before{nth}"), format!("after{nth}"));
        // In the middle of a transaction, and of an aggregate of its own.
        session(
            scene,
            &[
                "START TRANSACTION",
                &insert(&[&before]),
                &statement(bad, 100 + nth),
                &insert(&[&after]),
                "COMMIT",
            ],
        )
        .await?;
        flowing.extend([before, after]);
    }
    // What only looks like poison: deep JSON, and a text that is not UTF-8 in its column.
    let deep = Bad {
        name: "'deep-and-well'",
        payload: "CONCAT(REPEAT('[', 5000), REPEAT(']', 5000))",
        ..WELL
    };
    let latin1 = Bad {
        name: "'latin1'",
        aggregate: "'é'",
        ..WELL
    };
    session(scene, &[&statement(&deep, 1), &statement(&latin1, 2)]).await?;
    flowing.push("deep-and-well".to_owned());
    are_dead_letters(scene, &mut relay).await?;

    let mut inbox = Inbox::new();
    arrives(scene, &queue, &mut inbox, "deep-and-well").await?;
    let keys: Vec<&str> = inbox.first_deliveries().collect();
    ensure!(keys == flowing, "{keys:?} arrived");
    let body = &inbox.get("deep-and-well").context("gone")?.body;
    ensure!(body.ends_with(&[&[b']'; 5000][..], b"}"].concat()));
    let mut inbox = Inbox::new();
    arrives(scene, &latin, &mut inbox, "latin1").await?;
    relay
        .publishes_all_but(&scene.database, "status = 'FAILED'")
        .await?;
    // Nothing of it holds back a checkpoint, nor comes again.
    relay.stop().await?;
    let relay = command.start().await?;
    session(scene, &[&insert(&["last"])]).await?;
    let mut inbox = Inbox::new();
    arrives(scene, &queue, &mut inbox, "last").await?;
    relay.stop().await?;
    scene.broker.take_all(&queue, &mut inbox).await?;
    ensure!(inbox.messages().len() == 1, "events came again");
    let letters = scene
        .database
        .number("SELECT COUNT(*) FROM dead_letter_events");
    let letters = letters.await?;
    ensure!(letters == BAD.len() as u64, "{letters} dead letters");
    Ok(())
}

/// Each has one letter with its reason and attempts, and its row is FAILED with the same.
async fn are_dead_letters(scene: &Scene, relay: &mut RelayProcess) -> Result<()> {
    for bad in &BAD {
        let (name, why, kept) = (bad.name, bad.why, bad.kept);
        let attempts = if bad.aggregate == "'nowhere'" { 2 } else { 1 };
        let select = format!(
            "SELECT COUNT(*) FROM dead_letter_events d JOIN outbox_events o ON o.id = d.source_event_id \
             WHERE o.idempotency_key = {name} AND o.status = 'FAILED' AND o.attempts = {attempts} \
             AND d.attempts = {attempts} AND d.error LIKE '%{why}%' AND o.last_error = LEFT(d.error, 100) AND {}",
            kept.replace("payload", "d.payload")
                .replace("event_type", "d.event_type")
                .replace("(error)", "(d.error)")
        );
        until(&format!("a dead letter of {name}: {why}"), async || {
            relay.still_runs()?;
            let found = scene.database.number(&select).await?;
            let all = "SELECT CAST(GROUP_CONCAT(CONCAT_WS(' ', source_event_key, attempts, LEFT(error, 100)) SEPARATOR '; ') AS CHAR) FROM dead_letter_events";
            let mut conn = scene.database.connect().await?;
            let all: Option<Option<String>> = conn.query_first(all).await?;
            Ok(Seen::when(found == 1, || format!("{found}, and {all:?}")))
        })
        .await?;
    }
    Ok(())
}

async fn poison_becomes_dead_letters_and_the_rest_flows(scene: &mut Scene) -> Result<()> {
    poison(scene, "binlog").await
}

async fn polled_poison_becomes_dead_letters(scene: &mut Scene) -> Result<()> {
    poison(scene, "poll").await
}

/// The application's session could send more than the relay's can: the letter says so, and how the payload begins.
async fn letter_that_is_too_large_for_the_server_is_cut(
    scene: &mut Scene,
    server: &mut PrivateServer,
) -> Result<()> {
    let queue = scene.broker.queue_of(QueueKind::Classic, "#").await?;
    let mut conn = scene.database.connect().await?;
    server
        .exec("SET GLOBAL max_allowed_packet = 4194304")
        .await?;
    let mut relay = scene.relay().start().await?;
    let large = Bad {
        name: "'large'",
        payload: "CONCAT('{\"a\": \"', REPEAT('x', 20000000), '\"}')",
        ..WELL
    };
    let large =
        statement(&large, 7)
            .replace(", to_exchange", "")
            .replacen(", NULL, NULL)", ", NULL)", 1);
    run(
        &mut conn,
        &[&insert(&["before"]), &large, &insert(&["after"])],
    )
    .await?;
    conn.disconnect().await?;
    let mut inbox = Inbox::new();
    arrives(scene, &queue, &mut inbox, "after").await?;
    relay
        .publishes_all_but(&scene.database, "status = 'FAILED'")
        .await?;
    relay.stop().await?;
    ensure!(inbox.messages().len() == 2, "the large one was delivered");
    let letters = "SELECT COUNT(*) FROM dead_letter_events WHERE attempts = 1 AND error LIKE '%max_message_size%' \
         AND JSON_EXTRACT(payload, '$.bytes') = 20000009 AND CHAR_LENGTH(JSON_UNQUOTE(JSON_EXTRACT(payload, '$.begins'))) = 65536 \
         AND JSON_UNQUOTE(JSON_EXTRACT(payload, '$.truncated')) LIKE '%outbox row has it whole%'";
    let letters = scene.database.number(letters).await?;
    ensure!(letters == 1, "{letters} dead letters that say so");
    Ok(())
}
