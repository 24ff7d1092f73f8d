//! Claims on keys, in `idempotency_keys`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Value};
use tokio::time::sleep;
use tracing::warn;

use super::store::{Name, micros};
use super::ticket::{Holder, Ticket};
use super::{Answer, Claim, Fingerprint, IdempotencyError, Key};
use crate::mysql::{DUPLICATE_ENTRY, Loan, server_code};
use crate::resilience::Backoff;

/// How often a claim looks again when a row changed between two looks.
const LOOKS: u32 = 20;

const INSERT: &str = "INSERT INTO idempotency_keys \
    (idempotency_key, scope, request_hash, status, locked_by, locked_until, fence, expires_at) \
    VALUES (?, ?, ?, 'PROCESSING', ?, NOW(6) + INTERVAL ? MICROSECOND, 1, NOW(6) + INTERVAL ? MICROSECOND)";

// Without a lock: of a row that is not there, a locking read would lock the gap, and two first requests would deadlock.
const LOOK: &str = "SELECT request_hash, status, fence, COALESCE(locked_until > NOW(6), 0), \
    COALESCE(expires_at <= NOW(6), 0) AND COALESCE(locked_until <= NOW(6), 1), response_status, response_headers, response_body \
    FROM idempotency_keys WHERE idempotency_key = ? AND scope = ?";

const TAKE: &str = "UPDATE idempotency_keys SET request_hash = ?, status = 'PROCESSING', locked_by = ?, \
    locked_until = NOW(6) + INTERVAL ? MICROSECOND, fence = fence + 1, expires_at = NOW(6) + INTERVAL ? MICROSECOND, \
    response_status = NULL, response_headers = NULL, response_body = NULL \
    WHERE idempotency_key = ? AND scope = ? AND fence = ? AND (status = 'FAILED' \
    OR ((status = 'PROCESSING' OR expires_at <= NOW(6)) AND COALESCE(locked_until <= NOW(6), 1)))";

impl Holder {
    /// One look after the other, until one decides.
    pub(super) async fn claim(mut self, request: Fingerprint) -> Result<Claim, IdempotencyError> {
        let idempotency = self.idempotency.clone();
        let counters = &idempotency.shared.counters;
        let wanted = Arc::new(Wanted {
            key: self.key.clone(),
            request,
            token: self.token.clone(),
            lease: micros(idempotency.settings().lease),
            keep: micros(idempotency.settings().keep),
        });
        // Only rows that change between two looks cost another one.
        let pause = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
        for attempt in 1..=LOOKS {
            sleep(pause.delay(attempt)).await;
            // From the first statement on there may be a claim: dropped before it is known that there is none, it is released.
            self.armed = true;
            let found = idempotency
                .bounded("claim", &self.key, |conn| look(conn, wanted.clone()))
                .await?;
            self.armed = false;
            let row = match found {
                Found::Claimed { fence, taken_over } => {
                    counters.claimed.fetch_add(1, Ordering::Relaxed);
                    counters
                        .taken_over
                        .fetch_add(u64::from(taken_over), Ordering::Relaxed);
                    self.fence = fence;
                    self.armed = true;
                    return Ok(Claim::New(Ticket::new(self)));
                }
                Found::Changed => continue,
                Found::Held(row) => row,
            };
            if row.hash != wanted.request.as_str() {
                counters.mismatched.fetch_add(1, Ordering::Relaxed);
                return Ok(Claim::Mismatch);
            }
            if row.status == "COMPLETED" {
                let answer = read_answer(&self.key, row.answer)?;
                counters.replayed.fetch_add(1, Ordering::Relaxed);
                return Ok(Claim::Replay(answer));
            }
            counters.in_progress.fetch_add(1, Ordering::Relaxed);
            return Ok(Claim::InProgress {
                retry_after: idempotency.settings().retry_after,
            });
        }
        Err(IdempotencyError::Contended { key: self.name() })
    }
}

/// A claim to be made.
struct Wanted {
    key: Key,
    request: Fingerprint,
    token: Arc<str>,
    lease: u64,
    keep: u64,
}

/// Inserts the claim, or finds who has the key, or takes it over.
async fn look(mut conn: Loan, wanted: Arc<Wanted>) -> mysql_async::Result<Found> {
    let (key, scope) = (wanted.key.as_str(), wanted.key.scope());
    let (hash, token) = (wanted.request.as_str(), wanted.token.as_ref());
    let (lease, keep) = (wanted.lease, wanted.keep);
    match conn
        .exec_drop(INSERT, (key, scope, hash, token, lease, keep))
        .await
    {
        Ok(()) => {
            return Ok(Found::Claimed {
                fence: 1,
                taken_over: false,
            });
        }
        Err(error) if server_code(&error) == Some(DUPLICATE_ENTRY) => {}
        Err(error) => return Err(error),
    }
    let Some(row) = conn.exec_first(LOOK, (key, scope)).await?.map(row) else {
        // The cleaner was here.
        return Ok(Found::Changed);
    };
    let dead = row.status == "PROCESSING" && !row.leased;
    let same = row.hash == hash;
    if !(row.expired || row.status == "FAILED" || (dead && same)) {
        return Ok(Found::Held(row));
    }
    let values: [Value; 7] = [
        hash.into(),
        token.into(),
        lease.into(),
        keep.into(),
        key.into(),
        scope.into(),
        row.fence.into(),
    ];
    conn.exec_drop(TAKE, Params::Positional(values.into()))
        .await?;
    if conn.affected_rows() == 0 {
        return Ok(Found::Changed);
    }
    if dead {
        warn!(key = %Name(&wanted.key), fence = row.fence + 1, "took over an idempotency key whose lease was over");
    }
    Ok(Found::Claimed {
        fence: row.fence + 1,
        taken_over: dead,
    })
}

enum Found {
    Claimed { fence: i64, taken_over: bool },
    Held(Row),
    Changed,
}

/// What stands in a row.
struct Row {
    hash: String,
    status: String,
    fence: i64,
    leased: bool,
    expired: bool,
    answer: (Option<u16>, Option<String>, Option<Vec<u8>>),
}

type Columns = (
    String,
    String,
    i64,
    bool,
    bool,
    Option<u16>,
    Option<String>,
    Option<Vec<u8>>,
);

fn row(columns: Columns) -> Row {
    let (hash, status, fence, leased, expired, code, headers, body) = columns;
    Row {
        hash,
        status,
        fence,
        leased,
        expired,
        answer: (code, headers, body),
    }
}

fn read_answer(
    key: &Key,
    stored: (Option<u16>, Option<String>, Option<Vec<u8>>),
) -> Result<Answer, IdempotencyError> {
    let unreadable = |what| IdempotencyError::Unreadable {
        key: Name(key).to_string(),
        what,
    };
    let (Some(status), headers, body) = stored else {
        return Err(unreadable("it has no status code"));
    };
    let headers: Vec<(String, String)> = match headers {
        Some(text) => serde_json::from_str(&text)
            .map_err(|_| unreadable("its headers are no list of names and values"))?,
        None => Vec::new(),
    };
    let answer = Answer::new(status, body.unwrap_or_default());
    Ok(headers.into_iter().fold(answer, |answer, (name, value)| {
        answer.with_header(name, value)
    }))
}
