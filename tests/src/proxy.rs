//! A TCP proxy between the relay and a server, with faults on demand.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::port;

const REBIND_PAUSE: Duration = Duration::from_millis(20);

/// What the proxy does with connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Passes bytes on.
    Forward,
    /// Does not listen: connecting is refused.
    Refuse,
    /// Keeps connections open and passes nothing on, either way: a half-open connection.
    Stall,
}

#[derive(Debug, Clone, Copy)]
struct State {
    mode: Mode,
    /// How long each piece of a stream is held back, as on a long line.
    delay: Duration,
    /// Rises with every cut; a connection ends when its own is over.
    generation: u64,
}

/// A proxy to one server; stops when dropped.
#[derive(Debug)]
pub struct Proxy {
    state: watch::Sender<State>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a port of its own and forwards to the server of that address.
    ///
    /// # Errors
    /// The address has no host or port, or no port is free.
    pub async fn start(server: &Url) -> Result<Self> {
        let host = server.host_str().context("the address has no host")?;
        let server_port = server.port().context("the address has no port")?;
        let upstream = tokio::net::lookup_host((host, server_port))
            .await?
            .next()
            .with_context(|| format!("{host} has no address"))?;
        let listener = TcpListener::bind(("127.0.0.1", port::free()?)).await?;
        let address = listener.local_addr()?;
        let (state, watched) = watch::channel(State {
            mode: Mode::Forward,
            delay: Duration::ZERO,
            generation: 0,
        });
        let task = tokio::spawn(serve(listener, upstream, watched));
        Ok(Self {
            state,
            address,
            task,
        })
    }

    /// The same address, by way of the proxy.
    ///
    /// # Errors
    /// The address can't carry a host and port.
    pub fn address_for(&self, server: &Url) -> Result<Url> {
        let mut url = server.clone();
        url.set_host(Some("127.0.0.1"))?;
        url.set_port(Some(self.address.port()))
            .ok()
            .context("an address without a port")?;
        Ok(url)
    }

    /// Holds back everything that long, each way.
    pub fn slow(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// Ends all connections; new ones are forwarded.
    pub fn cut(&self) {
        self.enter(Mode::Forward);
    }

    /// Ends all connections and refuses new ones.
    pub fn refuse(&self) {
        self.enter(Mode::Refuse);
    }

    /// Lets nothing through any more, without ending anything.
    pub fn stall(&self) {
        self.state.send_modify(|state| state.mode = Mode::Stall);
    }

    /// Forwards again. What stalled is lost and its connections end, as with a middlebox that forgot them.
    pub fn resume(&self) {
        self.enter(Mode::Forward);
    }

    fn enter(&self, mode: Mode) {
        self.state.send_modify(|state| {
            state.mode = mode;
            state.generation += 1;
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, upstream: SocketAddr, mut state: watch::Receiver<State>) {
    let Ok(address) = listener.local_addr() else {
        return;
    };
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        let now = *state.borrow_and_update();
        if now.mode == Mode::Refuse {
            listener = None;
        } else if listener.is_none() {
            // Connections that ended here keep the port busy for a moment; tokio sets SO_REUSEADDR.
            listener = TcpListener::bind(address).await.ok();
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            Some(client) = accept(listener.as_ref()) => {
                connections.spawn(connection(client, upstream, state.clone(), now.generation));
            }
            Some(_) = connections.join_next() => {}
            // The port was taken: look again.
            () = sleep(REBIND_PAUSE), if listener.is_none() && now.mode != Mode::Refuse => {}
        }
    }
}

/// The next client; never, without a listener.
async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.ok().map(|(client, _)| client),
        None => std::future::pending().await,
    }
}

async fn connection(
    client: TcpStream,
    upstream: SocketAddr,
    mut state: watch::Receiver<State>,
    generation: u64,
) {
    let gate = state.clone();
    let forward = async move {
        if !open(&mut gate.clone()).await {
            return;
        }
        let Ok(server) = TcpStream::connect(upstream).await else {
            return;
        };
        let (client_reads, client_writes) = client.into_split();
        let (server_reads, server_writes) = server.into_split();
        // Either side's end is the end of both.
        tokio::select! {
            () = pump(client_reads, server_writes, gate.clone()) => {}
            () = pump(server_reads, client_writes, gate) => {}
        }
    };
    tokio::select! {
        () = forward => {}
        _ = state.wait_for(|now| now.generation != generation) => {}
    }
}

/// Waits until bytes may pass; false when the proxy is gone.
async fn open(gate: &mut watch::Receiver<State>) -> bool {
    gate.wait_for(|now| now.mode != Mode::Stall).await.is_ok()
}

async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut gate: watch::Receiver<State>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        let Some(chunk) = buffer.get(..read) else {
            return;
        };
        let delay = gate.borrow().delay;
        if delay > Duration::ZERO {
            sleep(delay).await;
        }
        if !open(&mut gate).await || to.write_all(chunk).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    async fn echo_server() -> (Url, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("tcp://{}", listener.local_addr().unwrap())).unwrap();
        let task = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut byte = [0];
                    while client.read_exact(&mut byte).await.is_ok() {
                        client.write_all(&byte).await.unwrap();
                    }
                });
            }
        });
        (url, task)
    }

    async fn echoes(client: &mut TcpStream) -> bool {
        let mut byte = [0];
        client.write_all(b"x").await.is_ok() && client.read_exact(&mut byte).await.is_ok()
    }

    #[tokio::test]
    async fn faults_do_what_they_say() {
        let (server, _task) = echo_server().await;
        let proxy = Proxy::start(&server).await.unwrap();
        let connect = || TcpStream::connect(proxy.address);

        let mut client = connect().await.unwrap();
        assert!(echoes(&mut client).await);
        proxy.cut();
        assert!(!echoes(&mut client).await || !echoes(&mut client).await);

        proxy.refuse();
        while connect().await.is_ok() {
            tokio::task::yield_now().await;
        }
        proxy.resume();
        let mut client = loop {
            match connect().await {
                Ok(client) => break client,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        assert!(echoes(&mut client).await);

        proxy.stall();
        // The one wait that must not end: short, and only its end would be a failure.
        assert!(
            timeout(Duration::from_millis(100), echoes(&mut client))
                .await
                .is_err()
        );
        proxy.resume();
        assert!(!echoes(&mut client).await);
        let mut client = connect().await.unwrap();
        assert!(echoes(&mut client).await);
    }
}
