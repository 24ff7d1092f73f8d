//! `app stock`: what can be sold.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Value};
use reliability::mysql::Database;
use reliability::mysql::IsolationLevel::ReadCommitted;
use serde::Serialize;

use crate::load;

/// Rows of one INSERT.
const ROWS: usize = 500;

#[derive(Serialize)]
struct Goods {
    sku: String,
    available: i64,
    reserved: i64,
}

/// Sets what is available of one sku; what is reserved stays.
pub(crate) async fn set(database: &Database, sku: &str, available: u32) -> Result<()> {
    write(database, vec![sku.to_owned()], available)
        .await
        .with_context(|| format!("cannot set the stock of {sku}"))?;
    print(&format!("{available} of {sku} available"))
}

/// Sets what is available of each sku that `app load` orders.
pub(crate) async fn fill(database: &Database, available: u32) -> Result<()> {
    let skus: Vec<String> = load::skus().collect();
    let count = skus.len();
    write(database, skus, available)
        .await
        .context("cannot fill the stock")?;
    print(&format!(
        "{available} available of each of the {count} skus that app load orders"
    ))
}

async fn write(database: &Database, skus: Vec<String>, available: u32) -> Result<()> {
    for skus in skus.chunks(ROWS) {
        let rows = vec!["(?, ?)"; skus.len()].join(", ");
        let values: Vec<Value> = skus
            .iter()
            .flat_map(|sku| -> [Value; 2] { [sku.as_str().into(), available.into()] })
            .collect();
        database
            .transaction(ReadCommitted, async move |tx| {
                tx.exec_drop(
                    format!(
                        "INSERT INTO inventory (sku, available) VALUES {rows} \
                         ON DUPLICATE KEY UPDATE available = VALUES(available)"
                    ),
                    Params::Positional(values.clone()),
                )
                .await
            })
            .await?;
    }
    Ok(())
}

/// Prints all goods.
pub(crate) async fn list(database: &Database, as_json: bool) -> Result<()> {
    let mut conn = database.connection().await?;
    let goods: Vec<Goods> = conn
        .query_map(
            "SELECT sku, available, reserved FROM inventory ORDER BY sku",
            |(sku, available, reserved)| Goods {
                sku,
                available,
                reserved,
            },
        )
        .await
        .with_context(|| format!("cannot list the stock in {}", database.server()))?;
    let mut out = std::io::stdout().lock();
    if as_json {
        let text = serde_json::to_string(&goods).context("cannot write the list")?;
        return writeln!(out, "{text}").context("cannot print");
    }
    let width = goods.iter().map(|goods| goods.sku.chars().count()).max();
    let width = width.unwrap_or_default().max(3);
    writeln!(
        out,
        "{:width$}  {:>10}  {:>10}",
        "SKU", "AVAILABLE", "RESERVED"
    )
    .context("cannot print")?;
    for Goods {
        sku,
        available,
        reserved,
    } in goods
    {
        writeln!(out, "{sku:width$}  {available:>10}  {reserved:>10}").context("cannot print")?;
    }
    Ok(())
}

fn print(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}").context("cannot print")
}
