//! The saga of an order: stock, payment, shipment; and how it begins.
//!
//! ```text
//!  OrderCreated ─▶ worker: inbox row + command ─▶ StartOrderSaga: saga row ─▶ engine
//!  ReserveStock ─▶ ChargePayment ─▶ CreateShipment ─▶ order CONFIRMED
//!  ReleaseStock ◀─ RefundPayment ◀─ CancelShipment     order CANCELLED
//! ```

mod ledger;
pub(crate) mod provider;
mod start;
mod steps;

use mysql_async::Transaction;
use reliability::outbox::{self, NewEvent, OutboxError};
use reliability::saga::Kind;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::orders::{Fault, Item, NewOrder};

pub(crate) use start::{Fulfilment, SagaSettings, enqueue};

/// The kind of saga that an order is fulfilled by.
pub(crate) const SAGA: Kind<Order> = Kind::new("CreateOrderSaga", 1);
/// The event that asks for it.
pub(crate) const ORDER_CREATED: &str = "OrderCreated";

/// What the saga has to know: the payload of OrderCreated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) order_id: i64,
    pub(crate) customer_id: i64,
    pub(crate) items: Vec<Item>,
    pub(crate) total_cents: i64,
}

/// Why the payload of an OrderCreated is no order.
#[derive(Debug, Error)]
pub(crate) enum OrderError {
    #[error("the payload of {ORDER_CREATED} is no order: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the payload of {ORDER_CREATED} is no valid order: {field} {detail}")]
    Invalid { field: String, detail: String },
}

impl Order {
    /// Reads a payload. It may come from anywhere: a negative quantity would make goods out of nothing.
    pub(crate) fn read(payload: &str) -> Result<Self, OrderError> {
        let payload: Value = serde_json::from_str(payload)?;
        let order = Self::deserialize(&payload)?;
        let fault = |field: &str, detail: &str| OrderError::Invalid {
            field: field.to_owned(),
            detail: detail.to_owned(),
        };
        let valid =
            NewOrder::parse(&payload).map_err(|faults| match faults.into_iter().next() {
                Some(Fault { field, detail }) => OrderError::Invalid { field, detail },
                None => fault("items", "are not valid"),
            })?;
        if valid.total_cents != order.total_cents {
            return Err(fault("total_cents", "is not the sum of the items"));
        }
        Ok(order)
    }
}

/// What the saga of an order is about.
pub(crate) fn correlation_id(order_id: i64) -> String {
    format!("order:{order_id}")
}

/// Writes an event of an order, in the transaction of what it tells. Its key names the saga, and is there once.
async fn tell<P: Serialize>(
    tx: &mut Transaction<'_>,
    saga_id: &str,
    order_id: i64,
    event_type: &str,
    name: &str,
    payload: &P,
) -> Result<(), OutboxError> {
    let event = NewEvent {
        aggregate_type: "order",
        aggregate_id: order_id,
        event_type,
        payload,
        headers: None,
        idempotency_key: &format!("saga:{saga_id}:{name}"),
    };
    outbox::insert(tx, &event).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_order_that_makes_no_sense_is_not_taken() {
        let good = json!({"order_id": 7, "customer_id": 1, "total_cents": 3000, "items": [
            {"sku": "A", "qty": 2, "price_cents": 1500},
        ]});
        assert_eq!(Order::read(&good.to_string()).unwrap().order_id, 7);
        for (path, value, said) in [
            ("/items/0/qty", json!(-2), "items[0].qty"),
            ("/items", json!([]), "items"),
            ("/total_cents", json!(-3000), "total_cents"),
            ("/total_cents", json!("3000"), "is no order"),
            ("/order_id", json!(null), "is no order"),
        ] {
            let mut bad = good.clone();
            *bad.pointer_mut(path).unwrap() = value;
            let error = Order::read(&bad.to_string()).unwrap_err().to_string();
            assert!(error.contains(said), "{path}: {error}");
        }
    }
}
