//! A TCP proxy to a database that damages the binlog on its way to the relay, and nothing else.
//!
//! A connection counts as a binlog stream once the client has sent `COM_BINLOG_DUMP` or `COM_BINLOG_DUMP_GTID`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use fastrand::Rng;
use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::port;

/// `COM_BINLOG_DUMP`.
const DUMP: u8 = 0x12;
/// `COM_BINLOG_DUMP_GTID`.
const DUMP_GTID: u8 = 0x1e;
/// Bytes of a packet before the event: length, sequence number; and the OK byte, which counts as payload.
const PACKET_HEADER: usize = 4;
/// Bytes of an event before its body.
const EVENT_HEADER: usize = 19;
/// Where the type stands in a packet.
const TYPE_AT: usize = PACKET_HEADER + 1 + 4;
/// Where `log_pos` stands in a packet.
const LOG_POS_AT: usize = PACKET_HEADER + 1 + 13;
/// `FORMAT_DESCRIPTION_EVENT`.
const FORMAT_DESCRIPTION: u8 = 15;
/// `HEARTBEAT_LOG_EVENT`.
const HEARTBEAT: u8 = 27;

/// What is done to the next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// A bit of its body, or of its checksum, is flipped.
    Body,
    /// A bit of its header is flipped: time, type, server id, size, position or flags.
    Header,
    /// Its size is said to be larger than it is.
    Longer,
    /// Its size is said to be smaller than it is.
    Shorter,
    /// A bit of its body is flipped, and its position is gone, as in events that the server makes up.
    BodyWithoutPosition,
    /// A bit of the packet's length is flipped.
    PacketLength,
    /// The packet's number or its OK byte is another.
    PacketStart,
    /// The connection ends within the packet.
    Cut,
    /// A stream begins with the word that events have no checksums.
    ChecksumsOff,
}

impl Damage {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Damage::Body,
        Damage::Header,
        Damage::Longer,
        Damage::Shorter,
        Damage::BodyWithoutPosition,
        Damage::PacketLength,
        Damage::PacketStart,
        Damage::Cut,
        Damage::ChecksumsOff,
    ];

    /// Whether that event can be damaged so. Heartbeats are left alone: losing one is no loss.
    fn fits(self, packet: &[u8]) -> bool {
        let kind = packet.get(TYPE_AT).copied();
        let is_event = packet.len() > PACKET_HEADER + 1 + EVENT_HEADER + 4;
        match self {
            Damage::ChecksumsOff => kind == Some(FORMAT_DESCRIPTION),
            Damage::Body
            | Damage::Header
            | Damage::Longer
            | Damage::Shorter
            | Damage::BodyWithoutPosition
            | Damage::PacketLength
            | Damage::PacketStart
            | Damage::Cut => is_event && kind != Some(HEARTBEAT),
        }
    }

    /// Damages a packet; false if the connection has to end behind it.
    fn apply(self, packet: &mut Vec<u8>, rng: &mut Rng) -> bool {
        let (header, body) = (PACKET_HEADER + 1, PACKET_HEADER + 1 + EVENT_HEADER);
        let end = packet.len();
        match self {
            Damage::Body => flip(packet, body, end, rng),
            // The last two bytes are flags, one of which no checksum covers.
            Damage::Header => flip(packet, header, body - 2, rng),
            Damage::Longer => set(packet, header + 9, |size| {
                size.saturating_add(rng.u32(1..100_000))
            }),
            Damage::Shorter => set(packet, header + 9, |size| rng.u32(0..size)),
            Damage::BodyWithoutPosition => {
                flip(packet, body, end, rng);
                set(packet, LOG_POS_AT, |_| 0);
            }
            Damage::PacketLength => flip(packet, 0, 3, rng),
            Damage::PacketStart => {
                let at = rng.usize(3..5);
                if let Some(byte) = packet.get_mut(at) {
                    *byte = byte.wrapping_add(rng.u8(1..));
                }
            }
            Damage::Cut => {
                packet.truncate(rng.usize(1..end));
                return false;
            }
            Damage::ChecksumsOff => {
                let at = end.saturating_sub(5);
                if let Some(algorithm) = packet.get_mut(at) {
                    *algorithm = 0;
                }
            }
        }
        true
    }
}

fn flip(packet: &mut [u8], from: usize, to: usize, rng: &mut Rng) {
    if let Some(byte) = packet.get_mut(rng.usize(from..to)) {
        *byte ^= 1 << rng.u8(..8);
    }
}

fn set(packet: &mut [u8], at: usize, new: impl FnOnce(u32) -> u32) {
    if let Some(bytes) = packet.get_mut(at..at + 4)
        && let Ok(old) = <[u8; 4]>::try_from(&*bytes)
    {
        bytes.copy_from_slice(&new(u32::from_le_bytes(old)).to_le_bytes());
    }
}

/// A damaging proxy; stops when dropped.
#[derive(Debug)]
pub struct Garbler {
    shared: Arc<Shared>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    next: Mutex<Option<Damage>>,
    rng: Mutex<Rng>,
    done: watch::Sender<u64>,
}

impl Garbler {
    /// Listens on a port of its own and forwards to the server of that address.
    ///
    /// # Errors
    /// The address has no host or port, or no port is free.
    pub async fn start(server: &Url, seed: u64) -> Result<Self> {
        let host = server.host_str().context("the address has no host")?;
        let server_port = server.port().context("the address has no port")?;
        let upstream = tokio::net::lookup_host((host, server_port)).await?.next();
        let upstream = upstream.with_context(|| format!("{host} has no address"))?;
        let listener = TcpListener::bind(("127.0.0.1", port::free()?)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            next: Mutex::new(None),
            rng: Mutex::new(Rng::with_seed(seed)),
            done: watch::Sender::new(0),
        });
        let task = tokio::spawn(serve(listener, upstream, shared.clone()));
        Ok(Self {
            shared,
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

    /// Damages the next event that passes and can be damaged so.
    pub fn damage_next(&self, damage: Damage) {
        *self
            .shared
            .next
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(damage);
    }

    /// How many events were damaged.
    pub fn damaged(&self) -> u64 {
        *self.shared.done.borrow()
    }
}

impl Drop for Garbler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    /// Damages the packet if it is its turn; false if the connection has to end behind it.
    fn pass(&self, packet: &mut Vec<u8>) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(damage) = next.take_if(|damage| damage.fits(packet)) else {
            return true;
        };
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = damage.apply(packet, &mut rng);
        self.done.send_modify(|done| *done += 1);
        goes_on
    }
}

async fn serve(listener: TcpListener, upstream: SocketAddr, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                connections.spawn(connection(client, upstream, shared.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(client: TcpStream, upstream: SocketAddr, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let (streams, streaming) = watch::channel(false);
    // Either side's end is the end of both.
    tokio::select! {
        () = requests(client_reads, server_writes, &streams) => {}
        () = answers(server_reads, client_writes, &streaming, &shared) => {}
    }
}

/// A whole packet, header and all; nothing at the end.
async fn packet(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut header = [0; PACKET_HEADER];
    from.read_exact(&mut header).await.ok()?;
    let [low, middle, high, _] = header;
    let length = usize::try_from(u32::from_le_bytes([low, middle, high, 0])).ok()?;
    let mut packet = vec![0; PACKET_HEADER + length];
    let (head, payload) = packet.split_at_mut(PACKET_HEADER);
    head.copy_from_slice(&header);
    from.read_exact(payload).await.ok()?;
    Some(packet)
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, streams: &watch::Sender<bool>) {
    while let Some(packet) = packet(&mut from).await {
        if matches!(packet.get(3..5), Some([0, DUMP | DUMP_GTID])) {
            streams.send_replace(true);
        }
        if to.write_all(&packet).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    streaming: &watch::Receiver<bool>,
    shared: &Shared,
) {
    while let Some(mut packet) = packet(&mut from).await {
        let goes_on = !*streaming.borrow() || shared.pass(&mut packet);
        if to.write_all(&packet).await.is_err() || !goes_on {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet with an event of that type and 40 bytes of body.
    fn event(kind: u8) -> Vec<u8> {
        let mut packet = vec![60, 0, 0, 7, 0];
        packet.extend([1, 1, 1, 1, kind, 1, 1, 1, 1, 59, 0, 0, 0, 9, 9, 9, 9, 0, 0]);
        packet.extend([0xaa; 35]);
        packet.extend([1, 5, 5, 5, 5]);
        packet
    }

    #[test]
    fn each_damage_changes_the_packet_where_it_says() {
        let mut rng = Rng::with_seed(1);
        for damage in Damage::ALL {
            let kind = if damage == Damage::ChecksumsOff {
                FORMAT_DESCRIPTION
            } else {
                30
            };
            let intact = event(kind);
            assert!(
                damage.fits(&intact) && !damage.fits(&event(HEARTBEAT)),
                "{damage:?}"
            );
            for _ in 0..1_000 {
                let mut packet = intact.clone();
                let goes_on = damage.apply(&mut packet, &mut rng);
                assert_eq!(goes_on, damage != Damage::Cut);
                assert_ne!(packet, intact, "{damage:?}");
                let changed: Vec<usize> = (0..packet.len())
                    .filter(|at| packet[*at] != intact[*at])
                    .collect();
                let range = match damage {
                    Damage::Body => 24..64,
                    Damage::Header => 5..22,
                    Damage::Longer | Damage::Shorter => 14..18,
                    Damage::BodyWithoutPosition => 18..64,
                    Damage::PacketLength => 0..3,
                    Damage::PacketStart => 3..5,
                    Damage::Cut => 0..0,
                    Damage::ChecksumsOff => 59..60,
                };
                assert!(
                    changed.iter().all(|at| range.contains(at)),
                    "{damage:?}: {changed:?}"
                );
            }
        }
    }
}
