//! A program of this workspace as a process.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::metrics::Scrape;
use crate::process::Usage;
use crate::until::{PATIENCE, Seen, until, within};

/// Lines of a log that are shown when something failed.
const TAIL: usize = 40;

/// Bound on one HTTP request to a page that is answered from memory.
const HTTP_TIMEOUT: Duration = Duration::from_secs(10);

/// The binary of that name: `RELAY_BIN` or `APP_BIN`, or the file beside the running executable.
///
/// # Errors
/// It is not there.
pub fn binary(name: &str) -> Result<PathBuf> {
    let variable = format!("{}_BIN", name.to_uppercase());
    if let Some(path) = std::env::var_os(&variable) {
        return Ok(path.into());
    }
    let here = std::env::current_exe().context("where is this executable?")?;
    // A test is target/PROFILE/deps/NAME-HASH, the bench target/PROFILE/bench.
    here.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "no {name} binary beside {}: run `cargo build` first (same profile and target \
                 folder), or set {variable}",
                here.display()
            )
        })
}

/// How a program is to be started: its environment and its log file.
#[derive(Debug, Clone)]
pub struct Program {
    name: &'static str,
    variables: BTreeMap<String, String>,
    log: PathBuf,
}

/// A program that has ended: exit code (`None` after a signal) and what it printed.
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

impl Program {
    /// The program of that name, which logs to that file. No `RELAY_*` or `APP_*` variable of this process reaches it.
    pub fn new(name: &'static str, log: PathBuf) -> Self {
        Self {
            name,
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

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(binary(self.name)?);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("RELAY_") || text.starts_with("APP_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
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
        let mut command = self.command(arguments)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = timeout(PATIENCE, command.output())
            .await
            .with_context(|| format!("`{} {}` does not end", self.name, arguments.join(" ")))??;
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
            .command(&[subcommand])?
            .spawn()
            .with_context(|| format!("cannot start `{} {subcommand}`", self.name))?;
        let status = timeout(PATIENCE, child.wait())
            .await
            .with_context(|| format!("`{} {subcommand}` does not end", self.name))??;
        Ok(Finished {
            code: status.code(),
            text: text_of(&self.log),
        })
    }

    /// Starts a subcommand that serves HTTP at the address which that variable names, and does not wait.
    ///
    /// # Errors
    /// It could not be started.
    pub fn serve(&self, arguments: &[&str], variable: &str, address: String) -> Result<Running> {
        let what = [&[self.name], arguments].concat().join(" ");
        let child = self
            .clone()
            .with(variable, &address)
            .command(arguments)?
            .spawn()
            .with_context(|| format!("cannot start `{what}`"))?;
        // No proxy: the environment's is for the internet.
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(HTTP_TIMEOUT)
            .build()?;
        Ok(Running {
            what,
            child,
            address,
            http,
            log: self.log.clone(),
        })
    }
}

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Running {
    what: String,
    child: Child,
    address: String,
    http: reqwest::Client,
    log: PathBuf,
}

impl Running {
    /// Waits until `/readyz` is 200.
    ///
    /// # Errors
    /// The process ended, or the deadline passed.
    pub async fn ready(&mut self) -> Result<()> {
        until(&format!("`{}` to be ready", self.what), async || {
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
        until(
            &format!("`{}` to say that it is not ready", self.what),
            async || {
                self.still_runs()?;
                Ok(match self.get("/readyz").await {
                    Ok((503, reason)) => Seen::Yes(reason),
                    Ok((code, reason)) => Seen::NotYet(format!("readyz {code}: {reason}")),
                    Err(error) => Seen::NotYet(format!("{error:#}")),
                })
            },
        )
        .await
    }

    /// Fails if the process has ended.
    ///
    /// # Errors
    /// It has, with its status and the end of its log.
    pub fn still_runs(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("`{}` ended with {status}:\n{}", self.what, tail(&self.log));
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
        let what = format!("{counter} to reach {value}");
        within(deadline, &what, async || {
            self.still_runs()?;
            let found = self.metrics().await?.get(counter);
            Ok(Seen::when(found >= value, || found.to_string()))
        })
        .await
    }

    /// Process id.
    ///
    /// # Errors
    /// It has ended.
    pub fn pid(&self) -> Result<u32> {
        self.child
            .id()
            .with_context(|| format!("`{}` has ended", self.what))
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

    /// SIGKILL: no drain, no goodbye.
    ///
    /// # Errors
    /// It had ended before.
    pub async fn kill9(mut self) -> Result<()> {
        self.still_runs()?;
        self.child
            .kill()
            .await
            .with_context(|| format!("cannot kill `{}`", self.what))
    }

    /// SIGTERM, then its exit status.
    ///
    /// # Errors
    /// It had ended before, or does not end.
    pub async fn sigterm(mut self) -> Result<ExitStatus> {
        self.still_runs()?;
        self.signal("TERM").await?;
        timeout(PATIENCE, self.child.wait())
            .await
            .with_context(|| format!("`{}` does not end on SIGTERM", self.what))?
            .with_context(|| format!("cannot wait for `{}`", self.what))
    }

    /// SIGTERM, and exit code 0.
    ///
    /// # Errors
    /// Another status, with the end of the log.
    pub async fn stop(self) -> Result<()> {
        let (what, log) = (self.what.clone(), self.log.clone());
        let status = self.sigterm().await?;
        ensure!(
            status.code() == Some(0),
            "SIGTERM ended `{what}` in {status}:\n{}",
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
