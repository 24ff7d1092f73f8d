//! The steps of the saga, their undo, and its end.

use mysql_async::Transaction;
use reliability::saga::{
    Context, Definition, DefinitionError, Ending, Failure, Hooks, Policy, Step,
};
use serde_json::{Value, json};

use super::provider::Provider;
use super::{Order, SAGA, ledger, tell};
use crate::orders::state::{self, Status};

/// Names of the steps, as saga_steps and the keys of the providers hold them.
const RESERVE_STOCK: &str = "ReserveStock";
const CHARGE_PAYMENT: &str = "ChargePayment";
const CREATE_SHIPMENT: &str = "CreateShipment";

/// The saga of an order, with these providers.
pub(super) fn definition(
    policy: &Policy,
    payment: Provider,
    shipping: Provider,
) -> Result<Definition, DefinitionError> {
    Definition::of(SAGA)
        .step(RESERVE_STOCK, policy.clone(), ReserveStock)
        .step(
            CHARGE_PAYMENT,
            policy.clone(),
            ChargePayment { provider: payment },
        )
        .step(
            CREATE_SHIPMENT,
            policy.clone(),
            CreateShipment { provider: shipping },
        )
        .hooks(End)
        .build()
}

struct ReserveStock;

impl Step<Order> for ReserveStock {
    const REMOTE: bool = false;

    async fn record(
        &self,
        tx: &mut Transaction<'_>,
        cx: &Context<'_, Order>,
        _: Value,
    ) -> Result<Value, Failure> {
        let order = cx.payload();
        ledger::reserve(tx, cx.saga_id(), &order.items).await?;
        let payload = stock(cx);
        tell(
            tx,
            cx.saga_id(),
            order.order_id,
            "StockReserved",
            "stock-reserved",
            &payload,
        )
        .await?;
        Ok(Value::Null)
    }

    async fn undo_record(
        &self,
        tx: &mut Transaction<'_>,
        cx: &Context<'_, Order>,
    ) -> Result<(), Failure> {
        ledger::release(tx, cx.saga_id()).await?;
        let payload = stock(cx);
        tell(
            tx,
            cx.saga_id(),
            cx.payload().order_id,
            "StockReleased",
            "stock-released",
            &payload,
        )
        .await?;
        Ok(())
    }
}

fn stock(cx: &Context<'_, Order>) -> Value {
    let order = cx.payload();
    json!({ "saga_id": cx.saga_id(), "order_id": order.order_id, "items": order.items })
}

struct ChargePayment {
    provider: Provider,
}

impl Step<Order> for ChargePayment {
    async fn call(&self, cx: &Context<'_, Order>) -> Result<Value, Failure> {
        let order = cx.payload();
        let body = json!({ "order_id": order.order_id, "amount_cents": order.total_cents });
        self.provider
            .post("charge", "/payments", &cx.key(), &body)
            .await
    }

    async fn record(
        &self,
        tx: &mut Transaction<'_>,
        cx: &Context<'_, Order>,
        output: Value,
    ) -> Result<Value, Failure> {
        let order = cx.payload();
        ledger::charged(tx, order.order_id, order.total_cents).await?;
        tell(
            tx,
            cx.saga_id(),
            order.order_id,
            "PaymentCharged",
            "payment-charged",
            &payment(cx),
        )
        .await?;
        Ok(output)
    }

    async fn undo_call(&self, cx: &Context<'_, Order>) -> Result<(), Failure> {
        let path = format!("/payments/{}/refund", in_path(&cx.do_key()));
        let body = json!({ "order_id": cx.payload().order_id });
        self.provider
            .post("refund", &path, &cx.key(), &body)
            .await?;
        Ok(())
    }

    async fn undo_record(
        &self,
        tx: &mut Transaction<'_>,
        cx: &Context<'_, Order>,
    ) -> Result<(), Failure> {
        // Nobody was told of a charge whose outcome was never known.
        if !cx.recorded() {
            return Ok(());
        }
        let order_id = cx.payload().order_id;
        ledger::refunded(tx, order_id).await?;
        tell(
            tx,
            cx.saga_id(),
            order_id,
            "PaymentRefunded",
            "payment-refunded",
            &payment(cx),
        )
        .await?;
        Ok(())
    }
}

fn payment(cx: &Context<'_, Order>) -> Value {
    let order = cx.payload();
    json!({ "saga_id": cx.saga_id(), "order_id": order.order_id, "amount_cents": order.total_cents })
}

struct CreateShipment {
    provider: Provider,
}

impl Step<Order> for CreateShipment {
    async fn call(&self, cx: &Context<'_, Order>) -> Result<Value, Failure> {
        let body = json!({ "order_id": cx.payload().order_id });
        self.provider
            .post("create", "/shipments", &cx.key(), &body)
            .await
    }

    async fn record(
        &self,
        tx: &mut Transaction<'_>,
        cx: &Context<'_, Order>,
        output: Value,
    ) -> Result<Value, Failure> {
        let order_id = cx.payload().order_id;
        ledger::shipped(tx, order_id).await?;
        tell(
            tx,
            cx.saga_id(),
            order_id,
            "ShipmentCreated",
            "shipment-created",
            &plain(cx),
        )
        .await?;
        Ok(output)
    }

    async fn undo_call(&self, cx: &Context<'_, Order>) -> Result<(), Failure> {
        let path = format!("/shipments/{}/cancel", in_path(&cx.do_key()));
        let body = json!({ "order_id": cx.payload().order_id });
        self.provider
            .post("cancel", &path, &cx.key(), &body)
            .await?;
        Ok(())
    }

    async fn undo_record(
        &self,
        tx: &mut Transaction<'_>,
        cx: &Context<'_, Order>,
    ) -> Result<(), Failure> {
        if !cx.recorded() {
            return Ok(());
        }
        let order_id = cx.payload().order_id;
        ledger::called_off(tx, order_id).await?;
        tell(
            tx,
            cx.saga_id(),
            order_id,
            "ShipmentCancelled",
            "shipment-cancelled",
            &plain(cx),
        )
        .await?;
        Ok(())
    }
}

fn plain(cx: &Context<'_, Order>) -> Value {
    json!({ "saga_id": cx.saga_id(), "order_id": cx.payload().order_id })
}

/// A key as a segment of a path (RFC 3986 section 2.3): all but unreserved characters escaped.
fn in_path(key: &str) -> String {
    use std::fmt::Write as _;
    key.bytes()
        .fold(String::with_capacity(key.len()), |mut path, byte| {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                path.push(char::from(byte));
            } else {
                // Writing to a String does not fail.
                write!(path, "%{byte:02X}").ok();
            }
            path
        })
}

/// The end of an order.
struct End;

impl Hooks<Order> for End {
    async fn on_completed(
        &self,
        tx: &mut Transaction<'_>,
        end: &Ending<'_, Order>,
    ) -> Result<(), Failure> {
        finish(
            tx,
            end,
            Status::Confirmed,
            "OrderConfirmed",
            "order-confirmed",
        )
        .await
    }

    async fn on_compensated(
        &self,
        tx: &mut Transaction<'_>,
        end: &Ending<'_, Order>,
    ) -> Result<(), Failure> {
        finish(
            tx,
            end,
            Status::Cancelled,
            "OrderCancelled",
            "order-cancelled",
        )
        .await
    }
}

async fn finish(
    tx: &mut Transaction<'_>,
    end: &Ending<'_, Order>,
    status: Status,
    event_type: &str,
    name: &str,
) -> Result<(), Failure> {
    let order_id = end.payload().order_id;
    let read = state::read(tx, order_id, status)
        .await
        .map_err(Failure::technical)?;
    state::change(tx, read, status)
        .await
        .map_err(Failure::technical)?;
    let mut payload = json!({ "saga_id": end.saga_id(), "order_id": order_id });
    if status == Status::Cancelled {
        payload["reason"] = json!(end.error());
    }
    tell(tx, end.saga_id(), order_id, event_type, name, &payload).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_segment() {
        assert_eq!(
            in_path("0190-ab:Charge/Payment:do ж"),
            "0190-ab%3ACharge%2FPayment%3Ado%20%D0%B6"
        );
    }
}
