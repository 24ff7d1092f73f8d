//! What Linux says of a process: CPU time and memory.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// Ticks a second in `/proc/PID/stat`: `USER_HZ`, 100 on every Linux that Rust supports (proc(5)).
const TICK: Duration = Duration::from_millis(10);

/// What a process has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// User and system time, in steps of 10 ms.
    pub cpu: Duration,
    /// Peak resident memory, in KiB.
    pub peak_kib: u64,
    /// Resident memory now, in KiB.
    pub resident_kib: u64,
}

impl Usage {
    /// Of the process with that id.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(pid: u32) -> Result<Self> {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
        };
        let (stat, status) = (read("stat")?, read("status")?);
        // The command name is in parentheses and may hold spaces; the fields count from behind it.
        let fields = stat
            .rsplit_once(')')
            .context("no command in /proc/PID/stat")?
            .1;
        let ticks: u32 = fields
            .split_whitespace()
            // utime and stime are the fields 14 and 15 of the line, the state is field 3.
            .skip(11)
            .take(2)
            .map(str::parse::<u32>)
            .sum::<Result<u32, _>>()
            .context("no times in /proc/PID/stat")?;
        let kib = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|value| value.split_whitespace().next()?.parse().ok())
                .unwrap_or(0)
        };
        Ok(Self {
            cpu: TICK * ticks,
            peak_kib: kib("VmHWM:"),
            resident_kib: kib("VmRSS:"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.resident_kib > 100 && usage.resident_kib <= usage.peak_kib);
        assert!(Usage::of(u32::MAX).is_err());
    }
}
