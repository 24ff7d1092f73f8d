//! Stock, payments and shipments in MySQL: what the steps of the saga record, each in its step's transaction.

use std::collections::BTreeMap;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Transaction, Value};
use reliability::saga::Failure;
use thiserror::Error;

use crate::orders::Item;

/// Why the business says no, or the rows are not as they have to be.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum LedgerError {
    /// Refused: it would be so again.
    #[error("not enough stock of {sku}: {available} available, {wanted} ordered")]
    OutOfStock {
        sku: String,
        available: i64,
        wanted: i64,
    },
    /// Refused: nobody has such goods.
    #[error("there is no {sku} in the stock")]
    Unknown { sku: String },
    /// Somebody has changed the stock by hand.
    #[error(
        "cannot release {qty} of {sku}: fewer are reserved; mend the row of inventory, and it goes on"
    )]
    Unbalanced { sku: String, qty: i64 },
}

/// How many of each, in the order in which every transaction locks them: two orders never wait for each other in a ring.
fn by_sku(items: &[Item]) -> BTreeMap<&str, i64> {
    let mut wanted = BTreeMap::new();
    for item in items {
        *wanted.entry(item.sku.as_str()).or_default() += i64::from(item.qty);
    }
    wanted
}

/// Takes the goods out of what is available.
pub(super) async fn reserve(
    tx: &mut Transaction<'_>,
    saga_id: &str,
    items: &[Item],
) -> Result<(), Failure> {
    let wanted = by_sku(items);
    for (sku, qty) in &wanted {
        // Asks and takes at once, under the row's lock: nothing is sold twice.
        tx.exec_drop(
            "UPDATE inventory SET available = available - ?, reserved = reserved + ? WHERE sku = ? AND available >= ?",
            (qty, qty, sku, qty),
        )
        .await?;
        if tx.affected_rows() == 0 {
            return Err(why_not(tx, sku, *qty).await?);
        }
    }
    let rows = vec!["(?, ?, ?)"; wanted.len()].join(", ");
    let values = wanted
        .iter()
        .flat_map(|(sku, qty)| -> [Value; 3] { [saga_id.into(), (*sku).into(), (*qty).into()] })
        .collect();
    tx.exec_drop(
        format!("INSERT INTO inventory_reservations (saga_id, sku, qty) VALUES {rows}"),
        Params::Positional(values),
    )
    .await?;
    Ok(())
}

async fn why_not(
    tx: &mut Transaction<'_>,
    sku: &str,
    wanted: i64,
) -> Result<Failure, mysql_async::Error> {
    let available: Option<i64> = tx
        .exec_first("SELECT available FROM inventory WHERE sku = ?", (sku,))
        .await?;
    let sku = sku.to_owned();
    Ok(Failure::refused(match available {
        Some(available) => LedgerError::OutOfStock {
            sku,
            available,
            wanted,
        },
        None => LedgerError::Unknown { sku },
    }))
}

/// Gives back what a saga has reserved.
pub(super) async fn release(tx: &mut Transaction<'_>, saga_id: &str) -> Result<(), Failure> {
    let reserved: Vec<(String, i64)> = tx
        .exec(
            "SELECT sku, qty FROM inventory_reservations WHERE saga_id = ? AND status = 'RESERVED' ORDER BY sku",
            (saga_id,),
        )
        .await?;
    for (sku, qty) in reserved {
        tx.exec_drop(
            "UPDATE inventory SET available = available + ?, reserved = reserved - ? WHERE sku = ? AND reserved >= ?",
            (qty, qty, &sku, qty),
        )
        .await?;
        if tx.affected_rows() == 0 {
            return Err(Failure::technical(LedgerError::Unbalanced { sku, qty }));
        }
    }
    tx.exec_drop(
        "UPDATE inventory_reservations SET status = 'RELEASED' WHERE saga_id = ? AND status = 'RESERVED'",
        (saga_id,),
    )
    .await?;
    Ok(())
}

/// Records a charge.
pub(super) async fn charged(
    tx: &mut Transaction<'_>,
    order_id: i64,
    cents: i64,
) -> Result<(), Failure> {
    Ok(tx
        .exec_drop(
            "INSERT INTO payments (order_id, amount_cents, status) VALUES (?, ?, 'CHARGED')",
            (order_id, cents),
        )
        .await?)
}

/// Records that the charge was given back.
pub(super) async fn refunded(tx: &mut Transaction<'_>, order_id: i64) -> Result<(), Failure> {
    Ok(tx
        .exec_drop(
            "UPDATE payments SET status = 'REFUNDED' WHERE order_id = ? AND status = 'CHARGED'",
            (order_id,),
        )
        .await?)
}

/// Records a shipment.
pub(super) async fn shipped(tx: &mut Transaction<'_>, order_id: i64) -> Result<(), Failure> {
    Ok(tx
        .exec_drop(
            "INSERT INTO shipments (order_id, status) VALUES (?, 'CREATED')",
            (order_id,),
        )
        .await?)
}

/// Records that the shipment was called off.
pub(super) async fn called_off(tx: &mut Transaction<'_>, order_id: i64) -> Result<(), Failure> {
    Ok(tx
        .exec_drop(
            "UPDATE shipments SET status = 'CANCELLED' WHERE order_id = ? AND status = 'CREATED'",
            (order_id,),
        )
        .await?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(sku: &str, qty: i32) -> Item {
        Item {
            sku: sku.to_owned(),
            qty,
            price_cents: 1,
        }
    }

    #[test]
    fn lines_of_one_sku_are_added_up() {
        let items = [item("b", i32::MAX), item("a", 1), item("b", i32::MAX)];
        let wanted: Vec<_> = by_sku(&items).into_iter().collect();
        assert_eq!(wanted, [("a", 1), ("b", 2 * i64::from(i32::MAX))]);
    }

    proptest! {
        #[test]
        fn every_order_locks_in_the_same_order(skus in prop::collection::vec("[a-dA-D]{1,2}", 1..30)) {
            let items: Vec<Item> = skus.iter().map(|sku| item(sku, 2)).collect();
            let order: Vec<&str> = by_sku(&items).into_keys().collect();
            prop_assert!(order.is_sorted());
            prop_assert_eq!(by_sku(&items).values().sum::<i64>(), 2 * i64::try_from(skus.len()).unwrap());
        }
    }
}
