//! The message contract (DESIGN, section 6), checked on a delivered message.

use anyhow::{Context as _, Result, ensure};
use tests::database::OutboxRow;
use tests::inbox::{Header, Inbox, Message};
use tests::scene::Scene;

/// Every row's message is as the contract has it, headers without extras.
pub(crate) async fn holds(scene: &Scene, inbox: &Inbox) -> Result<()> {
    for row in scene.database.outbox().await? {
        let message = inbox
            .get(&row.key)
            .with_context(|| format!("{} did not arrive", row.key))?;
        message_is(scene, &row, message, &[])?;
    }
    Ok(())
}

/// The message is that row's, with those headers besides the relay's own.
pub(crate) fn message_is(
    scene: &Scene,
    row: &OutboxRow,
    message: &Message,
    extra: &[(&str, Header)],
) -> Result<()> {
    let key = &row.key;
    let (found, expected) = (&message.body, row.body());
    ensure!(
        *found == expected,
        "body of {key}:\n{}\ninstead of\n{}",
        show(found),
        show(&expected)
    );

    let routing_key = format!("{}.{}", row.aggregate_type, row.event_type);
    let expected = [
        (
            "exchange",
            message.exchange.as_str(),
            scene.broker.exchange(),
        ),
        ("routing key", &message.routing_key, &routing_key),
        ("message_id", message.key(), key),
        ("type", message.kind(), &row.event_type),
        ("content_type", message.content_type(), "application/json"),
        ("app_id", message.app_id(), scene.name()),
    ];
    for (what, found, expected) in expected {
        ensure!(
            found == expected,
            "{what} of {key}: {found:?} instead of {expected:?}"
        );
    }
    let mode = *message.properties.delivery_mode();
    ensure!(mode == Some(2), "delivery_mode of {key}: {mode:?}");
    let timestamp = *message.properties.timestamp();
    ensure!(
        timestamp == u64::try_from(row.created_seconds).ok(),
        "timestamp of {key}: {timestamp:?} instead of {}",
        row.created_seconds
    );

    let mut headers = vec![
        ("event_id", Header::Int(row.id)),
        ("aggregate_type", Header::text(&row.aggregate_type)),
        ("aggregate_id", Header::Int(row.aggregate_id)),
    ];
    headers.extend_from_slice(extra);
    headers.sort_by_key(|(name, _)| *name);
    let mut found = message.headers();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let found: Vec<(&str, Header)> = found
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()))
        .collect();
    ensure!(
        found == headers,
        "headers of {key}: {found:?} instead of {headers:?}"
    );
    Ok(())
}

/// Enough of a body to see where it differs.
fn show(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    text.chars().take(2_000).collect()
}
