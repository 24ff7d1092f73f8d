//! kill -9.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use tests::inbox::Inbox;
use tests::relay::RelayCommand;
use tests::scene::Scene;
use tests::until::PATIENCE;
use tests::writers::{Load, Writers};
use tokio::time::{sleep, timeout};

const WINDOW: u64 = 100;
const KILLS: u32 = 10;

/// After ten kills under load every committed event is in the queue, first deliveries are in commit
/// order, and what a checkpoint had covered was not sent again.
///
/// The bound on duplicates needs no clock. A relay that was killed may leave to its successor all that
/// it delivered but what its last checkpoint covers (see [`covered`]), so over all of them
/// `duplicates ≤ deliveries − Σ covered − what the last, never killed, relay confirmed`.
pub(crate) async fn kill_9_ten_times_loses_nothing(scene: &mut Scene) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let relay = scene
        .relay()
        .with("RELAY_WINDOW", WINDOW)
        .with("RELAY_CHECKPOINT_INTERVAL", "50ms");
    let writers = Writers::start(&scene.database, Load::endless()).await?;
    let mut rng = Rng::with_seed(9);
    let mut covered = 0;
    for _ in 0..KILLS {
        covered += run_and_kill(&relay, rng.u64(500..1_500)).await?;
    }
    let mut last = relay.start().await?;
    let ledger = writers.stop().await?;
    last.publishes_all(&scene.database).await?;
    let confirmed_by_last = last.metrics().await?.get("relay_confirmed_total");
    last.stop().await?;

    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    let verdict = ledger.verdict(&inbox);
    verdict.at_least_once_in_order()?;
    let deliveries = u64::try_from(inbox.messages().len())?;
    let bound = deliveries.saturating_sub(covered + confirmed_by_last);
    scene.tell(&format!(
        "{KILLS} kills, {} events, {} duplicates, at most {bound} allowed",
        ledger.len(),
        verdict.duplicates
    ));
    ensure!(
        u64::try_from(verdict.duplicates)? <= bound,
        "{} > {bound}",
        verdict.duplicates
    );
    // The bound must be able to fail: replaying everything each time would be far above it.
    ensure!(covered > 0, "no checkpoint covered anything before a kill");
    Ok(())
}

/// What a scrape saw.
#[derive(Debug, Clone, Copy)]
struct Progress {
    confirmed: u64,
    checkpoints: u64,
}

/// Runs a relay until it has confirmed that many events and written three checkpoints, kills it, and
/// gives what its last checkpoint covers at least.
async fn run_and_kill(command: &RelayCommand, goal: u64) -> Result<u64> {
    let mut relay = command.start().await?;
    let mut history = Vec::new();
    let watch = async {
        loop {
            relay.still_runs()?;
            let metrics = relay.metrics().await?;
            let now = Progress {
                confirmed: metrics.get("relay_confirmed_total"),
                checkpoints: metrics.get("relay_checkpoint_writes_total"),
            };
            history.push(now);
            if now.confirmed >= goal && now.checkpoints >= 3 {
                return anyhow::Ok(());
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let reached = timeout(PATIENCE, watch).await;
    reached.with_context(|| format!("never got to {goal}: {:?}", history.last()))??;
    relay.kill9().await?;
    Ok(covered(&history))
}

/// Events that the last checkpoint covers for sure.
///
/// Checkpoint n is begun after checkpoint n − 1 was counted, so after every scrape that saw fewer than
/// n − 1. What was confirmed at such a scrape is covered but for what waits behind an unconfirmed event:
/// at most a window, and another for what was confirmed while the scrape itself was made.
fn covered(history: &[Progress]) -> u64 {
    let last = history.last().map_or(0, |progress| progress.checkpoints);
    let before = history
        .iter()
        .take_while(|progress| progress.checkpoints + 1 < last);
    before
        .last()
        .map_or(0, |progress| progress.confirmed.saturating_sub(2 * WINDOW))
}
