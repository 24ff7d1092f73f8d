//! A wire to MySQL that can be cut before a COMMIT gets to the server, and after, before the answer gets back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use reliability::mysql::{Database, MysqlUrl};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::world::World;
use crate::support::Place;

/// Stops when dropped.
pub(crate) struct Proxy {
    _tasks: JoinSet<()>,
    url: MysqlUrl,
}

impl Proxy {
    pub(crate) async fn new(place: &Place, world: Arc<World>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (scheme, rest) = place.text.split_once("://").context("no scheme")?;
        let (account, rest) = rest.split_once('@').context("no account")?;
        let (server, path) = rest.split_once('/').context("no path")?;
        let url = format!("{scheme}://{account}@{}/{path}", listener.local_addr()?).parse()?;
        let server = server.to_owned();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut wires = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                wires.spawn(wire(client, server.clone(), world.clone()));
            }
        });
        Ok(Self { _tasks: tasks, url })
    }

    pub(crate) fn database(&self) -> Database {
        Database::new(&self.url, Default::default())
    }
}

async fn wire(client: TcpStream, server: String, world: Arc<World>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let committing = Arc::new(AtomicBool::new(false));
    // Either end of it ends both: whoever waits sees the connection closed.
    tokio::select! {
        _ = questions(from_client, to_server, &world, &committing) => {}
        _ = answers(from_server, to_client, &world, &committing) => {}
    }
}

async fn questions(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    world: &World,
    committing: &AtomicBool,
) -> std::io::Result<()> {
    loop {
        let mut head = [0; 4];
        client.read_exact(&mut head).await?;
        let [one, two, three, sequence] = head;
        let length = u32::from_le_bytes([one, two, three, 0]) as usize;
        let mut packet = head.to_vec();
        packet.resize(head.len() + length, 0);
        let body = packet.get_mut(head.len()..).unwrap_or_default();
        client.read_exact(body).await?;
        // COM_QUERY
        if sequence == 0 && body == b"\x03COMMIT" {
            if world.faults.pass().await {
                return Ok(());
            }
            committing.store(true, Ordering::SeqCst);
        }
        server.write_all(&packet).await?;
    }
}

async fn answers(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    world: &World,
    committing: &AtomicBool,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let length = server.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        if committing.swap(false, Ordering::SeqCst) && world.faults.pass().await {
            return Ok(());
        }
        client
            .write_all(buffer.get(..length).unwrap_or_default())
            .await?;
    }
}
