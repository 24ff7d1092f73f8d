//! Bytes to and from the broker: plain or TLS, buffered both ways, driven by polls.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use amq_protocol::frame::{AMQPFrame, WriteContext, gen_frame};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::client::TlsStream;

use super::frame::{Malformed, first_frame};
use super::inbound::{self, Inbound};
use crate::leader::Lease;
use crate::publish::PublishError;

/// Read at once at the most.
const READ_CHUNK: usize = 128 << 10;
/// An output buffer that a large message has grown beyond this is given back.
const KEPT_CAPACITY: usize = 4 << 20;
/// Written bytes at the front of the output buffer that are worth moving the rest for.
const WORTH_MOVING: usize = 1 << 20;

/// A connection's bytes.
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Transport {
    fn read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }
}

/// A transport with its buffers and its heartbeats.
pub(super) struct Wire {
    transport: Transport,
    lease: Lease,
    /// Encoded frames; those before `written` are with the socket.
    pub(super) out: Vec<u8>,
    written: usize,
    unflushed: bool,
    input: Vec<u8>,
    /// Bytes of `input` that are not taken yet.
    from: usize,
    to: usize,
    pub(super) frame_max: usize,
    /// The agreed interval; none until tuned, or where both sides want none.
    heartbeat: Option<Duration>,
    last_read: Instant,
    last_write: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Wire {
    pub(super) fn new(transport: Transport, lease: Lease, frame_max: usize) -> Self {
        let now = Instant::now();
        Self {
            transport,
            lease,
            out: Vec::new(),
            written: 0,
            unflushed: false,
            input: vec![0; READ_CHUNK * 2],
            from: 0,
            to: 0,
            frame_max,
            heartbeat: None,
            last_read: now,
            last_write: now,
            timer: Box::pin(sleep(Duration::MAX)),
        }
    }

    /// Starts heartbeats and sets the agreed size of frames.
    pub(super) fn tuned(&mut self, frame_max: usize, heartbeat: Option<Duration>) {
        self.frame_max = frame_max;
        self.input.resize(frame_max.max(READ_CHUNK) * 2, 0);
        self.heartbeat = heartbeat;
        if let Some(interval) = heartbeat {
            self.timer.as_mut().reset(Instant::now() + interval / 2);
        }
    }

    /// Bytes encoded and not with the socket yet.
    pub(super) fn buffered(&self) -> usize {
        self.out.len() - self.written
    }

    /// Appends a frame of the rarer kinds.
    pub(super) fn push(&mut self, frame: &AMQPFrame) -> Result<(), PublishError> {
        let context = WriteContext::from(std::mem::take(&mut self.out));
        match gen_frame(frame)(context) {
            Ok(context) => {
                self.out = context.into_inner().0;
                Ok(())
            }
            Err(_) => Err(PublishError::Protocol(
                "a frame of ours could not be encoded",
            )),
        }
    }

    /// Hands buffered bytes to the socket, as many as it takes and as long as the lease stands: a process that wakes
    /// from a pause must not send what it had encoded before.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<(), PublishError> {
        while let Some(bytes) = self
            .out
            .get(self.written..)
            .filter(|bytes| !bytes.is_empty())
        {
            if !self.lease.stands() {
                return Err(PublishError::LeaseOver);
            }
            match self.transport.write(cx, bytes) {
                Poll::Ready(Ok(0)) => return Err(PublishError::Io(ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    self.written += count;
                    self.unflushed = true;
                    self.last_write = Instant::now();
                }
                Poll::Ready(Err(error)) => return Err(PublishError::Io(error)),
                Poll::Pending => break,
            }
        }
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
            if self.out.capacity() > KEPT_CAPACITY {
                self.out.shrink_to(WORTH_MOVING);
            }
        } else if self.written > WORTH_MOVING && self.written > self.out.len() / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
        if self.unflushed && self.out.is_empty() {
            match self.transport.flush(cx) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(error)) => return Err(PublishError::Io(error)),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Reads once; whether there was anything.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<bool, PublishError> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.input.len() - self.to < READ_CHUNK {
            self.input.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        let Some(space) = self.input.get_mut(self.to..) else {
            return Err(PublishError::Protocol("a frame is larger than agreed"));
        };
        let mut buffer = ReadBuf::new(space);
        match self.transport.read(cx, &mut buffer) {
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                Err(PublishError::Io(ErrorKind::UnexpectedEof.into()))
            }
            Poll::Ready(Ok(())) => {
                self.to += buffer.filled().len();
                self.last_read = Instant::now();
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(PublishError::Io(error)),
            Poll::Pending => Ok(false),
        }
    }

    /// The first whole frame; nothing if there is none yet.
    pub(super) fn next_frame(&mut self) -> Result<Option<Inbound>, PublishError> {
        let bytes = self.input.get(self.from..self.to).unwrap_or_default();
        let Some(frame) = first_frame(bytes, self.frame_max).map_err(breach)? else {
            return Ok(None);
        };
        let read = inbound::read(frame).map_err(breach)?;
        self.from += frame.len();
        Ok(Some(read))
    }

    /// Sends a heartbeat where it is time for one, and notices that none comes.
    pub(super) fn poll_heartbeat(&mut self, cx: &mut Context<'_>) -> Result<(), PublishError> {
        let Some(interval) = self.heartbeat else {
            return Ok(());
        };
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now - self.last_read >= interval * 2 {
                return Err(PublishError::HeartbeatMissed);
            }
            // While bytes wait for the socket, a heartbeat behind them would tell nothing.
            if now - self.last_write >= interval / 2 && self.out.is_empty() {
                self.push(&AMQPFrame::Heartbeat)?;
                self.poll_write(cx)?;
            }
            self.timer.as_mut().reset(now + interval / 2);
        }
        Ok(())
    }

    /// Sends a frame and waits until it is with the socket.
    pub(super) async fn send(&mut self, frame: &AMQPFrame) -> Result<(), PublishError> {
        self.push(frame)?;
        std::future::poll_fn(|cx| {
            self.poll_write(cx)?;
            if self.out.is_empty() && !self.unflushed {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// Waits for the next frame that is no heartbeat.
    pub(super) async fn receive(&mut self) -> Result<Inbound, PublishError> {
        loop {
            match self.next_frame()? {
                Some(Inbound::Heartbeat) => {}
                Some(frame) => return Ok(frame),
                None => {
                    std::future::poll_fn(|cx| match self.poll_read(cx) {
                        Ok(true) => Poll::Ready(Ok(())),
                        Ok(false) => Poll::Pending,
                        Err(error) => Poll::Ready(Err(error)),
                    })
                    .await?;
                }
            }
        }
    }
}

pub(super) fn breach(malformed: Malformed) -> PublishError {
    PublishError::Protocol(malformed.0)
}
