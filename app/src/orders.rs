//! Orders: what a valid one is (pure). Their SQL is in [`store`] and [`state`].

pub(crate) mod state;
pub(crate) mod store;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Most items of one order: they are one INSERT and one event.
const ITEMS_MAX: usize = 500;
/// Longest SKU, in characters, as its column holds it.
const SKU_MAX: usize = 64;
/// Most faults told at once.
pub(crate) const FAULTS_MAX: usize = 20;

/// A valid order, not stored yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewOrder {
    pub(crate) customer_id: i64,
    pub(crate) items: Vec<Item>,
    pub(crate) total_cents: i64,
}

/// A line of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) sku: String,
    pub(crate) qty: i32,
    pub(crate) price_cents: i64,
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Fault {
    /// Its path, `items[0].qty` for one.
    pub(crate) field: String,
    /// What it has to be.
    pub(crate) detail: String,
}

impl NewOrder {
    /// Reads an order, or tells all its faults.
    pub(crate) fn parse(body: &Value) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let order = faults.order(body);
        match order {
            Some(order) if faults.0.is_empty() => Ok(order),
            Some(_) | None => Err(faults.0),
        }
    }
}

/// Whether goods may have that name. Text columns are compared without the spaces at their end.
pub(crate) fn is_sku(text: &str) -> bool {
    !text.is_empty()
        && text.trim() == text
        && text.chars().count() <= SKU_MAX
        && !text.chars().any(char::is_control)
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add<T>(&mut self, field: impl Into<String>, detail: impl Into<String>) -> Option<T> {
        if self.0.len() < FAULTS_MAX {
            self.0.push(Fault {
                field: field.into(),
                detail: detail.into(),
            });
        }
        None
    }

    fn order(&mut self, body: &Value) -> Option<NewOrder> {
        let Some(body) = body.as_object() else {
            return self.add("body", "must be an object with customer_id and items");
        };
        let customer_id = self.whole(body, "", "customer_id", 1, i64::MAX);
        let items = self.items(body.get("items"))?;
        let total = items.iter().try_fold(0_i64, |total, item| {
            total.checked_add(item.price_cents.checked_mul(i64::from(item.qty))?)
        });
        let Some(total_cents) = total else {
            return self.add(
                "items",
                format!("the total must be at most {} cents", i64::MAX),
            );
        };
        Some(NewOrder {
            customer_id: customer_id?,
            items,
            total_cents,
        })
    }

    fn items(&mut self, items: Option<&Value>) -> Option<Vec<Item>> {
        let Some(items) = items else {
            return self.add("items", "is missing");
        };
        let Some(items) = items.as_array() else {
            return self.add("items", "must be an array");
        };
        if items.is_empty() || items.len() > ITEMS_MAX {
            return self.add("items", format!("must have 1 to {ITEMS_MAX} items"));
        }
        // All are looked at, so that all faults are told.
        let read: Vec<Option<Item>> = items
            .iter()
            .enumerate()
            .map(|(index, item)| self.item(index, item))
            .collect();
        read.into_iter().collect()
    }

    fn item(&mut self, index: usize, item: &Value) -> Option<Item> {
        let path = format!("items[{index}]");
        let Some(item) = item.as_object() else {
            return self.add(path, "must be an object with sku, qty and price_cents");
        };
        let sku = self.sku(item, &path);
        let qty = self.whole(item, &path, "qty", 1, i64::from(i32::MAX));
        let price_cents = self.whole(item, &path, "price_cents", 0, i64::MAX);
        let qty = i32::try_from(qty?).ok()?;
        Some(Item {
            sku: sku?,
            qty,
            price_cents: price_cents?,
        })
    }

    fn sku(&mut self, item: &Map<String, Value>, path: &str) -> Option<String> {
        let field = format!("{path}.sku");
        match item.get("sku") {
            None => self.add(field, "is missing"),
            Some(Value::String(sku)) if is_sku(sku) => Some(sku.clone()),
            Some(_) => {
                let detail = format!(
                    "must be a text of 1 to {SKU_MAX} characters, with no white space at its ends, none of control"
                );
                self.add(field, detail)
            }
        }
    }

    fn whole(
        &mut self,
        object: &Map<String, Value>,
        path: &str,
        name: &str,
        least: i64,
        most: i64,
    ) -> Option<i64> {
        let field = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        let Some(value) = object.get(name) else {
            return self.add(field, "is missing");
        };
        match value
            .as_i64()
            .filter(|number| (least..=most).contains(number))
        {
            Some(number) => Some(number),
            None => self.add(
                field,
                format!("must be a whole number from {least} to {most}"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn fields(body: &Value) -> Vec<String> {
        let faults = NewOrder::parse(body).unwrap_err();
        faults.into_iter().map(|fault| fault.field).collect()
    }

    fn with_item(item: Value) -> Value {
        json!({"customer_id": 1, "items": [item]})
    }

    #[test]
    fn a_good_order() {
        let body = json!({"customer_id": 1, "note": "ignored", "items": [
            {"sku": "A-1", "qty": 2, "price_cents": 1500}, {"sku": "Ж", "qty": 1, "price_cents": 0},
        ]});
        let order = NewOrder::parse(&body).unwrap();
        assert_eq!(
            (order.customer_id, order.items.len(), order.total_cents),
            (1, 2, 3000)
        );
    }

    #[test]
    fn every_fault_is_told_with_its_field() {
        assert_eq!(fields(&json!([])), ["body"]);
        assert_eq!(fields(&json!({})), ["customer_id", "items"]);
        assert_eq!(
            fields(&json!({"customer_id": 0, "items": []})),
            ["customer_id", "items"]
        );
        assert_eq!(
            fields(&json!({"customer_id": "1", "items": {}})),
            ["customer_id", "items"]
        );
        assert_eq!(
            fields(&with_item(json!({"sku": "", "qty": 0, "price_cents": -1}))),
            ["items[0].sku", "items[0].qty", "items[0].price_cents"]
        );
        assert_eq!(fields(&with_item(json!(null))), ["items[0]"]);
        assert_eq!(
            fields(&with_item(
                json!({"sku": "A", "qty": 1.5, "price_cents": 1})
            )),
            ["items[0].qty"]
        );
        assert_eq!(
            fields(&with_item(
                json!({"sku": "x".repeat(65), "qty": 1_u64 << 31, "price_cents": u64::MAX})
            )),
            ["items[0].sku", "items[0].qty", "items[0].price_cents"]
        );
        for sku in ["a\u{0}", " a", "a ", " "] {
            assert_eq!(
                fields(&with_item(json!({"sku": sku, "qty": 1, "price_cents": 1}))),
                ["items[0].sku"]
            );
        }
    }

    #[test]
    fn a_total_that_overflows_is_a_fault() {
        assert_eq!(
            fields(&with_item(
                json!({"sku": "A", "qty": 2, "price_cents": i64::MAX})
            )),
            ["items"]
        );
        let dear = json!({"sku": "A", "qty": 1, "price_cents": i64::MAX});
        assert_eq!(
            fields(&json!({"customer_id": 1, "items": [dear, dear]})),
            ["items"]
        );
    }

    #[test]
    fn faults_and_items_are_bounded() {
        let bad = json!({"customer_id": 1, "items": vec![json!({}); ITEMS_MAX]});
        assert_eq!(fields(&bad).len(), FAULTS_MAX);
        let many = json!({"customer_id": 1, "items": vec![json!({}); ITEMS_MAX + 1]});
        assert_eq!(fields(&many), ["items"]);
    }

    proptest! {
        #[test]
        fn a_total_is_the_sum(lines in prop::collection::vec((1_i32..1000, 0_i64..1_000_000), 1..20)) {
            let items: Vec<Value> = lines
                .iter()
                .map(|(qty, price)| json!({"sku": "A", "qty": qty, "price_cents": price}))
                .collect();
            let order = NewOrder::parse(&json!({"customer_id": 1, "items": items})).unwrap();
            let sum: i64 = lines.iter().map(|(qty, price)| i64::from(*qty) * price).sum();
            prop_assert_eq!(order.total_cents, sum);
        }
    }
}
