//! Free TCP ports.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context as _, Result};

/// Below Linux's range for outgoing connections (32768 and up), which would otherwise take a port
/// between our looking and the relay's binding.
const FIRST: u16 = 18_000;
const PORTS: u16 = 14_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port of 127.0.0.1 that nothing listens on; no other call in this process gets the same one soon.
///
/// # Errors
/// None is free.
pub fn free() -> Result<u16> {
    // Two test processes start at different places.
    let base = u16::try_from(std::process::id() % u32::from(PORTS)).unwrap_or(0);
    (0..PORTS)
        .map(|_| {
            let step = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS;
            // At most 13,999 + 13,999: no overflow.
            FIRST + (base + step) % PORTS
        })
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("no free port")
}
