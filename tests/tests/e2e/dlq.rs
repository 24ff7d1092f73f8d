//! `relay dlq`: the operator's hand on dead letters.

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use tests::both::session;
use tests::relay::RelayCommand;
use tests::scene::Scene;
use tests::until::{Seen, until};

tests::on_servers! {
    mysql Mysql: letters_are_listed_and_shown, a_replay_resets_the_row_and_is_audited, a_replay_that_can_not_help_is_refused,
        replay_all_takes_what_the_filters_match, two_replays_of_one_letter_are_one, two_replays_of_all_share_the_letters,
        rows_with_other_keys_are_found, wrong_usage_is_exit_code_2;
    mariadb Mariadb: letters_are_listed_and_shown, a_replay_resets_the_row_and_is_audited, a_replay_that_can_not_help_is_refused,
        replay_all_takes_what_the_filters_match, two_replays_of_one_letter_are_one, two_replays_of_all_share_the_letters,
        rows_with_other_keys_are_found, wrong_usage_is_exit_code_2;
}

/// FAILED rows of those ids with a dead letter each, of the same id.
pub(crate) async fn bury(scene: &Scene, ids: std::ops::Range<i64>) -> Result<()> {
    let mut conn = scene.database.connect().await?;
    conn.query_drop("START TRANSACTION").await?;
    conn.exec_batch(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, idempotency_key, status, attempts, \
         last_error, locked_by, locked_until) VALUES (?, 'order', 1, 'OrderCreated', '{\"a\": 1}', ?, 'FAILED', 10, 'NO_ROUTE', \
         'someone', NOW(6))",
        ids.clone().map(|id| (id, format!("key:{id}"))),
    )
    .await?;
    conn.exec_batch(
        "INSERT INTO dead_letter_events (id, source_event_id, source_event_key, event_type, payload, error, attempts, created_at) \
         VALUES (?, ?, ?, 'OrderCreated', '{\"a\": 1}', '312 NO_ROUTE', 10, UTC_TIMESTAMP(6))",
        ids.map(|id| (id, id, id.to_string())),
    )
    .await?;
    conn.query_drop("COMMIT").await?;
    Ok(())
}

/// Ids of the letters that are left.
pub(crate) async fn letters(scene: &Scene) -> Result<Vec<i64>> {
    let mut conn = scene.database.connect().await?;
    Ok(conn
        .query("SELECT id FROM dead_letter_events ORDER BY id")
        .await?)
}

/// `action letter key` of each line of the audit, and who did the last.
pub(crate) async fn audit(scene: &Scene) -> Result<(Vec<String>, String)> {
    let mut conn = scene.database.connect().await?;
    let rows: Vec<(String, String)> = conn
        .query("SELECT CONCAT(action, ' ', dead_letter_id, ' ', COALESCE(source_event_key, '-')), actor FROM relay_audit ORDER BY id")
        .await?;
    let actor = rows
        .last()
        .map(|(_, actor)| actor.clone())
        .unwrap_or_default();
    Ok((rows.into_iter().map(|(line, _)| line).collect(), actor))
}

/// Fails unless the row of letter `id` is as if it had never been tried, and the letter is gone.
pub(crate) async fn is_pending(scene: &Scene, id: i64) -> Result<()> {
    let fresh = format!(
        "id = {id} AND status = 'PENDING' AND attempts = 0 AND last_error IS NULL AND locked_by IS NULL \
         AND locked_until IS NULL"
    );
    ensure!(
        scene.database.count(&fresh).await? == 1,
        "row {id} is not PENDING anew"
    );
    ensure!(!letters(scene).await?.contains(&id), "letter {id} is there");
    Ok(())
}

async fn letters_are_listed_and_shown(scene: &mut Scene) -> Result<()> {
    let relay = scene.relay();
    relay
        .output(&["dlq", "list"])
        .await?
        .is(0, &["no dead letters"])?;
    bury(scene, 1..4).await?;
    session(
        scene,
        &[
            "UPDATE dead_letter_events SET event_type = 'Refund', error = 'nacked\n\u{1b}[2J' WHERE id = 2",
            "UPDATE dead_letter_events SET created_at = UTC_TIMESTAMP(6) - INTERVAL 2 DAY WHERE id = 1",
        ],
    )
    .await?;
    let cases: [(&[&str], &[i64]); 6] = [
        (&[], &[1, 2, 3]),
        (&["--type", "Refund"], &[2]),
        (&["--error", "NO_ROUTE"], &[1, 3]),
        (&["--since", "1d"], &[2, 3]),
        (&["--since", "1d", "--error", "NO_ROUTE"], &[3]),
        (&["--limit", "2"], &[1, 2]),
    ];
    for (filters, expected) in cases {
        let arguments = [&["dlq", "list", "--json"], filters].concat();
        let listing = relay.output(&arguments).await?.json()?;
        let found = listing["letters"].as_array().context("no letters")?;
        let ids: Vec<i64> = found
            .iter()
            .filter_map(|letter| letter["id"].as_i64())
            .collect();
        ensure!(ids == expected, "{filters:?} found {ids:?}");
        ensure!(
            listing["more"] == (filters.first() == Some(&"--limit")),
            "{listing}"
        );
    }
    let listed = relay.output(&["dlq", "list"]).await?;
    listed.is(0, &["Refund", "NO_ROUTE", "WRITTEN (UTC)"])?;
    ensure!(!listed.out.contains('\u{1b}'), "an escape is printed");
    ensure!(listed.out.lines().count() == 4, "{}", listed.out);
    relay
        .output(&["dlq", "list", "--limit", "1"])
        .await?
        .is(0, &["more than these 1"])?;

    let letter = relay
        .output(&["dlq", "show", "3", "--json"])
        .await?
        .json()?;
    let created = letter["created_at"].as_str().unwrap_or_default();
    ensure!(
        created.ends_with('Z') && created.len() == 27,
        "created_at {created:?}"
    );
    let expected = serde_json::json!({
        "id": 3, "event_key": "3", "event_type": "OrderCreated", "error": "312 NO_ROUTE", "attempts": 10,
        "created_at": created, "payload": {"a": 1},
    });
    ensure!(letter == expected, "{letter}");
    relay
        .output(&["dlq", "show", "3"])
        .await?
        .is(0, &["312 NO_ROUTE", "{\"a\": 1}"])?;
    relay
        .output(&["dlq", "show", "99"])
        .await?
        .is(1, &["no such letter: 99"])
}

async fn a_replay_resets_the_row_and_is_audited(scene: &mut Scene) -> Result<()> {
    bury(scene, 1..5).await?;
    let relay = scene.relay();
    relay
        .output(&["dlq", "replay", "1", "2"])
        .await?
        .is(0, &["letter 1 is gone", "PENDING"])?;
    is_pending(scene, 1).await?;
    is_pending(scene, 2).await?;
    relay
        .output(&["dlq", "discard", "3"])
        .await?
        .is(0, &["letter 3 is gone"])?;
    ensure!(
        scene.database.count("id = 3 AND status = 'FAILED'").await? == 1,
        "a discarded letter's row changed"
    );
    // One that is not there does not keep the others from being done.
    relay
        .output(&["dlq", "replay", "1", "4"])
        .await?
        .is(1, &["no such letter: 1", "letter 4 is gone", "1 of 2"])?;
    is_pending(scene, 4).await?;
    relay
        .output(&["dlq", "discard", "3"])
        .await?
        .is(1, &["no such letter: 3"])?;
    let (lines, actor) = audit(scene).await?;
    ensure!(
        lines == ["replay 1 1", "replay 2 2", "discard 3 3", "replay 4 4"],
        "{lines:?}"
    );
    ensure!(actor.contains('@'), "actor {actor:?}");
    Ok(())
}

async fn a_replay_that_can_not_help_is_refused(scene: &mut Scene) -> Result<()> {
    bury(scene, 1..6).await?;
    session(
        scene,
        &[
            "DELETE FROM outbox_events WHERE id = 1",
            "UPDATE outbox_events SET status = 'PUBLISHED' WHERE id = 2",
            "UPDATE outbox_events SET status = 'PENDING' WHERE id = 3",
            "UPDATE dead_letter_events SET source_event_id = NULL, source_event_key = NULL WHERE id = 4",
        ],
    )
    .await?;
    let relay = scene.relay();
    let cases: [(RelayCommand, &str, &[&str]); 6] = [
        (relay.clone(), "1", &["is gone", "relay dlq discard 1"]),
        (relay.clone(), "2", &["PUBLISHED, not FAILED"]),
        (relay.clone(), "3", &["PENDING, not FAILED"]),
        (relay.clone(), "4", &["does not say which outbox row"]),
        (
            relay.clone().with("RELAY_COLUMN_STATUS", "-"),
            "5",
            &["no status column", "insert the event again"],
        ),
        (
            relay.clone().with("RELAY_MARK", "none"),
            "5",
            &["not marked"],
        ),
    ];
    for (command, id, words) in cases {
        command.output(&["dlq", "replay", id]).await?.is(1, words)?;
    }
    ensure!(
        letters(scene).await? == [1, 2, 3, 4, 5],
        "a refused letter is gone"
    );
    ensure!(audit(scene).await?.0.is_empty(), "a refusal is audited");
    ensure!(
        scene.database.count("status = 'FAILED'").await? == 2,
        "a refusal changed a row"
    );
    relay
        .output(&["dlq", "discard", "1", "2", "3", "4", "5"])
        .await?
        .is(0, &[])
}

async fn replay_all_takes_what_the_filters_match(scene: &mut Scene) -> Result<()> {
    bury(scene, 1..1_202).await?;
    session(
        scene,
        &[
            "UPDATE dead_letter_events SET event_type = 'Refund' WHERE id = 600",
            "UPDATE outbox_events SET status = 'PUBLISHED' WHERE id = 601",
        ],
    )
    .await?;
    let relay = scene.relay();
    let all = ["dlq", "replay", "--all", "--type", "OrderCreated"];
    relay.output(&all).await?.is(
        1,
        &[
            "1199 of 1200 letters",
            "PUBLISHED, not FAILED",
            "1 letters were left",
        ],
    )?;
    let left = letters(scene).await?;
    ensure!(left == [600, 601], "left are {left:?}");
    ensure!(scene.database.count("status = 'PENDING'").await? == 1_199);
    is_pending(scene, 1_201).await?;
    relay
        .output(&["dlq", "replay", "--all", "--error", "nothing like it"])
        .await?
        .is(0, &["0 of 0"])
}

/// Both wait for the letter's row, which is held until they do.
async fn two_replays_of_one_letter_are_one(scene: &mut Scene) -> Result<()> {
    bury(scene, 1..2).await?;
    let mut holder = scene.database.connect().await?;
    holder.query_drop("START TRANSACTION").await?;
    holder
        .query_drop("SELECT id FROM dead_letter_events WHERE id = 1 FOR UPDATE")
        .await?;
    let (first, second) = (scene.relay(), scene.relay());
    let replay = ["dlq", "replay", "1"];
    let release = async {
        let waiting = format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{}' AND id <> CONNECTION_ID() \
             AND info LIKE 'SELECT COALESCE%FOR UPDATE'",
            scene.database.name()
        );
        until("two replays to wait for the letter", async || {
            let waiting = scene.database.number(&waiting).await?;
            Ok(Seen::when(waiting == 2, || waiting.to_string()))
        })
        .await?;
        holder.query_drop("COMMIT").await?;
        anyhow::Ok(())
    };
    let (first, second, released) =
        tokio::join!(first.output(&replay), second.output(&replay), release);
    released?;
    let (first, second) = (first?, second?);
    let (won, lost) = if first.code == Some(0) {
        (first, second)
    } else {
        (second, first)
    };
    won.is(0, &["letter 1 is gone"])?;
    lost.is(1, &["no such letter: 1"])?;
    is_pending(scene, 1).await?;
    let (lines, _) = audit(scene).await?;
    ensure!(lines == ["replay 1 1"], "{lines:?}");
    Ok(())
}

async fn two_replays_of_all_share_the_letters(scene: &mut Scene) -> Result<()> {
    bury(scene, 1..601).await?;
    let (first, second) = (scene.relay(), scene.relay());
    let all = ["dlq", "replay", "--all"];
    let (first, second) = tokio::join!(first.output(&all), second.output(&all));
    first?.is(0, &[])?;
    second?.is(0, &[])?;
    ensure!(letters(scene).await?.is_empty(), "letters are left");
    ensure!(scene.database.count("status = 'PENDING'").await? == 600);
    let (lines, _) = audit(scene).await?;
    ensure!(lines.len() == 600, "{} lines of audit", lines.len());
    Ok(())
}

async fn rows_with_other_keys_are_found(scene: &mut Scene) -> Result<()> {
    let uuid = "0192f0c1-2345-7890-abcd-ef0123456789";
    for (table, kind, literal, key) in [
        (
            "uuids",
            "BINARY(16)",
            format!("UNHEX('{}')", uuid.replace('-', "")),
            uuid,
        ),
        ("texts", "VARCHAR(40)", "'a-7'".to_owned(), "a-7"),
        (
            "numbers",
            "BIGINT UNSIGNED",
            "18446744073709551615".to_owned(),
            "18446744073709551615",
        ),
    ] {
        session(
            scene,
            &[
                &format!("CREATE TABLE {table} (k {kind} PRIMARY KEY, state VARCHAR(20) NOT NULL)"),
                &format!("INSERT INTO {table} VALUES ({literal}, 'FAILED')"),
                &format!(
                    "INSERT INTO dead_letter_events (source_event_key, event_type, payload, error) \
                     VALUES ('{key}', 'T', '{{}}', 'e')"
                ),
            ],
        )
        .await?;
        scene.grant_on(table).await?;
        let letter = letters(scene).await?;
        let letter = letter.last().context("no letter")?.to_string();
        let relay = scene
            .relay()
            .with("RELAY_TABLE", table)
            .with("RELAY_COLUMN_ID", "k")
            .with("RELAY_COLUMN_STATUS", "state");
        relay
            .output(&["dlq", "replay", &letter])
            .await?
            .is(0, &[key])?;
        let pending = format!("SELECT COUNT(*) FROM {table} WHERE state = 'PENDING'");
        ensure!(
            scene.database.number(&pending).await? == 1,
            "{table}: not PENDING"
        );
    }
    Ok(())
}

async fn wrong_usage_is_exit_code_2(scene: &mut Scene) -> Result<()> {
    let relay = scene.relay();
    let cases: [&[&str]; 8] = [
        &["dlq"],
        &["dlq", "bury"],
        &["dlq", "replay"],
        &["dlq", "replay", "x"],
        &["dlq", "replay", "1", "--all"],
        &["dlq", "replay", "1", "--type", "T"],
        &["dlq", "list", "--since", "yesterday"],
        &["dlq", "discard"],
    ];
    for arguments in cases {
        relay
            .output(arguments)
            .await?
            .is(2, &[])
            .with_context(|| arguments.join(" "))?;
    }
    let unknown = relay
        .clone()
        .with("RELAY_MYSQL_URL", "mysql://u:p@127.0.0.1:1/x");
    unknown
        .output(&["dlq", "list"])
        .await?
        .is(1, &["127.0.0.1:1", "check that MySQL is running"])
}
