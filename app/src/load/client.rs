//! A client that places one order after another.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::{Client, StatusCode, Url};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::report::Tally;

/// What all clients share.
pub(super) struct Errand {
    pub(super) http: Client,
    pub(super) page: Url,
    pub(super) orders: u64,
    /// Orders a second; 0 is as fast as possible.
    pub(super) rate: u64,
    pub(super) started: Instant,
    pub(super) progress: Arc<Progress>,
    pub(super) stop: CancellationToken,
}

/// How far all clients are.
#[derive(Debug, Default)]
pub(super) struct Progress {
    taken: AtomicU64,
    placed: AtomicU64,
    failed: AtomicU64,
}

impl Progress {
    /// Placed, failed.
    pub(super) fn read(&self) -> (u64, u64) {
        (
            self.placed.load(Ordering::Relaxed),
            self.failed.load(Ordering::Relaxed),
        )
    }
}

impl Errand {
    /// Takes the next order until none is left.
    pub(super) async fn run(self: Arc<Self>) -> Tally {
        let mut tally = Tally::default();
        loop {
            let number = self.progress.taken.fetch_add(1, Ordering::Relaxed);
            if number >= self.orders {
                return tally;
            }
            let due = match self.rate {
                0 => Instant::now(),
                rate => self.started + due(number, rate),
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return tally,
                () = sleep_until(due) => {}
            }
            match self.place(number).await {
                Ok(()) => {
                    self.progress.placed.fetch_add(1, Ordering::Relaxed);
                    tally.placed(due.elapsed());
                }
                Err(kind) => {
                    self.progress.failed.fetch_add(1, Ordering::Relaxed);
                    tally.failed(kind);
                }
            }
        }
    }

    async fn place(&self, number: u64) -> Result<(), String> {
        let answer = self
            .http
            .post(self.page.clone())
            .header("Idempotency-Key", Uuid::new_v4().to_string())
            .json(&order(number))
            .send()
            .await
            .map_err(|error| kind(&error))?;
        let status = answer.status();
        // Read to its end, or the connection can't be used again.
        answer.bytes().await.map_err(|error| kind(&error))?;
        if status == StatusCode::CREATED {
            Ok(())
        } else {
            Err(format!("HTTP {}", status.as_u16()))
        }
    }
}

/// When an order is due, from the start.
fn due(number: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(number) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// Goods that are ordered.
const SKUS: u64 = 50;

/// All that [`order`] may order.
pub(super) fn skus() -> impl Iterator<Item = String> {
    (0..SKUS).map(sku)
}

fn sku(number: u64) -> String {
    format!("SKU-{number}")
}

/// One to three items, for one of a thousand customers.
fn order(number: u64) -> Value {
    let items: Vec<Value> = (0..=number % 3)
        .map(|line| {
            json!({
                "sku": sku((number + line) % SKUS),
                "qty": line + 1,
                "price_cents": 100 + (number * 7 + line) % 10_000,
            })
        })
        .collect();
    json!({ "customer_id": 1 + number % 1000, "items": items })
}

fn kind(error: &reqwest::Error) -> String {
    let mut link: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(cause) = link {
        let refused = cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if refused {
            return "connection refused".to_owned();
        }
        link = cause.source();
    }
    if error.is_timeout() {
        "timeout".to_owned()
    } else if error.is_connect() {
        "no connection".to_owned()
    } else {
        "connection lost".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::NewOrder;

    #[test]
    fn every_order_is_valid_and_of_known_goods() {
        let known: Vec<String> = skus().collect();
        for number in 0..1000 {
            let order = NewOrder::parse(&order(number)).unwrap();
            assert!(
                order.items.iter().all(|item| known.contains(&item.sku)),
                "{number}"
            );
        }
    }

    #[test]
    fn orders_are_due_at_an_even_pace() {
        assert_eq!(due(0, 50), Duration::ZERO);
        assert_eq!(due(75, 50), Duration::from_millis(1500));
        assert_eq!(due(u64::MAX, 1), Duration::from_nanos(u64::MAX));
    }
}
