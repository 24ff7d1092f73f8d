//! A client of the API.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use reqwest::RequestBuilder;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::until::{Seen, until};

/// What each thing costs, in cents.
pub const PRICE: u64 = 1500;

/// Longest wait for an answer; the API itself gives up earlier.
const PATIENT: Duration = Duration::from_secs(60);

/// The body of an order for so many of each sku.
pub fn order(items: &[(&str, u64)]) -> Value {
    let items: Vec<Value> = items
        .iter()
        .map(|(sku, qty)| json!({"sku": sku, "qty": qty, "price_cents": PRICE}))
        .collect();
    json!({"customer_id": 7, "items": items})
}

/// What the API answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: String,
}

impl Answer {
    /// Asserts the status.
    ///
    /// # Errors
    /// It is another.
    pub fn is(&self, status: u16) -> Result<&Self> {
        ensure!(self.status == status, "expected {status}: {self:?}");
        Ok(self)
    }

    /// Asserts an error of that status, in the form of RFC 9457.
    ///
    /// # Errors
    /// It is something else.
    pub fn is_problem(&self, status: u16) -> Result<Value> {
        self.is(status)?;
        ensure!(
            self.header("content-type") == Some("application/problem+json"),
            "no problem+json: {self:?}"
        );
        let body = self.json()?;
        ensure!(body["status"] == status, "another status: {self:?}");
        Ok(body)
    }

    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Whether it is a stored answer.
    pub fn replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Its body as JSON.
    ///
    /// # Errors
    /// It is none.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("no JSON: {self:?}"))
    }

    /// The id of the order that was placed.
    ///
    /// # Errors
    /// None was.
    pub fn id(&self) -> Result<u64> {
        ensure!(matches!(self.status, 201 | 202), "no order: {self:?}");
        self.json()?["id"]
            .as_u64()
            .with_context(|| format!("no id: {self:?}"))
    }
}

/// A client.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
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

    /// `POST /orders` with nothing in it yet.
    pub fn request(&self) -> RequestBuilder {
        self.http.post(format!("{}/orders", self.base))
    }

    /// `POST /orders`, with that body under that key.
    ///
    /// # Errors
    /// No answer.
    pub async fn place(&self, key: &str, body: &Value) -> Result<Answer> {
        let request = self.request().header("Idempotency-Key", key).json(body);
        self.send(request).await
    }

    /// Sends a request.
    ///
    /// # Errors
    /// No answer.
    pub async fn send(&self, request: RequestBuilder) -> Result<Answer> {
        let response = request.send().await?;
        Ok(Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.text().await?,
        })
    }

    /// `GET` of a path.
    ///
    /// # Errors
    /// No answer.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.send(self.http.get(format!("{}{path}", self.base)))
            .await
    }

    /// Waits until the API shows an order with that status.
    ///
    /// # Errors
    /// The deadline passed, or it came to another end.
    pub async fn sees(&self, id: u64, status: &str) -> Result<Value> {
        until(&format!("order {id} to be {status}"), async || {
            let shown = self.get(&format!("/orders/{id}")).await?.is(200)?.json()?;
            let found = shown["status"].as_str().unwrap_or_default();
            ensure!(
                found == status || found == "CREATED",
                "order {id} is {found}, not {status}: {shown}"
            );
            Ok(if found == status {
                Seen::Yes(shown)
            } else {
                Seen::NotYet(shown.to_string())
            })
        })
        .await
    }
}
