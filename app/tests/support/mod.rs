//! The app as a process, between real servers, with a wire in between that can be cut.

#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use lapin::options::{
    BasicPublishOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use reqwest::Url;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

static NUMBER: AtomicU32 = AtomicU32::new(0);

fn variable(name: &str) -> Result<Url> {
    let text = std::env::var(name).with_context(|| {
        format!("{name} is not set: run scripts/services up and eval \"$(scripts/services env)\"")
    })?;
    Url::parse(&text).with_context(|| format!("{name} is not a URL"))
}

/// A database, an exchange and a queue of a test's own, with a wire to each server.
pub(crate) struct Scene {
    pub(crate) mysql: Wire,
    pub(crate) broker: Wire,
    server: Url,
    name: String,
    channel: Channel,
    connection: Connection,
}

impl Scene {
    /// Migrated by `app migrate`; the exchange is declared as the relay would.
    pub(crate) async fn new(mysql_variable: &str) -> Result<Self> {
        let (server, amqp) = (variable(mysql_variable)?, variable("AMQP_URL")?);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("app_test_{}_{number}", std::process::id());
        let connection = Connection::connect(amqp.as_str(), ConnectionProperties::default())
            .await
            .context("cannot connect to RabbitMQ: run scripts/services up")?;
        let channel = connection.create_channel().await?;
        let options = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let exchange = name.as_str().into();
        channel
            .exchange_declare(exchange, ExchangeKind::Topic, options, Default::default())
            .await?;
        let (mysql, broker) = (Wire::to(&server, 3306).await?, Wire::to(&amqp, 5672).await?);
        let scene = Self {
            mysql,
            broker,
            server,
            name,
            channel,
            connection,
        };
        let output = scene.command("migrate").output().await?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut conn = scene.connect().await?;
        conn.query_drop(
            "INSERT INTO inventory (sku, available) VALUES ('A-1', 1000000), ('B', 1000000)",
        )
        .await?;
        conn.disconnect().await?;
        Ok(scene)
    }

    fn command(&self, name: &str) -> Command {
        let mut mysql = self.mysql.url.clone();
        mysql.set_path(&self.name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_app"));
        command
            .arg(name)
            .env("APP_MYSQL_URL", mysql.as_str())
            .env("APP_AMQP_URL", self.broker.url.as_str())
            .env("APP_EXCHANGE", &self.name)
            .env("APP_QUEUE", &self.name)
            .env("APP_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Starts `app worker`, `app api` or `app serve`, and waits until it is ready.
    pub(crate) async fn start(&self, name: &str) -> Result<App> {
        let address = free_address()?;
        let child = self
            .command(name)
            .env("APP_HTTP_ADDR", address.to_string())
            .env("APP_WORKER_HTTP_ADDR", address.to_string())
            .stderr(Stdio::inherit())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the app")?;
        let app = App {
            child,
            base: format!("http://{address}"),
        };
        until("the app to be ready", async || {
            Ok(app
                .get("/readyz")
                .await
                .is_ok_and(|(status, _)| status == 200))
        })
        .await?;
        Ok(app)
    }

    /// Publishes a message as the relay does, and waits for its confirm.
    pub(crate) async fn publish(&self, id: &str, kind: &str, body: &[u8]) -> Result<()> {
        let properties = BasicProperties::default()
            .with_message_id(id.into())
            .with_type(kind.into())
            .with_content_type("application/json".into())
            .with_delivery_mode(2);
        let key = format!("order.{kind}");
        let options = BasicPublishOptions {
            mandatory: true,
            ..Default::default()
        };
        self.channel
            .basic_publish(
                self.name.as_str().into(),
                key.into(),
                options,
                body,
                properties,
            )
            .await?;
        Ok(())
    }

    /// A valid event with that key.
    pub(crate) async fn publish_event(&self, key: &str) -> Result<()> {
        self.publish(key, "OrderSeen", event(key, "{\"order_id\": 1}").as_bytes())
            .await
    }

    /// Messages that wait in the queue, not counting those at a consumer.
    pub(crate) async fn queued(&self) -> Result<u32> {
        let options = QueueDeclareOptions {
            passive: true,
            ..Default::default()
        };
        let queue = self
            .channel
            .queue_declare(self.name.as_str().into(), options, FieldTable::default())
            .await?;
        Ok(queue.message_count())
    }

    /// The one number that a query gives, asked past the wire.
    pub(crate) async fn number(&self, sql: &str) -> Result<u64> {
        let mut conn = self.connect().await?;
        let number: Option<u64> = conn.query_first(sql).await?;
        conn.disconnect().await?;
        number.context("no row")
    }

    pub(crate) async fn connect(&self) -> Result<Conn> {
        let mut url = self.server.clone();
        url.set_path(&self.name);
        let options = OptsBuilder::from_opts(Opts::from_url(url.as_str())?).prefer_socket(false);
        Conn::new(options)
            .await
            .context("cannot connect to MySQL: run scripts/services up")
    }

    /// Removes all of it.
    pub(crate) async fn end(self) -> Result<()> {
        let mut conn = self.connect().await?;
        conn.query_drop(format!("DROP DATABASE `{}`", self.name))
            .await?;
        conn.disconnect().await?;
        let name = self.name.as_str();
        self.channel
            .queue_delete(name.into(), QueueDeleteOptions::default())
            .await?;
        self.channel
            .exchange_delete(name.into(), ExchangeDeleteOptions::default())
            .await?;
        self.connection.close(200, "done".into()).await?;
        Ok(())
    }
}

/// The envelope of an event, with that payload.
pub(crate) fn event(key: &str, payload: &str) -> String {
    format!(
        "{{\"event_id\":1,\"event_type\":\"OrderSeen\",\"aggregate_type\":\"order\",\"aggregate_id\":1,\
         \"idempotency_key\":\"{key}\",\"created_at\":\"2026-01-02T03:04:05.000006Z\",\"payload\":{payload}}}"
    )
}

/// A running app; killed when dropped.
pub(crate) struct App {
    child: Child,
    pub(crate) base: String,
}

impl App {
    /// Status and body of a page.
    pub(crate) async fn get(&self, path: &str) -> Result<(u16, String)> {
        let answer = reqwest::get(format!("{}{path}", self.base)).await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    /// A counter.
    pub(crate) async fn metric(&self, name: &str) -> Result<u64> {
        let (_, text) = self.get("/metrics").await?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("no metric {name}"))?.parse()?)
    }

    /// SIGKILL.
    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// SIGTERM; fails unless it exits with 0.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let id = self.child.id().context("it has ended already")?.to_string();
        Command::new("kill").args(["-TERM", &id]).status().await?;
        let status = tokio::time::timeout(Duration::from_secs(20), self.child.wait()).await??;
        ensure!(status.success(), "exit {status}");
        Ok(())
    }
}

/// A TCP wire to a server that can be cut.
pub(crate) struct Wire {
    pub(crate) url: Url,
    whole: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Wire {
    async fn to(server: &Url, default_port: u16) -> Result<Self> {
        let host = server.host_str().context("no host")?.to_owned();
        let target = (host, server.port().unwrap_or(default_port));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut url = server.clone();
        let port = listener.local_addr()?.port();
        ensure!(url.set_port(Some(port)).is_ok() && url.set_host(Some("127.0.0.1")).is_ok());
        let whole = watch::Sender::new(true);
        let mut tasks = JoinSet::new();
        let state = whole.clone();
        tasks.spawn(async move {
            let target = Arc::new(target);
            let mut pipes = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (target, mut state) = (target.clone(), state.subscribe());
                pipes.spawn(async move { pipe(client, &target, &mut state).await.ok() });
                while pipes.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            url,
            whole,
            _tasks: tasks,
        })
    }

    /// Ends all connections; new ones end at once.
    pub(crate) fn cut(&self) {
        self.whole.send_replace(false);
    }

    /// New connections get through again.
    pub(crate) fn mend(&self) {
        self.whole.send_replace(true);
    }
}

async fn pipe(
    mut client: TcpStream,
    target: &(String, u16),
    whole: &mut watch::Receiver<bool>,
) -> Result<()> {
    if !*whole.borrow_and_update() {
        return Ok(());
    }
    let mut server = TcpStream::connect((target.0.as_str(), target.1)).await?;
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = whole.wait_for(|whole| !whole) => {}
    }
    Ok(())
}

/// A port that nothing listens on; another process may take it, which is rare below the range of outgoing connections.
fn free_address() -> Result<SocketAddr> {
    for _ in 0..1000 {
        let step = NUMBER.fetch_add(1, Ordering::Relaxed) + std::process::id() * 31;
        let address = SocketAddr::from(([127, 0, 0, 1], 18_000 + u16::try_from(step % 14_000)?));
        if std::net::TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free port")
}

/// Waits until a condition holds; half a minute at most.
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    loop {
        if condition().await? {
            return Ok(());
        }
        ensure!(
            started.elapsed() < Duration::from_secs(30),
            "waited in vain for {what}"
        );
        sleep(Duration::from_millis(50)).await;
    }
}
