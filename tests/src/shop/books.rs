//! Whether database and providers agree, when all is done.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::Shop;
use super::providers::{Fact, Facts};

/// An order's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRow {
    /// `CREATED`, `CONFIRMED` or `CANCELLED`.
    pub status: String,
    /// Its price.
    pub total_cents: u64,
    /// How many of each.
    pub items: BTreeMap<String, u64>,
    /// Status of its saga.
    pub saga: Option<String>,
    /// How often it was asked for its saga to be started.
    pub commands: u64,
    /// The types of its events.
    pub events: Vec<String>,
}

/// A sku's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockRow {
    /// To be sold.
    pub available: i64,
    /// For orders.
    pub reserved: i64,
}

/// Every row that the business is about, and the providers' facts.
#[derive(Debug, Clone, Default)]
pub struct Books {
    /// By id.
    pub orders: BTreeMap<u64, OrderRow>,
    /// By sku.
    pub stock: BTreeMap<String, StockRow>,
    /// By order and sku: how many, and whether they still are.
    pub reservations: BTreeMap<(u64, String), (u64, String)>,
    /// By order: amount and status.
    pub payments: BTreeMap<u64, (u64, String)>,
    /// By order: status.
    pub shipments: BTreeMap<u64, String>,
    /// What the providers say.
    pub facts: Facts,
}

/// What is told of an order when something is done, and when it is undone.
const PAIRS: [(&str, &str); 3] = [
    ("StockReserved", "StockReleased"),
    ("PaymentCharged", "PaymentRefunded"),
    ("ShipmentCreated", "ShipmentCancelled"),
];

impl Books {
    /// Reads the database; the order of a reservation is that of its saga.
    pub(super) async fn read(shop: &Shop<'_>, facts: Facts) -> Result<Self> {
        const OF_SAGA: &str = "CAST(SUBSTRING(s.correlation_id, 7) AS UNSIGNED)";
        let mut books = Self {
            facts,
            ..Self::default()
        };
        let orders = "SELECT o.id, o.status, o.total_cents, s.status, \
             (SELECT COUNT(*) FROM command_queue c WHERE c.command_key = CONCAT('order:', o.id, ':start')) \
             FROM orders o LEFT JOIN saga_instances s ON s.correlation_id = CONCAT('order:', o.id)";
        for (id, status, total_cents, saga, commands) in shop
            .rows::<(u64, String, u64, Option<String>, u64)>(orders)
            .await?
        {
            let order = OrderRow {
                status,
                total_cents,
                items: BTreeMap::new(),
                saga,
                commands,
                events: Vec::new(),
            };
            ensure!(
                books.orders.insert(id, order).is_none(),
                "order {id} has two sagas"
            );
        }
        for (id, sku, qty) in shop
            .rows::<(u64, String, u64)>("SELECT order_id, sku, qty FROM order_items")
            .await?
        {
            let order = books.orders.get_mut(&id);
            if let Some(order) = order {
                *order.items.entry(sku).or_default() += qty;
            }
        }
        let events = "SELECT aggregate_id, event_type FROM outbox_events WHERE aggregate_type = 'order' ORDER BY id";
        for (id, kind) in shop.rows::<(u64, String)>(events).await? {
            let order = books.orders.get_mut(&id);
            if let Some(order) = order {
                order.events.push(kind);
            }
        }
        for (sku, available, reserved) in shop
            .rows::<(String, i64, i64)>("SELECT sku, available, reserved FROM inventory")
            .await?
        {
            let row = StockRow {
                available,
                reserved,
            };
            books.stock.insert(sku, row);
        }
        let reservations = format!(
            "SELECT {OF_SAGA}, r.sku, r.qty, r.status FROM inventory_reservations r JOIN saga_instances s ON s.id = r.saga_id"
        );
        for (order, sku, qty, status) in shop
            .rows::<(u64, String, u64, String)>(&reservations)
            .await?
        {
            books.reservations.insert((order, sku), (qty, status));
        }
        let payments = "SELECT order_id, amount_cents, status FROM payments";
        for (order, cents, status) in shop.rows::<(u64, u64, String)>(payments).await? {
            books.payments.insert(order, (cents, status));
        }
        let shipments = "SELECT order_id, status FROM shipments";
        books.shipments = shop.rows(shipments).await?.into_iter().collect();
        Ok(books)
    }

    /// How many orders have that status.
    pub fn count(&self, status: &str) -> usize {
        self.orders
            .values()
            .filter(|order| order.status == status)
            .count()
    }

    /// Asserts that nothing was lost, sold or charged twice, given how many there were of each sku.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn balance(&self, goods: &BTreeMap<String, u64>) -> Result<()> {
        let mut faults = Vec::new();
        for (id, order) in &self.orders {
            self.audit(*id, order, &mut faults);
        }
        self.count_goods(goods, &mut faults);
        let strangers = |facts: &[Fact]| {
            facts
                .iter()
                .find(|fact| fact.status != "VOIDED" && !self.orders.contains_key(&fact.order_id))
                .cloned()
        };
        for stranger in [&self.facts.payments, &self.facts.shipments].map(|facts| strangers(facts))
        {
            faults.extend(stranger.map(|fact| format!("of no order: {fact:?}")));
        }
        ensure!(
            faults.is_empty(),
            "{} faults in the books: {}",
            faults.len(),
            faults
                .iter()
                .take(10)
                .cloned()
                .collect::<Vec<_>>()
                .join("; ")
        );
        Ok(())
    }

    fn audit(&self, id: u64, order: &OrderRow, faults: &mut Vec<String>) {
        let mut fault =
            |text: String| faults.push(format!("order {id} ({}): {text}", order.status));
        let confirmed = order.status == "CONFIRMED";
        let expected: &[&str] = match order.status.as_str() {
            "CONFIRMED" => &["COMPLETED"],
            "CANCELLED" => &["COMPENSATED", "FAILED"],
            _ => &[],
        };
        if !order
            .saga
            .as_deref()
            .is_some_and(|saga| expected.contains(&saga))
        {
            fault(format!("its saga is {:?}", order.saga));
        }
        if order.commands != 1 {
            fault(format!("{} commands to start its saga", order.commands));
        }
        let (charges, parcels) = (
            made(&self.facts.payments, id),
            made(&self.facts.shipments, id),
        );
        let (payment, shipment) = (self.payments.get(&id), self.shipments.get(&id));
        let paid = payment.map(|(_, status)| status.as_str());
        let price = |cents| !confirmed || cents == order.total_cents;
        if !settled(paid, &charges, confirmed, "CHARGED", "REFUNDED")
            || !payment.is_none_or(|(cents, _)| price(*cents))
            || !charges.iter().all(|fact| price(fact.amount_cents))
        {
            fault(format!("payment {payment:?}, provider {charges:?}"));
        }
        let sent = shipment.map(String::as_str);
        if !settled(sent, &parcels, confirmed, "CREATED", "CANCELLED") {
            fault(format!("shipment {shipment:?}, provider {parcels:?}"));
        }
        let reserved: BTreeMap<String, u64> = self
            .reservations
            .range((id, String::new())..(id + 1, String::new()))
            .filter(|(_, (_, status))| status == "RESERVED")
            .map(|((_, sku), (qty, _))| (sku.clone(), *qty))
            .collect();
        let due = if confirmed {
            order.items.clone()
        } else {
            BTreeMap::new()
        };
        if reserved != due {
            fault(format!("reserved {reserved:?}, due {due:?}"));
        }
        if let Some(wrong) = wrong_events(&order.events, confirmed) {
            fault(format!("{wrong}: {:?}", order.events));
        }
    }

    fn count_goods(&self, goods: &BTreeMap<String, u64>, faults: &mut Vec<String>) {
        for (sku, all) in goods {
            let sold: u64 = self
                .orders
                .values()
                .filter(|order| order.status == "CONFIRMED")
                .filter_map(|order| order.items.get(sku))
                .sum();
            let row = self.stock.get(sku);
            let holds = row.is_some_and(|row| {
                row.available >= 0
                    && u64::try_from(row.reserved) == Ok(sold)
                    && u64::try_from(row.available + row.reserved) == Ok(*all)
            });
            if !holds {
                faults.push(format!("{sku}: {row:?} of {all}, {sold} sold"));
            }
        }
    }
}

/// What a provider has done for an order.
fn made(facts: &[Fact], order_id: u64) -> Vec<&Fact> {
    let of_order = facts.iter().filter(|fact| fact.order_id == order_id);
    of_order.filter(|fact| fact.status != "VOIDED").collect()
}

/// Whether row and facts of one thing are as they have to be at the end of an order.
fn settled(row: Option<&str>, facts: &[&Fact], confirmed: bool, done: &str, undone: &str) -> bool {
    let fact = match facts {
        [] => None,
        [fact] => Some(fact.status.as_str()),
        _ => return false,
    };
    if confirmed {
        return row == Some(done) && fact == Some(done);
    }
    // What nobody was sure of has no row, and is undone all the same.
    row.is_none_or(|row| row == undone && fact == Some(undone))
        && fact.is_none_or(|fact| fact == undone)
}

/// What is wrong with the events of an order that has come to its end.
fn wrong_events(events: &[String], confirmed: bool) -> Option<&'static str> {
    let different: BTreeSet<&str> = events.iter().map(String::as_str).collect();
    let told = |kind: &str| different.contains(kind);
    if different.len() != events.len() {
        return Some("an event is there twice");
    }
    if !told("OrderCreated")
        || told("OrderConfirmed") != confirmed
        || told("OrderCancelled") == confirmed
    {
        return Some("the events tell another end");
    }
    let broken = |(done, undone): &(&str, &str)| match confirmed {
        true => !told(done) || told(undone),
        false => told(done) != told(undone),
    };
    PAIRS
        .iter()
        .any(broken)
        .then_some("what was done and what was undone do not match")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(order_id: u64, amount_cents: u64, status: &str) -> Fact {
        Fact {
            key: format!("{order_id}"),
            order_id,
            amount_cents,
            status: status.to_owned(),
        }
    }

    fn order(status: &str, saga: &str, events: &str) -> OrderRow {
        OrderRow {
            status: status.to_owned(),
            total_cents: 3000,
            items: BTreeMap::from([("A".to_owned(), 2)]),
            saga: Some(saga.to_owned()),
            commands: 1,
            events: events.split(' ').map(str::to_owned).collect(),
        }
    }

    /// Order 1 is confirmed, order 2 was called off at its shipment.
    fn books() -> Books {
        let done = "OrderCreated StockReserved PaymentCharged ShipmentCreated OrderConfirmed";
        let undone = "OrderCreated StockReserved PaymentCharged PaymentRefunded StockReleased OrderCancelled";
        let reservation = |order, status: &str| ((order, "A".to_owned()), (2, status.to_owned()));
        Books {
            orders: BTreeMap::from([
                (1, order("CONFIRMED", "COMPLETED", done)),
                (2, order("CANCELLED", "COMPENSATED", undone)),
            ]),
            stock: BTreeMap::from([(
                "A".to_owned(),
                StockRow {
                    available: 8,
                    reserved: 2,
                },
            )]),
            reservations: BTreeMap::from([reservation(1, "RESERVED"), reservation(2, "RELEASED")]),
            payments: BTreeMap::from([
                (1, (3000, "CHARGED".to_owned())),
                (2, (3000, "REFUNDED".to_owned())),
            ]),
            shipments: BTreeMap::from([(1, "CREATED".to_owned())]),
            facts: Facts {
                payments: vec![fact(1, 3000, "CHARGED"), fact(2, 3000, "REFUNDED")],
                shipments: vec![fact(1, 0, "CREATED"), fact(0, 0, "VOIDED")],
            },
        }
    }

    #[test]
    fn whatever_is_wrong_is_noticed() {
        let goods = BTreeMap::from([("A".to_owned(), 10)]);
        books().balance(&goods).unwrap();
        let refuse = |what: &str, tamper: fn(&mut Books)| {
            let mut books = books();
            tamper(&mut books);
            assert!(books.balance(&goods).is_err(), "{what}");
        };
        let stock = |what: &str, available, reserved| {
            let mut books = books();
            let row = StockRow {
                available,
                reserved,
            };
            books.stock.insert("A".to_owned(), row);
            assert!(books.balance(&goods).is_err(), "{what}");
        };
        stock("lost", 7, 2);
        stock("oversold", -1, 11);
        stock("released too often", 10, 0);
        refuse("charged twice", |b| {
            b.facts.payments.push(fact(1, 3000, "CHARGED"));
        });
        refuse("another amount", |b| {
            b.facts.payments[0] = fact(1, 1, "CHARGED");
        });
        refuse("not refunded", |b| {
            b.facts.payments[1] = fact(2, 3000, "CHARGED");
        });
        refuse("refund not recorded", |b| {
            b.payments.insert(2, (3000, "CHARGED".to_owned()));
        });
        refuse("charge not recorded", |b| {
            b.payments.remove(&1);
        });
        refuse("sent all the same", |b| {
            b.facts.shipments.push(fact(2, 0, "CREATED"));
        });
        refuse("not sent", |b| {
            b.facts.shipments.clear();
        });
        refuse("still open", |b| {
            b.orders.get_mut(&2).unwrap().status = "CREATED".to_owned();
        });
        refuse("two ends", |b| {
            let events = &mut b.orders.get_mut(&1).unwrap().events;
            events.push("OrderCancelled".to_owned());
        });
        refuse("not told", |b| {
            b.orders.get_mut(&2).unwrap().events.remove(4);
        });
        refuse("for nobody", |b| {
            b.facts.payments.push(fact(3, 3000, "CHARGED"));
        });
    }
}
