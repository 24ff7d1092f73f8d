//! Server ids that are taken: by another replica, or by the database server itself.

use anyhow::{Context as _, Result, ensure};
use tests::both::{arrives, insert, session};
use tests::inbox::Inbox;
use tests::on_servers;
use tests::relay::RelayProcess;
use tests::scene::Scene;
use tests::until::{Seen, until};

on_servers! {
    mysql Mysql: relays_with_one_server_id_make_room_for_each_other, the_servers_own_id_is_refused;
    mariadb Mariadb: relays_with_one_server_id_make_room_for_each_other, the_servers_own_id_is_refused;
}

/// The first wait, at least: what the other one can work in.
const FIRST_WAIT_MS: u64 = 5_000;

/// Waits until the relay says that another has taken its server id, and what to do.
async fn is_displaced(relay: &mut RelayProcess, id: u64) -> Result<()> {
    until("the relay to say that its server id is taken", async || {
        let reason = relay.unready().await?;
        let said =
            reason.contains(&format!("server id {id}")) && reason.contains("RELAY_SERVER_ID");
        Ok(Seen::when(said, || reason))
    })
    .await
}

/// The waits that it has logged.
fn waits(relay: &RelayProcess) -> Result<Vec<u64>> {
    let log = relay.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("two replicas with one server id"));
    lines
        .map(|line| {
            let (_, rest) = line.split_once("wait_ms").context("no wait in the log")?;
            let digits: String = rest
                .chars()
                .skip_while(|c| !c.is_ascii_digit())
                .take_while(char::is_ascii_digit)
                .collect();
            Ok(digits.parse()?)
        })
        .collect()
}

/// Each connection of one ends the other's stream: the one that is displaced says so and waits, so that the other works.
async fn relays_with_one_server_id_make_room_for_each_other(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let id = u64::from(fastrand::u32(1_000_000_000..2_000_000_000));
    let command = || {
        scene
            .relay()
            .with("RELAY_SERVER_ID", id)
            .with("RELAY_MARK", "none")
    };
    let mut first = command().start().await?;
    session(scene, &[&insert(&["before"])]).await?;
    let mut inbox = Inbox::new();
    arrives(scene, &queue, &mut inbox, "before").await?;

    let name = format!("{}_b", scene.name());
    let mut second = command().with("RELAY_NAME", name).start().await?;
    is_displaced(&mut first, id).await?;
    session(scene, &[&insert(&["meanwhile"])]).await?;
    arrives(scene, &queue, &mut inbox, "meanwhile").await?;

    // The first comes back, and it is the second's turn to wait; neither has lost anything.
    is_displaced(&mut second, id).await?;
    first.ready().await?;
    session(scene, &[&insert(&["last"])]).await?;
    arrives(scene, &queue, &mut inbox, "last").await?;
    for relay in [&first, &second] {
        let waits = waits(relay)?;
        ensure!(
            !waits.is_empty() && waits.iter().all(|wait| *wait >= FIRST_WAIT_MS),
            "waited for {waits:?} ms"
        );
    }
    first.stop().await?;
    second.stop().await
}

/// The server would never send anything to a replica with its own id.
async fn the_servers_own_id_is_refused(scene: &mut Scene) -> Result<()> {
    let id = scene.database.number("SELECT @@server_id").await?;
    let command = scene.relay().with("RELAY_SERVER_ID", id);
    let finished = command.finish("run").await?;
    ensure!(finished.code == Some(1), "{finished:?}");
    for word in [format!("server id {id}"), "RELAY_SERVER_ID".to_owned()] {
        ensure!(finished.text.contains(&word), "no {word:?}: {finished:?}");
    }
    Ok(())
}
