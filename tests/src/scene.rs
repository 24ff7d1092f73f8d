//! One test's surroundings: a database, an exchange and a folder that nobody else uses.

use std::fmt;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use futures_util::FutureExt as _;
use reqwest::Url;
use tempfile::TempDir;

use crate::broker::Broker;
use crate::database::Database;
use crate::grants::{Account, Role};
use crate::private::PrivateServer;
use crate::program::{self, Program};
use crate::relay::RelayCommand;
use crate::servers::{self, Flavor};

/// Everything a test works with.
#[derive(Debug)]
pub struct Scene {
    /// Its database, migrated by `relay migrate`.
    pub database: Database,
    /// Its exchange.
    pub broker: Broker,
    name: String,
    /// Who the relay is: an account with the README's grants.
    account: Account,
    /// Whether the database server is another test's too.
    shared: bool,
    folder: TempDir,
    commands: AtomicUsize,
}

impl Scene {
    /// Sets the scene on that database server and that broker.
    ///
    /// # Errors
    /// A server is not there, or `relay migrate` failed.
    pub async fn open(flavor: Flavor, broker: Url) -> Result<Self> {
        Self::open_at(flavor, None, broker).await
    }

    /// [`open`](Self::open) on a server of the test's own, whose data end with it.
    async fn open_at(flavor: Flavor, own: Option<Url>, broker: Url) -> Result<Self> {
        let shared = own.is_none();
        let server = own.map_or_else(|| flavor.url(), Ok)?;
        // Unique also among runs: a database left by a run that was killed is in nobody's way.
        let name = format!("e2e_{}_{:08x}", std::process::id(), fastrand::u32(..));
        let broker = Broker::connect(broker, name.clone()).await?;
        let database = Database::create_at(flavor, server, name.clone()).await?;
        let folder = tempfile::tempdir()?;
        migrate(&database, folder.path().join("migrate.log")).await?;
        let account = Account::create(&database, Role::Relay).await?;
        Ok(Self {
            database,
            broker,
            name,
            account,
            shared,
            folder,
            commands: AtomicUsize::new(0),
        })
    }

    /// A relay of this scene, to be started: all its commands have one name and so one checkpoint.
    pub fn relay(&self) -> RelayCommand {
        RelayCommand::new(self.log("relay"))
            .with("RELAY_MYSQL_URL", self.account.url())
            .with("RELAY_AMQP_URL", self.broker.url())
            .with("RELAY_NAME", &self.name)
            .with("RELAY_EXCHANGE", self.broker.exchange())
            .with("RELAY_SOURCE", "binlog")
    }

    /// An app of this scene, to be started; `role` names its log file.
    pub fn app(&self, role: &str) -> Program {
        Program::new("app", self.log(role))
            .with("APP_MYSQL_URL", self.database.url())
            .with("APP_AMQP_URL", self.broker.url())
            .with("APP_EXCHANGE", self.broker.exchange())
    }

    /// A log file for one more command.
    fn log(&self, role: &str) -> PathBuf {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        self.folder.path().join(format!("{role}-{number}.log"))
    }

    /// The relay's own account.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Lets the relay use a table as its outbox table.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn grant_on(&self, table: &str) -> Result<()> {
        self.account.grant_on(&self.database, table).await
    }

    /// The relay's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A path in the scene's folder.
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Tells a measured number; shown by `--nocapture`, and when the test fails.
    #[expect(
        clippy::print_stderr,
        reason = "what a test has to tell goes to its output"
    )]
    pub fn tell(&self, text: &str) {
        eprintln!("{}: {text}", self.database.flavor());
    }

    #[expect(
        clippy::print_stderr,
        reason = "what a test has to tell goes to its output"
    )]
    fn show_logs(&self) {
        let Ok(files) = self.folder.path().read_dir() else {
            return;
        };
        let mut logs: Vec<PathBuf> = files
            .filter_map(|file| Some(file.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|end| end == "log"))
            .collect();
        logs.sort();
        for log in logs {
            let end = program::tail(&log);
            if !end.is_empty() {
                eprintln!("--- end of {}\n{end}", log.display());
            }
        }
    }

    async fn close(self) -> Result<()> {
        self.broker
            .delete()
            .await
            .context("cannot clean up RabbitMQ")?;
        if !self.shared {
            return Ok(());
        }
        self.account.drop(&self.database).await?;
        self.database
            .drop()
            .await
            .context("cannot clean up the database")
    }
}

/// Runs `relay migrate` as the account that the README gives it.
async fn migrate(database: &Database, log: PathBuf) -> Result<()> {
    let account = Account::create(database, Role::Migrate).await?;
    let migrated = RelayCommand::new(log)
        .with("RELAY_MYSQL_URL", account.url())
        .finish("migrate")
        .await?;
    account.drop(database).await?;
    ensure!(
        migrated.code == Some(0),
        "`relay migrate` failed: {migrated:?}"
    );
    Ok(())
}

/// Why a test failed: its causes in one line, without a backtrace of test harness and runtime.
pub struct Failure(anyhow::Error);

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// Runs a test on that database server; on failure the ends of its programs' logs are shown.
///
/// # Errors
/// The test's own.
pub async fn run(
    flavor: Flavor,
    test: impl AsyncFnOnce(&mut Scene) -> Result<()>,
) -> Result<(), Failure> {
    run_on(flavor, servers::amqp_url()?, test).await
}

/// [`run`] with another broker.
///
/// # Errors
/// The test's own.
pub async fn run_on(
    flavor: Flavor,
    broker: Url,
    test: impl AsyncFnOnce(&mut Scene) -> Result<()>,
) -> Result<(), Failure> {
    let scene = Box::pin(Scene::open(flavor, broker)).await?;
    play(scene, test).await
}

/// [`run`] on a server of the test's own, started with those arguments.
///
/// # Errors
/// The test's own.
pub async fn run_private(
    flavor: Flavor,
    arguments: &[&str],
    test: impl AsyncFnOnce(&mut Scene, &mut PrivateServer) -> Result<()>,
) -> Result<(), Failure> {
    let mut server = PrivateServer::start(flavor, arguments).await?;
    let opening = Scene::open_at(flavor, Some(server.url()?), servers::amqp_url()?);
    let scene = Box::pin(opening).await?;
    play(scene, async |scene| test(scene, &mut server).await).await
}

async fn play(
    mut scene: Scene,
    test: impl AsyncFnOnce(&mut Scene) -> Result<()>,
) -> Result<(), Failure> {
    let outcome = AssertUnwindSafe(Box::pin(test(&mut scene)))
        .catch_unwind()
        .await;
    if !matches!(outcome, Ok(Ok(()))) {
        scene.show_logs();
    }
    let closed = scene.close().await;
    match outcome {
        Ok(result) => Ok(result.and(closed)?),
        Err(panic) => resume_unwind(panic),
    }
}
