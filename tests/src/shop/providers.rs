//! The simulated providers, as their operator sees them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

const PATIENT: Duration = Duration::from_secs(30);

/// A charge or a shipment in the providers' own records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The idempotency key of the call that made it.
    pub key: String,
    /// Which order; 0 for what was undone before it was done.
    pub order_id: u64,
    /// In cents; 0 for shipments.
    pub amount_cents: u64,
    /// `CHARGED`, `REFUNDED`, `CREATED`, `CANCELLED` or `VOIDED`.
    pub status: String,
}

/// All that the providers have recorded.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Charges.
    pub payments: Vec<Fact>,
    /// Shipments.
    pub shipments: Vec<Fact>,
}

/// The providers' side doors: how they behave, and what they have recorded.
#[derive(Debug, Clone)]
pub struct Providers {
    http: reqwest::Client,
    base: String,
}

impl Providers {
    pub(super) fn new(address: &str) -> Result<Self> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(PATIENT)
            .build()?;
        Ok(Self {
            http,
            base: format!("http://{address}"),
        })
    }

    /// How `payment` or `shipment` behaves from now on, when something is done or undone.
    ///
    /// # Errors
    /// They do not take it.
    pub async fn mode(&self, side: &str, mode: Value) -> Result<()> {
        let page = format!("{}/modes/{side}", self.base);
        let answer = self.http.put(page).json(&mode).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(
            status == 200,
            "{side} does not take {mode}: {status} {text}"
        );
        Ok(())
    }

    /// Both do what they are asked to.
    ///
    /// # Errors
    /// No answer.
    pub async fn mend(&self) -> Result<()> {
        let none = json!({"do": {"fault": "none"}, "undo": {"fault": "none"}});
        self.mode("payment", none.clone()).await?;
        self.mode("shipment", none).await
    }

    /// What they have recorded.
    ///
    /// # Errors
    /// No answer.
    pub async fn facts(&self) -> Result<Facts> {
        let answer = self
            .http
            .get(format!("{}/ledger", self.base))
            .send()
            .await?;
        let body: Value = answer.json().await?;
        Ok(Facts {
            payments: of_kind(&body, "payments")?,
            shipments: of_kind(&body, "shipments")?,
        })
    }
}

fn of_kind(body: &Value, kind: &str) -> Result<Vec<Fact>> {
    let text = |fact: &Value, field: &str| -> Result<String> {
        let text = fact[field].as_str();
        Ok(text
            .with_context(|| format!("no {field} in {fact}"))?
            .to_owned())
    };
    let all = body[kind].as_array();
    all.with_context(|| format!("no {kind} in {body}"))?
        .iter()
        .map(|fact| {
            Ok(Fact {
                key: text(fact, "key")?,
                order_id: fact["order_id"].as_u64().unwrap_or(0),
                amount_cents: fact["amount_cents"].as_u64().unwrap_or(0),
                status: text(fact, "status")?,
            })
        })
        .collect()
}

impl Facts {
    /// Those of a status.
    pub fn with_status<'a>(facts: &'a [Fact], status: &str) -> Vec<&'a Fact> {
        facts.iter().filter(|fact| fact.status == status).collect()
    }
}
