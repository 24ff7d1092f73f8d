//! What is ordered.

use anyhow::Result;
use tests::database::Database;

/// Of each: more than is ever ordered.
const AVAILABLE: u64 = 1_000_000;

/// The name of goods `number`.
pub(crate) fn sku(number: u64) -> String {
    format!("sku-{number}")
}

/// Puts that many goods into the stock.
pub(crate) async fn fill(database: &Database, goods: u64) -> Result<()> {
    let rows: Vec<String> = (0..goods)
        .map(|number| format!("('{}', {AVAILABLE})", sku(number)))
        .collect();
    let insert = format!(
        "INSERT INTO inventory (sku, available) VALUES {}",
        rows.join(", ")
    );
    database.execute(&insert).await
}
