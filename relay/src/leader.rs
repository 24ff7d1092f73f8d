//! One leader among the relays of a name: a server-side lock on a connection of its own.
//!
//! The lock (`GET_LOCK`) costs no write, and the server gives it to the next relay as soon as the connection that
//! holds it ends: at once when the process dies, and after the session's `wait_timeout` when it is paused or cut off.
//! So the lock is a lease. The holder asks the server something all the time (`SLEEP`, so that a lost connection
//! shows at once) and may publish only while its own clock says that the server can't have ended the session: from the
//! *sending* of the last answered question on, for `lease` less a margin. A holder that wakes from a pause finds
//! its lease over, and publishes nothing more; its writes to MySQL are fenced by the epoch besides.
//!
//! All sessions of a leader are on the server that holds the lock ([`Leader::config`]): what was read and confirmed on one
//! server is never marked on another, whose rows may be others under the same keys. The lease ends too when that server
//! is made read-only while others are there to choose from, and when its address leads to another server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::config::{Config, Pin};
use crate::mysql::{self, MysqlError, Session};

/// Questions to the server in the time of one lease: each answer may be late by several of them.
const QUESTIONS_A_LEASE: u32 = 8;
/// A question takes no longer than this; the server notices a pause that much later.
const LONGEST_QUESTION: Duration = Duration::from_secs(1);
/// Share of the lease that is kept as a margin: for the publications that are on their way to the broker.
const MARGIN: f64 = 0.1;
/// How long a standby waits for the lock in one question.
const LOCK_WAIT_SECONDS: u32 = 2;

/// Leave to publish, for a while. Cheap to ask and to clone.
#[derive(Debug, Clone)]
pub struct Lease {
    began: Instant,
    /// Microseconds from `began`; 0 is over.
    until: Arc<AtomicU64>,
    over: CancellationToken,
}

impl Lease {
    /// A lease that never ends, for a publisher without rivals.
    pub fn forever() -> Self {
        let until = Arc::new(AtomicU64::new(u64::MAX));
        Self {
            began: Instant::now(),
            until,
            over: CancellationToken::new(),
        }
    }

    fn starting() -> Self {
        let until = Arc::new(AtomicU64::new(0));
        Self {
            began: Instant::now(),
            until,
            over: CancellationToken::new(),
        }
    }

    /// Whether it stands now.
    pub fn stands(&self) -> bool {
        let now = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        now < self.until.load(Ordering::Acquire)
    }

    /// Waits until it is known to be over. A pause of the process can end it before that is known: ask
    /// [`stands`](Self::stands) before each deed.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn over(&self) {
        self.over.cancelled().await;
    }

    fn extend(&self, until: Instant) {
        let until = until.saturating_duration_since(self.began).as_micros();
        self.until
            .store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Release);
    }

    fn end(&self) {
        self.until.store(0, Ordering::Release);
        self.over.cancel();
    }
}

/// The lock while it is held.
#[derive(Debug)]
pub struct Leader {
    lease: Lease,
    config: Arc<Config>,
    keeper: JoinHandle<()>,
    stop: CancellationToken,
}

impl Leader {
    /// Tries for the lock for about two seconds. Nothing if another relay of this name holds it.
    ///
    /// # Errors
    /// MySQL can't be asked.
    pub async fn try_acquire(config: &Config) -> Result<Option<Self>, MysqlError> {
        let doing = "ask for the lock of this relay's name";
        let may_change = config.mysql.is_list();
        let mysql::Chosen {
            mut session,
            config,
            pin,
        } = mysql::choose(config).await?;
        let seconds = config.lease.as_secs().max(1);
        session
            .run(doing, &format!("SET SESSION wait_timeout = {seconds}"))
            .await?;
        let got: Vec<(Option<i64>,)> = session
            .rows(
                doing,
                "SELECT GET_LOCK(?, ?)",
                (lock_name(&config), LOCK_WAIT_SECONDS),
            )
            .await?;
        if !matches!(got.first(), Some((Some(1),))) {
            return Ok(None);
        }
        let lease = Lease::starting();
        let question = (config.lease / QUESTIONS_A_LEASE).min(LONGEST_QUESTION);
        let mut keeper = Keeper {
            session,
            lease: lease.clone(),
            length: Duration::from_secs(seconds).mul_f64(1.0 - MARGIN),
            question: format!(
                "SELECT CAST(@@global.read_only AS CHAR), SLEEP({:.3})",
                question.as_secs_f64()
            ),
            must_be_writable: may_change,
            pin,
        };
        let asked = Instant::now();
        keeper.session.run(doing, "SELECT 1").await?;
        lease.extend(asked + keeper.length);
        let stop = CancellationToken::new();
        let keeper = tokio::spawn(keeper.keep(stop.clone()));
        Ok(Some(Self {
            lease,
            config,
            keeper,
            stop,
        }))
    }

    /// The lease that goes with the lock.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The configuration, pinned to the server that holds the lock.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Gives the lock back, so that a standby need not wait.
    pub async fn resign(self) {
        self.lease.end();
        self.stop.cancel();
        if let Err(error) = self.keeper.await {
            debug!(%error, "the keeper of the lock broke down");
        }
    }
}

struct Keeper {
    session: Session,
    lease: Lease,
    length: Duration,
    question: String,
    must_be_writable: bool,
    pin: Pin,
}

impl Keeper {
    async fn keep(mut self, stop: CancellationToken) {
        let outcome = loop {
            let asked = Instant::now();
            let answer = self
                .session
                .first::<(String, i64)>("keep the lock of this relay's name", &self.question);
            tokio::select! {
                () = stop.cancelled() => break None,
                () = self.pin.moved() => break Some("the server's address leads to another server now".to_owned()),
                answer = tokio::time::timeout(self.length, answer) => match answer {
                    Ok(Ok(Some((state, _)))) if self.must_be_writable && mysql::is_read_only(&state) => {
                        break Some("the server has become read-only".to_owned());
                    }
                    Ok(Ok(_)) => self.lease.extend(asked + self.length),
                    Ok(Err(error)) => break Some(crate::error::chain(&error)),
                    Err(_) => break Some("no answer within the lease".to_owned()),
                },
            }
        };
        if let Some(why) = outcome {
            warn!(error = %why, "the lock of this relay's name is lost; another relay may lead now");
        } else {
            info!("giving back the lock of this relay's name");
        }
        self.lease.end();
        // Dropping the session closes the connection, and the server frees the lock.
    }
}

/// MySQL allows 64 characters (manual, "Locking Functions"); the names may be longer together.
pub(crate) fn lock_name(config: &Config) -> String {
    let whole = format!("{}/{}", config.mysql.database(), config.name);
    format!(
        "outbox-relay:{:08x}:{:.40}",
        crc32fast::hash(whole.as_bytes()),
        config.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_by_the_clock_or_by_word() {
        let lease = Lease::starting();
        assert!(!lease.stands(), "not before the first answer");
        lease.extend(Instant::now() + Duration::from_secs(3600));
        assert!(lease.stands());
        lease.extend(lease.began);
        assert!(!lease.stands(), "the deadline has passed");
        lease.extend(Instant::now() + Duration::from_secs(3600));
        lease.end();
        assert!(!lease.stands());
        assert!(Lease::forever().stands());
    }
}
