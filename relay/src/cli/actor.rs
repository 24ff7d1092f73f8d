//! Who runs a command, for the audit.

/// `user@host` of this process.
pub(super) fn local() -> String {
    format!("{}@{}", user(), host())
}

/// The account that the process runs under; a variable would say whatever one likes.
fn user() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let Some(uid) = uid_of(&status) else {
        return std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
    };
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_of(&accounts, uid).map_or_else(|| format!("uid {uid}"), str::to_owned)
}

/// `Uid: real effective saved filesystem` (proc manual, "/proc/pid/status").
fn uid_of(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// `name:password:uid:…`.
fn name_of(accounts: &str, uid: u32) -> Option<&str> {
    accounts.lines().find_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        let found: u32 = parts.nth(1)?.parse().ok()?;
        (found == uid).then_some(name)
    })
}

fn host() -> String {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    match host.trim() {
        "" => "localhost".to_owned(),
        host => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read() {
        assert_eq!(uid_of("Name:\trelay\nUid:\t7\t0\t0\t0\n"), Some(7));
        let accounts = "root:x:0:0::/root:/bin/sh\nrelay:x:7:7::/:/bin/false\n";
        assert_eq!(name_of(accounts, 7), Some("relay"));
        assert_eq!(name_of(accounts, 8), None);
    }
}
