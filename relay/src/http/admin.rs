//! Dead letters by HTTP, for whoever has the token: the calls of `relay dlq`, audited as those are.
//!
//! ```text
//! GET    /dlq?type=T&error=TEXT&since=24h&after=ID&limit=N
//! GET    /dlq/ID
//! POST   /dlq/ID/replay
//! POST   /dlq/replay?type=T&error=TEXT&since=24h&after=ID&limit=N    the first N that match; `after` goes on from there
//! DELETE /dlq/ID
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Request, StatusCode};
use serde::Serialize;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use super::answer::{Answer, json, problem, set};
use super::call::{Call, Change, Look, NoCall};
use crate::config::{AdminToken, Config};
use crate::dead_letter::{self, Clerk, Done, Filter, Ids, Refusal};
use crate::metrics::Metrics;
use crate::mysql::{MysqlError, Session};

/// Admin calls at once; each has a MySQL session of its own.
const CALLS: usize = 2;
/// Longest run of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The calls.
#[derive(Debug)]
pub(super) struct Admin {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    calls: Semaphore,
}

#[derive(Serialize)]
struct Changed {
    id: i64,
    event_key: Option<String>,
    event_type: String,
}

#[derive(Default, Serialize)]
struct ReplayedMany {
    /// Letters that are gone, their events PENDING again.
    replayed: u64,
    /// Why the others stay.
    refused: Vec<String>,
    /// The last letter looked at: where the next call goes on (`after`).
    last: Option<i64>,
    /// Whether there may be letters behind it that match.
    more: bool,
}

impl Admin {
    pub(super) fn new(config: Arc<Config>, metrics: Arc<Metrics>) -> Self {
        Self {
            config,
            metrics,
            calls: Semaphore::new(CALLS),
        }
    }

    /// Answers one call.
    pub(super) async fn respond(&self, request: Request<Incoming>, peer: SocketAddr) -> Answer {
        let Some(token) = &self.config.admin_token else {
            return problem(
                StatusCode::FORBIDDEN,
                "calls on dead letters are off; name a file with a token in RELAY_ADMIN_TOKEN_FILE to turn them on, \
                 or run `relay dlq`",
            );
        };
        if !is_allowed(&request, token) {
            warn!(peer = %peer.ip(), path = request.uri().path(), "an admin call without the right token was refused");
            let detail = "the header `Authorization: Bearer TOKEN` is needed, with the token in the file of RELAY_ADMIN_TOKEN_FILE";
            let mut refused = problem(StatusCode::UNAUTHORIZED, detail);
            set(&mut refused, WWW_AUTHENTICATE, "Bearer");
            return refused;
        }
        let uri = request.uri();
        let call = match Call::of(request.method(), uri.path(), uri.query().unwrap_or("")) {
            Ok(call) => call,
            Err(no) => return no.into(),
        };
        let Ok(_permit) = self.calls.try_acquire() else {
            let detail = "other calls on dead letters are running";
            let mut busy = problem(StatusCode::SERVICE_UNAVAILABLE, detail);
            set(&mut busy, RETRY_AFTER, "1");
            return busy;
        };
        match tokio::time::timeout(CALL_TIMEOUT, self.run(call, peer)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(failure)) => failed(&failure),
            Err(_) => problem(
                StatusCode::GATEWAY_TIMEOUT,
                format!("not done within {CALL_TIMEOUT:?}; what was done so far is in relay_audit"),
            ),
        }
    }

    async fn run(&self, call: Call, peer: SocketAddr) -> Result<Answer, MysqlError> {
        let mut session = Session::connect(&self.config).await?;
        match call {
            Call::Look(look) => self.look(look, &mut session).await,
            Call::Change(change) => self.change(change, session, peer).await,
        }
    }

    async fn look(&self, look: Look, session: &mut Session) -> Result<Answer, MysqlError> {
        let config = &self.config;
        Ok(match look {
            Look::List { filter, limit } => {
                json(&dead_letter::list(config, session, &filter, limit).await?)
            }
            Look::Show(id) => match dead_letter::show(config, session, id).await? {
                Some(letter) => json(&letter),
                None => refused(&Refusal::NoSuchLetter { id }),
            },
        })
    }

    async fn change(
        &self,
        change: Change,
        session: Session,
        peer: SocketAddr,
    ) -> Result<Answer, MysqlError> {
        let actor = format!("http {}", peer.ip());
        let mut clerk = Clerk::new(&self.config, &self.metrics, session, &actor).await?;
        info!(%actor, ?change, "changing dead letters");
        let changed = match change {
            Change::Replay(id) => clerk.replay(id).await?,
            Change::Discard(id) => clerk.discard(id).await?,
            Change::ReplayAll { filter, limit } => {
                return Ok(json(&self.replay_all(&mut clerk, filter, limit).await?));
            }
        };
        Ok(match changed {
            Ok(Done {
                id,
                key,
                event_type,
            }) => json(&Changed {
                id,
                event_key: key,
                event_type,
            }),
            Err(refusal) => refused(&refusal),
        })
    }

    async fn replay_all(
        &self,
        clerk: &mut Clerk<'_>,
        filter: Filter,
        limit: usize,
    ) -> Result<ReplayedMany, MysqlError> {
        let mut ids = Ids::of(&self.config, clerk.session(), filter).await?;
        let mut done = ReplayedMany::default();
        let mut left = limit;
        loop {
            let page = ids.next(&self.config, clerk.session()).await?;
            if page.is_empty() {
                return Ok(done);
            }
            for id in page {
                if left == 0 {
                    done.more = true;
                    return Ok(done);
                }
                left -= 1;
                match clerk.replay(id).await? {
                    Ok(_) => done.replayed += 1,
                    // Somebody else was faster: that is as good.
                    Err(refusal) if refusal.is_absence() => {}
                    Err(refusal) => done.refused.push(refusal.to_string()),
                }
                done.last = Some(id);
            }
        }
    }
}

impl From<NoCall> for Answer {
    fn from(no: NoCall) -> Self {
        match no {
            NoCall::NoSuchPage => problem(
                StatusCode::NOT_FOUND,
                "there are GET /dlq, GET and DELETE /dlq/ID, POST /dlq/ID/replay and POST /dlq/replay",
            ),
            NoCall::Method(methods) => {
                let detail = format!("this page takes {methods}");
                let mut refused = problem(StatusCode::METHOD_NOT_ALLOWED, detail);
                set(&mut refused, ALLOW, methods);
                refused
            }
            NoCall::Query(detail) => problem(StatusCode::BAD_REQUEST, detail),
        }
    }
}

/// `Authorization: Bearer TOKEN` (RFC 6750, section 2.1); the scheme's name is the same in any case (RFC 9110, section 11.1).
fn is_allowed(request: &Request<Incoming>, token: &AdminToken) -> bool {
    let given = request.headers().get(AUTHORIZATION);
    let given = given
        .and_then(|given| given.to_str().ok())
        .and_then(|given| given.split_once(' '));
    given.is_some_and(|(scheme, given)| {
        scheme.eq_ignore_ascii_case("Bearer") && token.is(given.trim())
    })
}

fn refused(refusal: &Refusal) -> Answer {
    let status = if refusal.is_absence() {
        StatusCode::NOT_FOUND
    } else {
        StatusCode::CONFLICT
    };
    problem(status, refusal.to_string())
}

fn failed(failure: &MysqlError) -> Answer {
    let diagnosis = failure.diagnosis();
    let detail = format!("{}; {}", crate::error::chain(failure), diagnosis.hint);
    warn!(error = %detail, "an admin call failed");
    problem(StatusCode::SERVICE_UNAVAILABLE, detail)
}
