//! Orders in MySQL.

use std::collections::HashSet;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Transaction, Value};
use reliability::commands::CommandError;
use reliability::outbox::{self, NewEvent, OutboxError};
use serde::Serialize;
use thiserror::Error;

use super::state::Status;
use super::{Item, NewOrder};
use crate::fulfilment::{self, ORDER_CREATED};

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
    /// The command was refused.
    #[error("cannot ask for the saga of an order")]
    Command(#[from] CommandError),
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
    saga: Option<Saga>,
}

/// The saga of an order, once it was started.
#[derive(Debug, Serialize)]
struct Saga {
    id: String,
    status: String,
}

/// Places in an order whose goods nobody has heard of, from 0.
pub(crate) async fn unknown_goods(
    tx: &mut Transaction<'_>,
    order: &NewOrder,
) -> Result<Vec<usize>, StoreError> {
    let places = vec!["?"; order.items.len()].join(", ");
    let skus = order
        .items
        .iter()
        .map(|item| Value::from(item.sku.as_str()))
        .collect();
    let known: HashSet<String> = tx
        .exec(
            format!("SELECT sku FROM inventory WHERE sku IN ({places})"),
            Params::Positional(skus),
        )
        .await
        .map_err(failed("look for the goods of an order"))?
        .into_iter()
        .collect();
    let unknown = |(_, item): &(usize, &Item)| !known.contains(&item.sku);
    Ok(order
        .items
        .iter()
        .enumerate()
        .filter(unknown)
        .map(|(place, _)| place)
        .collect())
}

/// Writes an order, its items and its OrderCreated event in the caller's transaction; its id.
///
/// With `at_once`, the command that starts its saga too, which else follows from the event.
pub(crate) async fn create(
    tx: &mut Transaction<'_>,
    order: &NewOrder,
    at_once: bool,
) -> Result<i64, StoreError> {
    tx.exec_drop(
        "INSERT INTO orders (customer_id, status, total_cents) VALUES (?, ?, ?)",
        (
            order.customer_id,
            Status::Created.as_str(),
            order.total_cents,
        ),
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
    let payload = fulfilment::Order {
        order_id: id,
        customer_id: order.customer_id,
        items: order.items.clone(),
        total_cents: order.total_cents,
    };
    let event = NewEvent {
        aggregate_type: "order",
        aggregate_id: id,
        event_type: ORDER_CREATED,
        payload: &payload,
        headers: None,
        idempotency_key: &format!("order:{id}:created"),
    };
    outbox::insert(tx, &event).await?;
    if at_once {
        fulfilment::enqueue(tx, &payload).await?;
    }
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
    let saga = conn
        .exec_first(
            "SELECT id, CAST(status AS CHAR) FROM saga_instances WHERE saga_type = ? AND correlation_id = ?",
            (fulfilment::SAGA.saga_type(), fulfilment::correlation_id(id)),
        )
        .await
        .map_err(failed("read the saga of an order"))?
        .map(|(id, status)| Saga { id, status });
    Ok(Some(Order {
        id,
        customer_id,
        status,
        total_cents,
        version,
        created_at,
        items,
        saga,
    }))
}

fn failed(doing: &'static str) -> impl FnOnce(mysql_async::Error) -> StoreError {
    move |source| StoreError::Mysql { doing, source }
}
