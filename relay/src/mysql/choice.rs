//! Which server of a list: the first that answers and may be written to, beginning with the last good one.

use std::sync::Arc;

use super::{MysqlError, Remedy, Session};
use crate::config::{Config, Pin};

/// A session on the server that was chosen, and which one that is.
pub struct Chosen {
    /// The session.
    pub session: Session,
    /// For the sessions that have to be on the same server.
    pub config: Arc<Config>,
    /// Ends when its address is found to lead to another server.
    pub pin: Pin,
}

/// Connects to the server that is to be used from now on, and pins the configuration to it.
///
/// # Errors
/// None can be used; says of each why.
pub async fn choose(config: &Config) -> Result<Chosen, MysqlError> {
    let (mut session, nth) = connect(config).await?;
    let pin = Pin::new(identity(&mut session).await?);
    let config = Config {
        mysql: config.mysql.pinned(nth, pin.clone()),
        ..config.clone()
    };
    Ok(Chosen {
        session,
        config: Arc::new(config),
        pin,
    })
}

/// A session on the only server, whatever it may do, or on the first of a list that may be written to.
pub(super) async fn connect(config: &Config) -> Result<(Session, usize), MysqlError> {
    let urls = &config.mysql;
    if !urls.is_list() {
        return Ok((Session::open(config, urls).await?, 0));
    }
    let mut passed = Vec::new();
    let mut remedy = Remedy::Stop;
    for nth in urls.in_order() {
        let url = urls.only(nth);
        match writable(config, nth).await {
            Ok(Some(session)) => {
                urls.set_last_good(nth);
                return Ok((session, nth));
            }
            Ok(None) => {
                remedy = Remedy::Retry;
                passed.push(format!("{} is read-only", url.host()));
            }
            Err(error) => {
                if error.diagnosis().remedy == Remedy::Retry {
                    remedy = Remedy::Retry;
                }
                passed.push(format!("{}: {}", url.host(), crate::error::chain(&error)));
            }
        }
    }
    Err(MysqlError::NoServer {
        passed: passed.join("; "),
        remedy,
    })
}

async fn writable(config: &Config, nth: usize) -> Result<Option<Session>, MysqlError> {
    let mut session = Session::open(config, &config.mysql.only(nth)).await?;
    let (state,): (String,) = session
        .first(
            "ask whether the server is read-only",
            "SELECT CAST(@@global.read_only AS CHAR)",
        )
        .await?
        .unwrap_or_default();
    Ok((!is_read_only(&state)).then_some(session))
}

/// Reads `@@global.read_only`, a number or, in late versions of MariaDB, a word. `super_read_only` turns it on too.
pub fn is_read_only(state: &str) -> bool {
    !matches!(state, "0" | "OFF" | "")
}

/// What tells a server from every other: also from its own data under another identity.
pub(super) async fn identity(session: &mut Session) -> Result<String, MysqlError> {
    let doing = "ask which server this is";
    let uuid = session
        .first_if_known::<(String,)>(doing, "SELECT CAST(@@server_uuid AS CHAR)")
        .await?;
    if let Some((uuid,)) = uuid {
        return Ok(uuid);
    }
    // MariaDB has no uuid.
    let place = "SELECT CONCAT(@@hostname, ':', @@port, ':', @@server_id)";
    Ok(session
        .first::<(String,)>(doing, place)
        .await?
        .unwrap_or_default()
        .0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_is_whatever_is_not_off() {
        for (state, expected) in [("0", false), ("OFF", false), ("1", true), ("NO_LOCK", true)] {
            assert_eq!(is_read_only(state), expected, "{state}");
        }
    }
}
