//! `relay run`.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::config::Config;
use crate::mysql::MysqlError;
use crate::relay::Relay;
use crate::telemetry;

pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

/// An error of MySQL with the word to the operator.
pub(super) fn with_hint(error: MysqlError) -> anyhow::Error {
    let hint = error.diagnosis().hint;
    let line = crate::error::chain(&error);
    anyhow::anyhow!("{line}; {hint}")
}

/// Runs the relay until a signal ends it.
pub(super) fn main(config: Config) -> anyhow::Result<()> {
    telemetry::start(&config)?;
    runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let relay = Relay::new(config, stop.clone())?.run();
        tokio::pin!(relay);
        loop {
            tokio::select! {
                ended = &mut relay => return ended,
                _ = terminate.recv() => info!("SIGTERM"),
                _ = interrupt.recv() => info!("SIGINT"),
            }
            if stop.is_cancelled() {
                anyhow::bail!("stopped by a second signal before everything was confirmed; the rest is published again on the next start");
            }
            stop.cancel();
        }
    })
}
