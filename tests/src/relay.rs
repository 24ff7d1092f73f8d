//! The relay as a process.

use std::path::PathBuf;

use anyhow::Result;

use crate::database::Database;
use crate::port;
use crate::program::{Finished, Output, Program, Running};
use crate::until::{Seen, until};

/// How `/readyz` of a standby begins.
const STANDING_BY: &str = "ok: standing by";

/// How a relay is to be started: its environment and its log file.
#[derive(Debug, Clone)]
pub struct RelayCommand(Program);

/// A running relay; killed when dropped.
pub type RelayProcess = Running;

impl RelayCommand {
    /// A command that logs to that file.
    pub fn new(log: PathBuf) -> Self {
        Self(Program::new("relay", log))
    }

    /// Sets a variable.
    #[must_use]
    pub fn with(self, variable: &str, value: impl ToString) -> Self {
        Self(self.0.with(variable, value))
    }

    /// Runs a command line that ends by itself, with its outputs apart.
    ///
    /// # Errors
    /// It could not be started, or does not end.
    pub async fn output(&self, arguments: &[&str]) -> Result<Output> {
        self.0.output(arguments).await
    }

    /// Runs a subcommand that ends by itself.
    ///
    /// # Errors
    /// It could not be started, or does not end.
    pub async fn finish(&self, subcommand: &str) -> Result<Finished> {
        self.0.finish(subcommand).await
    }

    /// Starts `relay run` and waits until it is ready.
    ///
    /// # Errors
    /// It ended, or is not ready by the deadline.
    pub async fn start(&self) -> Result<RelayProcess> {
        let mut relay = self.spawn()?;
        relay.ready().await?;
        Ok(relay)
    }

    /// Starts `relay run` and does not wait.
    ///
    /// # Errors
    /// It could not be started.
    pub fn spawn(&self) -> Result<RelayProcess> {
        let address = format!("127.0.0.1:{}", port::free()?);
        self.0.serve(&["run"], "RELAY_HTTP_ADDR", address)
    }
}

/// What only a relay does.
impl Running {
    /// Waits until every outbox row but those of that condition is `PUBLISHED`.
    ///
    /// # Errors
    /// The process ended, or the deadline passed.
    pub async fn publishes_all_but(&mut self, database: &Database, but: &str) -> Result<()> {
        let open = format!("status <> 'PUBLISHED' AND NOT ({but})");
        until("the outbox rows to be PUBLISHED", async || {
            self.still_runs()?;
            let open = database.count(&open).await?;
            Ok(Seen::when(open == 0, || {
                format!("{open} rows that are not")
            }))
        })
        .await
    }

    /// Waits until every outbox row is `PUBLISHED`.
    ///
    /// # Errors
    /// The process ended, or the deadline passed.
    pub async fn publishes_all(&mut self, database: &Database) -> Result<()> {
        self.publishes_all_but(database, "FALSE").await
    }

    /// Waits until it is ready as a standby, beside a leader of its name.
    ///
    /// # Errors
    /// The process ended, or the deadline passed.
    pub async fn stands_by(&mut self) -> Result<()> {
        until("the relay to stand by", async || {
            self.still_runs()?;
            Ok(match self.get("/readyz").await {
                Ok((200, text)) if text.starts_with(STANDING_BY) => Seen::Yes(()),
                other => Seen::NotYet(format!("{other:?}")),
            })
        })
        .await
    }
}
