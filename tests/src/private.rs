//! A MySQL or MariaDB server of a test's own: it may be configured, reset, stopped and killed as the test likes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use reqwest::Url;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::port;
use crate::program::tail;
use crate::servers::Flavor;
use crate::until::{PATIENCE, Seen, until};

/// Knows where the servers' programs are, and prepares data for them.
const SERVICES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/services");

/// The account that `scripts/services` gives every server; they listen on 127.0.0.1 only.
const ACCOUNT: &str = "root:outbox";

/// A running server with data, port and identity of its own; killed when dropped.
///
/// It writes a row-based binlog named `binlog`, with GTIDs, unless its arguments say otherwise: a later one wins.
#[derive(Debug)]
pub struct PrivateServer {
    flavor: Flavor,
    command: Vec<String>,
    folder: TempDir,
    port: u16,
    child: Option<Child>,
}

impl PrivateServer {
    /// Starts one with those arguments besides, and waits until it answers.
    ///
    /// # Errors
    /// It can't be prepared, or does not start.
    pub async fn start(flavor: Flavor, arguments: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = port::free()?;
        let mut command = prepare(flavor, &folder.path().join("data")).await?;
        command.extend([
            "--bind-address=127.0.0.1".to_owned(),
            format!("--port={port}"),
            format!("--socket={}", folder.path().join("socket").display()),
            format!("--pid-file={}", folder.path().join("pid").display()),
            // Unique among the servers that may replicate from each other.
            format!("--server-id={port}"),
        ]);
        let mut defaults = vec![
            "--skip-name-resolve",
            "--log-bin=binlog",
            "--binlog-format=ROW",
            "--default-time-zone=+00:00",
            "--max-connections=100",
        ];
        if flavor == Flavor::Mysql {
            defaults.extend(["--gtid-mode=ON", "--enforce-gtid-consistency=ON"]);
        }
        command.extend(
            defaults
                .into_iter()
                .chain(arguments.iter().copied())
                .map(str::to_owned),
        );
        let mut server = Self {
            flavor,
            command,
            folder,
            port,
            child: None,
        };
        server.run().await?;
        Ok(server)
    }

    /// Which of the two it is.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address, password and all, without a database.
    ///
    /// # Errors
    /// Never: it is a URL.
    pub fn url(&self) -> Result<Url> {
        Ok(Url::parse(&format!(
            "mysql://{ACCOUNT}@127.0.0.1:{}",
            self.port
        ))?)
    }

    /// Those servers as one list for `RELAY_MYSQL_URL`, with account and database of that URL.
    pub fn list(servers: &[&Self], url: &Url) -> String {
        let hosts: Vec<String> = servers
            .iter()
            .map(|server| format!("127.0.0.1:{}", server.port))
            .collect();
        let (user, password) = (url.username(), url.password().unwrap_or_default());
        format!(
            "mysql://{user}:{password}@{}{}",
            hosts.join(","),
            url.path()
        )
    }

    /// The folder of its data.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Runs one statement, in a session of its own.
    ///
    /// # Errors
    /// It failed.
    pub async fn exec(&self, sql: &str) -> Result<()> {
        let mut conn = self.connect().await?;
        conn.query_drop(sql)
            .await
            .with_context(|| format!("failed: {sql}"))?;
        Ok(conn.disconnect().await?)
    }

    /// The first column of the first row of a query, which is a text.
    ///
    /// # Errors
    /// It failed, or gave none.
    pub async fn first_column(&self, sql: &str) -> Result<String> {
        let mut conn = self.connect().await?;
        let row: Option<mysql_async::Row> = conn.query_first(sql).await?;
        conn.disconnect().await?;
        row.and_then(|row| row.get(0))
            .with_context(|| format!("no result: {sql}"))
    }

    /// SIGKILL: what a crash is to those it serves.
    ///
    /// # Errors
    /// It had ended before.
    pub async fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the server does not run")?;
        child.kill().await.context("cannot kill the server")
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// It had ended before, or does not end.
    pub async fn stop(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the server does not run")?;
        let pid = child.id().context("the server has ended")?;
        // A shell builtin: std has no way to send a signal without unsafe code.
        let script = format!("kill -TERM {pid}");
        let sent = Command::new("sh").args(["-c", &script]).status().await?;
        ensure!(sent.success(), "`{script}` failed");
        timeout(PATIENCE, child.wait())
            .await
            .context("the server does not end on SIGTERM")??;
        Ok(())
    }

    /// Starts it again after [`kill`](Self::kill) or [`stop`](Self::stop), on the same port and data.
    ///
    /// # Errors
    /// It does not start.
    pub async fn resume(&mut self) -> Result<()> {
        self.run().await
    }

    /// Stops it and starts it again.
    ///
    /// # Errors
    /// It does not stop, or does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.run().await
    }

    async fn run(&mut self) -> Result<()> {
        let log_path = self.folder.path().join("log");
        let log = File::options().create(true).append(true).open(&log_path)?;
        let (program, arguments) = self.command.split_first().context("no command")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        until("a server of the test's own to answer", async || {
            if let Some(status) = child.try_wait()? {
                anyhow::bail!("it ended with {status}:\n{}", tail(&log_path));
            }
            Ok(match self.connect().await {
                Ok(conn) => Seen::Yes(conn.disconnect().await?),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            })
        })
        .await?;
        self.child = Some(child);
        Ok(())
    }

    async fn connect(&self) -> Result<Conn> {
        let opts = Opts::from_url(self.url()?.as_str())?;
        let options = OptsBuilder::from_opts(opts).prefer_socket(false);
        Conn::new(options)
            .await
            .context("cannot connect to the test's own server")
    }
}

/// Data in that folder, and the command that runs a server on it.
async fn prepare(flavor: Flavor, data: &Path) -> Result<Vec<String>> {
    let prepared = Command::new(SERVICES)
        .args(["private", &flavor.to_string()])
        .arg(data)
        .stdin(Stdio::null())
        .output()
        .await
        .context("cannot run scripts/services")?;
    ensure!(
        prepared.status.success(),
        "`scripts/services private {flavor}` failed: {}",
        String::from_utf8_lossy(&prepared.stderr)
    );
    let text = String::from_utf8(prepared.stdout)?;
    Ok(text.lines().map(str::to_owned).collect())
}
