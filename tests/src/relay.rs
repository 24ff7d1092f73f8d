//! The relay as a process.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::database::Database;
use crate::metrics::Scrape;
use crate::port;
use crate::process::Usage;
use crate::until::{PATIENCE, Seen, until, within};

/// How `/readyz` of a standby begins.
const STANDING_BY: &str = "ok: standing by";

/// Lines of a log that are shown when something failed.
const TAIL: usize = 40;

/// Bound on one HTTP request to the relay, which answers from memory.
const HTTP_TIMEOUT: Duration = Duration::from_secs(10);

/// The relay's binary: `RELAY_BIN`, or `relay` beside the running executable.
///
/// # Errors
/// It is not there.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("RELAY_BIN") {
        return Ok(path.into());
    }
    let here = std::env::current_exe().context("where is this executable?")?;
    // A test is target/PROFILE/deps/NAME-HASH, the bench target/PROFILE/bench.
    here.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("relay"))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "no relay binary beside {}: run `cargo build` first (same profile and target \
                 folder), or set RELAY_BIN",
                here.display()
            )
        })
}

/// How a relay is to be started: its environment and its log file.
#[derive(Debug, Clone)]
pub struct RelayCommand {
    variables: BTreeMap<String, String>,
    log: PathBuf,
}

/// A relay that has ended: exit code (`None` after a signal) and what it printed.
#[derive(Debug)]
pub struct Finished {
    /// Exit code.
    pub code: Option<i32>,
    /// Standard output and error.
    pub text: String,
}

/// A command that has ended, with its two outputs apart.
#[derive(Debug)]
pub struct Output {
    /// Exit code.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Output {
    /// Fails unless it ended with that exit code and says each of the words, on either output.
    ///
    /// # Errors
    /// It did not.
    pub fn is(&self, code: i32, words: &[&str]) -> Result<()> {
        ensure!(
            self.code == Some(code),
            "expected exit code {code}: {self:?}"
        );
        for word in words {
            ensure!(
                self.out.contains(word) || self.err.contains(word),
                "no {word:?} in {self:?}"
            );
        }
        Ok(())
    }

    /// Its standard output as JSON.
    ///
    /// # Errors
    /// It is none, or the exit code is not 0.
    pub fn json(&self) -> Result<serde_json::Value> {
        self.is(0, &[])?;
        serde_json::from_str(&self.out).with_context(|| format!("no JSON: {}", self.out))
    }
}

impl RelayCommand {
    /// A command that logs to that file. No `RELAY_*` variable of this process reaches it.
    pub fn new(log: PathBuf) -> Self {
        Self {
            variables: BTreeMap::new(),
            log,
        }
    }

    /// Sets a variable.
    #[must_use]
    pub fn with(mut self, variable: &str, value: impl ToString) -> Self {
        self.variables
            .insert(variable.to_owned(), value.to_string());
        self
    }

    fn command(&self, subcommand: &str) -> Result<Command> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(binary()?);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RELAY_") {
                command.env_remove(name);
            }
        }
        command
            .arg(subcommand)
            .envs(&self.variables)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        Ok(command)
    }

    /// Runs a command line that ends by itself, with its outputs apart.
    ///
    /// # Errors
    /// It could not be started, or does not end.
    pub async fn output(&self, arguments: &[&str]) -> Result<Output> {
        let (first, rest) = arguments.split_first().context("no command")?;
        let mut command = self.command(first)?;
        command
            .args(rest)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = timeout(PATIENCE, command.output())
            .await
            .with_context(|| format!("`relay {}` does not end", arguments.join(" ")))??;
        Ok(Output {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs a subcommand that ends by itself.
    ///
    /// # Errors
    /// It could not be started, or does not end.
    pub async fn finish(&self, subcommand: &str) -> Result<Finished> {
        let mut child = self
            .command(subcommand)?
            .spawn()
            .context("cannot start the relay")?;
        let status = timeout(PATIENCE, child.wait())
            .await
            .with_context(|| format!("`relay {subcommand}` does not end"))??;
        Ok(Finished {
            code: status.code(),
            text: text_of(&self.log),
        })
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
        let port = port::free()?;
        let address = format!("127.0.0.1:{port}");
        let child = self
            .clone()
            .with("RELAY_HTTP_ADDR", &address)
            .command("run")?
            .spawn()
            .context("cannot start the relay")?;
        // No proxy: the environment's is for the internet.
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(HTTP_TIMEOUT)
            .build()?;
        Ok(RelayProcess {
            child,
            address,
            http,
            log: self.log.clone(),
        })
    }
}

/// A running relay; killed when dropped.
#[derive(Debug)]
pub struct RelayProcess {
    child: Child,
    address: String,
    http: reqwest::Client,
    log: PathBuf,
}

impl RelayProcess {
    /// Waits until `/readyz` is 200.
    ///
    /// # Errors
    /// The process ended, or the deadline passed.
    pub async fn ready(&mut self) -> Result<()> {
        until("the relay to be ready", async || {
            self.still_runs()?;
            Ok(match self.get("/readyz").await {
                Ok((200, _)) => Seen::Yes(()),
                Ok((code, reason)) => Seen::NotYet(format!("readyz {code}: {reason}")),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            })
        })
        .await
    }

    /// Waits until `/readyz` is 503, and gives its reason.
    ///
    /// # Errors
    /// The process ended, or the deadline passed.
    pub async fn unready(&mut self) -> Result<String> {
        until("the relay to say that it is not ready", async || {
            self.still_runs()?;
            Ok(match self.get("/readyz").await {
                Ok((503, reason)) => Seen::Yes(reason),
                Ok((code, reason)) => Seen::NotYet(format!("readyz {code}: {reason}")),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            })
        })
        .await
    }

    /// Fails if the process has ended.
    ///
    /// # Errors
    /// It has, with its status and the end of its log.
    pub fn still_runs(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the relay ended with {status}:\n{}", tail(&self.log));
        }
        Ok(())
    }

    /// The exit code, if the process has ended.
    ///
    /// # Errors
    /// The process can't be asked.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Status and body of a path.
    ///
    /// # Errors
    /// No answer.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let response = self
            .http
            .get(format!("http://{}{path}", self.address))
            .send()
            .await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// Status and body of any call, with that bearer token if there is one.
    ///
    /// # Errors
    /// No answer.
    pub async fn call(
        &self,
        method: reqwest::Method,
        path: &str,
        token: Option<&str>,
    ) -> Result<(u16, String)> {
        let mut request = self
            .http
            .request(method, format!("http://{}{path}", self.address));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// Where it serves HTTP.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// `/metrics`, parsed.
    ///
    /// # Errors
    /// No answer.
    pub async fn metrics(&self) -> Result<Scrape> {
        let (code, text) = self.get("/metrics").await?;
        ensure!(code == 200, "/metrics answered {code}: {text}");
        Ok(Scrape::parse(&text))
    }

    /// Waits until a counter has reached that value.
    ///
    /// # Errors
    /// The process ended, or the deadline passed.
    pub async fn reaches(&mut self, counter: &str, value: u64) -> Result<()> {
        self.reaches_within(PATIENCE, counter, value).await
    }

    /// [`reaches`](Self::reaches) with a deadline of its own.
    ///
    /// # Errors
    /// The process ended, or the deadline passed.
    pub async fn reaches_within(
        &mut self,
        deadline: Duration,
        counter: &str,
        value: u64,
    ) -> Result<()> {
        within(
            deadline,
            &format!("{counter} to reach {value}"),
            async || {
                self.still_runs()?;
                let found = self.metrics().await?.get(counter);
                Ok(Seen::when(found >= value, || found.to_string()))
            },
        )
        .await
    }

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

    /// Process id.
    ///
    /// # Errors
    /// It has ended.
    pub fn pid(&self) -> Result<u32> {
        self.child.id().context("the relay has ended")
    }

    /// CPU time and memory.
    ///
    /// # Errors
    /// It has ended.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(self.pid()?)
    }

    /// Everything it has logged, runs before it included.
    pub fn log(&self) -> String {
        text_of(&self.log)
    }

    /// SIGKILL: no drain, no checkpoint, no goodbye.
    ///
    /// # Errors
    /// It had ended before.
    pub async fn kill9(mut self) -> Result<()> {
        self.still_runs()?;
        self.child.kill().await.context("cannot kill the relay")
    }

    /// Sends it a signal: `TERM`, `STOP`, `CONT`.
    ///
    /// # Errors
    /// It has ended.
    pub async fn signal(&self, name: &str) -> Result<()> {
        // A shell builtin: std has no way to send a signal without unsafe code.
        let script = format!("kill -{name} {}", self.pid()?);
        let sent = Command::new("sh").args(["-c", &script]).status().await?;
        ensure!(sent.success(), "`{script}` failed");
        Ok(())
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

    /// SIGTERM, then its exit status.
    ///
    /// # Errors
    /// It had ended before, or does not end.
    pub async fn sigterm(mut self) -> Result<ExitStatus> {
        self.still_runs()?;
        self.signal("TERM").await?;
        let status = timeout(PATIENCE, self.child.wait()).await;
        status
            .context("the relay does not end on SIGTERM")?
            .context("cannot wait for the relay")
    }

    /// SIGTERM, and exit code 0.
    ///
    /// # Errors
    /// Another status, with the end of the log.
    pub async fn stop(self) -> Result<()> {
        let log = self.log.clone();
        let status = self.sigterm().await?;
        ensure!(
            status.code() == Some(0),
            "SIGTERM ended in {status}:\n{}",
            tail(&log)
        );
        Ok(())
    }
}

fn text_of(log: &Path) -> String {
    std::fs::read(log)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let text = text_of(log);
    let lines: Vec<&str> = text.lines().collect();
    lines
        .get(lines.len().saturating_sub(TAIL)..)
        .unwrap_or_default()
        .join("\n")
}
