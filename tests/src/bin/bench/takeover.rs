//! From the end of a leader to the first publication of its standby, under load.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::relay::RelayProcess;
use tests::scene::Scene;
use tests::until::PATIENCE;
use tests::writers::{Load, Writers};
use tokio::time::sleep;

/// Time between two looks at the standby's counters: the measured time is that unsure.
const LOOK: Duration = Duration::from_millis(5);

/// Orders a second for each of eight writers.
const PACE: u32 = 50;

/// Publications of a leader before it is ended.
const UNDER_WAY: u64 = 200;

/// How a leader ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It dies: the kernel closes its connections.
    Kill,
    /// It is paused: its connections stay open, and its lease has to run out.
    Stop,
    /// It is told to end, and hands over.
    Term,
}

/// All of them.
pub(crate) const ENDS: [End; 3] = [End::Kill, End::Stop, End::Term];

impl End {
    fn name(self) -> &'static str {
        match self {
            End::Kill => "SIGKILL",
            End::Stop => "SIGSTOP",
            End::Term => "SIGTERM",
        }
    }
}

/// One row of the table: sorted times of all rounds.
#[derive(Debug)]
pub(crate) struct Takeover {
    end: End,
    times: Vec<Duration>,
}

impl Takeover {
    /// The shortest, the one in the middle, and the longest, in ms.
    fn figures(&self) -> [f64; 3] {
        let last = self.times.len().saturating_sub(1);
        [0, last / 2, last].map(|at| self.times.get(at).map_or(0.0, |time| millis(*time)))
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Ends that many leaders, each with a standby that is the next one.
pub(crate) async fn measure(scene: &mut Scene, end: End, rounds: u32) -> Result<Takeover> {
    // Its messages are left to pile up: they are few.
    scene.broker.queue("#").await?;
    let mut leader = relay(scene).await?;
    leader.reaches("relay_leader", 1).await?;
    let writers = Writers::start(&scene.database, Load::endless().paced(PACE)).await?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let mut standby = relay(scene).await?;
        standby.stands_by().await?;
        leader.reaches("relay_confirmed_total", UNDER_WAY).await?;
        ensure!(standby.metrics().await?.get("relay_published_total") == 0);
        times.push(round(leader, &mut standby, end).await?);
        leader = standby;
    }
    writers.stop().await?;
    leader.publishes_all(&scene.database).await?;
    leader.stop().await?;
    times.sort_unstable();
    Ok(Takeover { end, times })
}

async fn relay(scene: &Scene) -> Result<RelayProcess> {
    scene.relay().with("RELAY_LOG_LEVEL", "warn").start().await
}

/// Ends the leader; the time until the standby publishes.
async fn round(leader: RelayProcess, standby: &mut RelayProcess, end: End) -> Result<Duration> {
    let start = Instant::now();
    match end {
        End::Kill => {
            leader.kill9().await?;
            publishes(standby, start).await
        }
        End::Stop => {
            leader.signal("STOP").await?;
            let time = publishes(standby, start).await?;
            leader.kill9().await?;
            Ok(time)
        }
        End::Term => {
            // Both at once: it is the handing over that counts, whatever the leader has to do after it.
            let ((), time) = tokio::try_join!(leader.stop(), publishes(standby, start))?;
            Ok(time)
        }
    }
}

async fn publishes(standby: &mut RelayProcess, start: Instant) -> Result<Duration> {
    loop {
        standby.still_runs()?;
        if standby.metrics().await?.get("relay_published_total") > 0 {
            return Ok(start.elapsed());
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "the standby publishes nothing in {PATIENCE:?}"
        );
        sleep(LOOK).await;
    }
}

/// For a person.
pub(crate) fn table(all: &[Takeover]) -> String {
    let mut text = format!(
        "from the leader's end to the standby's first publication in ms, default lease, {} orders/s\n\
         {:<10} {:>7} {:>9} {:>9} {:>9}",
        PACE * 8,
        "signal",
        "rounds",
        "min",
        "median",
        "max"
    );
    for row in all {
        let [min, median, max] = row.figures();
        // Writing to a String can't fail.
        write!(
            text,
            "\n{:<10} {:>7} {min:>9.0} {median:>9.0} {max:>9.0}",
            row.end.name(),
            row.times.len()
        )
        .unwrap_or_default();
    }
    text
}

/// For a program.
pub(crate) fn json(all: &[Takeover]) -> Value {
    let rows = all.iter().map(|row| {
        let [min, median, max] = row.figures();
        json!({
            "signal": row.end.name(), "rounds": row.times.len(),
            "min_ms": min, "median_ms": median, "max_ms": max,
        })
    });
    Value::Array(rows.collect())
}
