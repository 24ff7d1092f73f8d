//! Orders in MySQL.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Transaction, Value};
use reliability::outbox::{self, NewEvent, OutboxError};
use serde::Serialize;
use thiserror::Error;

use super::{CREATED, Item, NewOrder};

/// Why an order was not written or read.
#[derive(Debug, Error)]
pub(crate) enum StoreError {
    /// MySQL failed.
    #[error("cannot {doing}")]
    Mysql {
        /// What was tried.
        doing: &'static str,
        #[source]
        source: mysql_async::Error,
    },
    /// The event was refused.
    #[error("cannot write the event of an order")]
    Outbox(#[from] OutboxError),
}

/// A stored order, as the API shows it.
#[derive(Debug, Serialize)]
pub(crate) struct Order {
    id: i64,
    customer_id: i64,
    status: String,
    total_cents: i64,
    version: i64,
    created_at: String,
    items: Vec<Item>,
}

/// The payload of OrderCreated.
#[derive(Serialize)]
struct OrderCreated<'a> {
    order_id: i64,
    customer_id: i64,
    items: &'a [Item],
    total_cents: i64,
}

/// Writes an order, its items and its OrderCreated event in the caller's transaction; its id.
pub(crate) async fn create(tx: &mut Transaction<'_>, order: &NewOrder) -> Result<i64, StoreError> {
    tx.exec_drop(
        "INSERT INTO orders (customer_id, status, total_cents) VALUES (?, ?, ?)",
        (order.customer_id, CREATED, order.total_cents),
    )
    .await
    .map_err(failed("write an order"))?;
    // An AUTO_INCREMENT BIGINT is never above i64::MAX.
    let id = tx.last_insert_id().unwrap_or_default().cast_signed();
    let rows = vec!["(?, ?, ?, ?)"; order.items.len()].join(", ");
    let values = order
        .items
        .iter()
        .flat_map(|item| -> [Value; 4] {
            [
                id.into(),
                item.sku.as_str().into(),
                item.qty.into(),
                item.price_cents.into(),
            ]
        })
        .collect();
    tx.exec_drop(
        format!("INSERT INTO order_items (order_id, sku, qty, price_cents) VALUES {rows}"),
        Params::Positional(values),
    )
    .await
    .map_err(failed("write the items of an order"))?;
    let payload = OrderCreated {
        order_id: id,
        customer_id: order.customer_id,
        items: &order.items,
        total_cents: order.total_cents,
    };
    let event = NewEvent {
        aggregate_type: "order",
        aggregate_id: id,
        event_type: "OrderCreated",
        payload: &payload,
        headers: None,
        idempotency_key: &format!("order:{id}:created"),
    };
    outbox::insert(tx, &event).await?;
    Ok(id)
}

/// An order, if there is one with that id.
pub(crate) async fn find(conn: &mut Conn, id: i64) -> Result<Option<Order>, StoreError> {
    let row: Option<(i64, String, i64, i64, String)> = conn
        .exec_first(
            "SELECT customer_id, status, total_cents, version, \
             DATE_FORMAT(created_at, '%Y-%m-%dT%H:%i:%s.%fZ') FROM orders WHERE id = ?",
            (id,),
        )
        .await
        .map_err(failed("read an order"))?;
    let Some((customer_id, status, total_cents, version, created_at)) = row else {
        return Ok(None);
    };
    let items = conn
        .exec_map(
            "SELECT sku, qty, price_cents FROM order_items WHERE order_id = ? ORDER BY id",
            (id,),
            |(sku, qty, price_cents)| Item {
                sku,
                qty,
                price_cents,
            },
        )
        .await
        .map_err(failed("read the items of an order"))?;
    Ok(Some(Order {
        id,
        customer_id,
        status,
        total_cents,
        version,
        created_at,
        items,
    }))
}

fn failed(doing: &'static str) -> impl FnOnce(mysql_async::Error) -> StoreError {
    move |source| StoreError::Mysql { doing, source }
}
