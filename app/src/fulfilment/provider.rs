//! Calls to another service over HTTP, each guarded in this order:
//!
//! ```text
//! bulkhead( rate limiter( circuit breaker( timeout( the call ))))
//! ```
//!
//! A call first looks whether the circuit is open, and is answered at once if so. It asks the breaker for its pass only when
//! it has a place and a token: calls that stood in the queue while the circuit opened are not made, and a probe never waits.
//! Nothing is tried again here: the saga does that, with the same key.

mod cause;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use reliability::resilience::{
    Bulkhead, CallError, CircuitBreaker, CircuitOpen, CircuitSettings, CircuitState, RateLimiter,
};
use reliability::saga::Failure;
use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::cli::ProviderSettings;
use crate::metrics::External;
use crate::target::Target;
use cause::{CallFailed, Cause};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Calls under way at once.
const PAYMENTS: usize = 5;
const SHIPMENTS: usize = 3;
/// Calls that wait for a place. Sagas that run at once are far fewer: only a mistake fills this.
const QUEUE: usize = 1000;
/// Largest answer: a few fields are expected.
const ANSWER_MAX: usize = 64 * 1024;

/// Another service. Clones share its places, its tokens and its circuit.
#[derive(Clone)]
pub(crate) struct Provider(Arc<Guarded>);

struct Guarded {
    name: &'static str,
    base: Target,
    http: Client,
    timeout: Duration,
    places: Bulkhead,
    tokens: RateLimiter,
    circuit: CircuitBreaker,
    external: External,
}

impl Provider {
    /// The service that charges and refunds.
    pub(crate) fn payment(
        settings: &ProviderSettings,
        external: &External,
    ) -> anyhow::Result<Self> {
        let (base, rate) = (&settings.payment_url, settings.payment_rate);
        Self::new("payment", base, PAYMENTS, rate, settings, external)
    }

    /// The service that ships.
    pub(crate) fn shipping(
        settings: &ProviderSettings,
        external: &External,
    ) -> anyhow::Result<Self> {
        let (base, rate) = (&settings.shipping_url, settings.shipping_rate);
        Self::new("shipping", base, SHIPMENTS, rate, settings, external)
    }

    fn new(
        name: &'static str,
        base: &Target,
        places: usize,
        rate: u32,
        settings: &ProviderSettings,
        external: &External,
    ) -> anyhow::Result<Self> {
        let http = Client::builder()
            .connect_timeout(CONNECT.min(settings.timeout))
            .pool_max_idle_per_host(places)
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .tcp_nodelay(true)
            .no_proxy()
            .build()
            .with_context(|| format!("cannot set up the client of the {name} provider"))?;
        let circuit = CircuitBreaker::new(CircuitSettings {
            open_for: settings.open_for,
            ..CircuitSettings::default()
        });
        external.watch(name, circuit.clone());
        Ok(Self(Arc::new(Guarded {
            name,
            base: base.clone(),
            http,
            timeout: settings.timeout,
            places: Bulkhead::new(places, QUEUE),
            // What comes in a tenth of a second may come at once.
            tokens: RateLimiter::per_second(f64::from(rate), rate / 10),
            circuit,
            external: external.clone(),
        })))
    }

    /// Posts `body` to `path` under an idempotency key, and gives the JSON of the answer. `operation` is a verb, for
    /// metrics and errors.
    ///
    /// It takes at most the timeout of the settings to get a turn, and as long again for the answer.
    ///
    /// # Cancel safety
    /// Dropped, the outcome is unknown, and the breaker does not count it.
    pub(crate) async fn post<B: Serialize + Sync>(
        &self,
        operation: &'static str,
        path: &str,
        key: &str,
        body: &B,
    ) -> Result<Value, Failure> {
        let guarded = &*self.0;
        guarded
            .post(operation, path, key, body)
            .await
            .map_err(|cause| {
                let kind = cause.kind();
                let label = cause::label(kind);
                guarded
                    .external
                    .failed(guarded.name, operation, label, cause.is_timeout());
                let error = CallFailed {
                    provider: guarded.name,
                    address: guarded.base.to_string(),
                    operation,
                    cause,
                };
                Failure::new(kind, error)
            })
    }
}

impl Guarded {
    async fn post<B: Serialize + Sync>(
        &self,
        operation: &'static str,
        path: &str,
        key: &str,
        body: &B,
    ) -> Result<Value, Cause> {
        let page = self.base.page(path).map_err(Cause::Request)?;
        if let CircuitState::Open { until } = self.circuit.state() {
            return Err(CircuitOpen::Until { until }.into());
        }
        let deadline = Instant::now() + self.timeout;
        let _place = self.places.acquire(self.timeout).await?;
        let left = deadline.saturating_duration_since(Instant::now());
        self.tokens.acquire(left).await?;
        let bounded = async {
            let after = self.timeout;
            let _running = self.external.begin(self.name, operation);
            timeout(after, self.send(page, key, body))
                .await
                .unwrap_or(Err(Cause::NotAnswered { after }))
        };
        let called = self
            .circuit
            .call(bounded, Cause::is_failure_of_provider)
            .await;
        let result = called.map_err(|error| match error {
            CallError::Open(open) => open.into(),
            CallError::Failed(cause) => cause,
        });
        if let Err(cause) = &result
            && let Some(pause) = cause.retry_after()
        {
            self.tokens.pause_until(Instant::now() + pause);
        }
        result
    }

    async fn send<B: Serialize + Sync>(
        &self,
        page: Url,
        key: &str,
        body: &B,
    ) -> Result<Value, Cause> {
        let request = self.http.post(page).header("Idempotency-Key", key);
        let request = request
            .json(body)
            .build()
            .map_err(|error| Cause::Request(error.without_url().into()))?;
        let mut answer = self.http.execute(request).await.map_err(lost)?;
        let body = read(&mut answer).await?;
        let status = answer.status();
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(Cause::Body);
        }
        let pause = answer
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| cause::retry_after(text, SystemTime::now()));
        Err(Cause::status(status.as_u16(), pause, &body))
    }
}

/// The body to its end: the connection can't be used again before.
async fn read(answer: &mut Response) -> Result<Vec<u8>, Cause> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(lost)? {
        if body.len() + chunk.len() > ANSWER_MAX {
            return Err(Cause::TooLong { most: ANSWER_MAX });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn lost(error: reqwest::Error) -> Cause {
    // A key could be in the path.
    let error = error.without_url();
    if error.is_connect() {
        Cause::NotConnected(error)
    } else {
        Cause::Broken(error)
    }
}

#[cfg(test)]
mod tests;
