//! The pages, over HTTP.

use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};

use crate::providers::testing::Providers;

/// Status and body of an answer.
async fn ask(request: RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let kind = answer.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(kind.contains("problem"), status >= 400, "{status} {kind}");
    (status, answer.json().await.unwrap())
}

#[tokio::test]
async fn requests_that_are_not_valid_are_answered_with_what_is_wrong() {
    let providers = Providers::start().await;
    let http = Client::new();
    let page = |path: &str| format!("{}{path}", providers.base);
    let (payment, shipment) = (
        json!({"order_id": 1, "amount_cents": 1}),
        json!({"order_id": 1}),
    );
    let post = |path: &str, body: &Value| {
        http.post(page(path))
            .header("Idempotency-Key", "k")
            .json(body)
    };
    let put = |path: &str, body: &Value| http.put(page(path)).json(body);
    for (request, status, part) in [
        (
            http.post(page("/payments")).json(&payment),
            400,
            "Idempotency-Key is missing",
        ),
        (
            http.post(page("/payments/k/refund")),
            400,
            "Idempotency-Key is missing",
        ),
        (
            post("/payments", &payment)
                .header("Idempotency-Key", "")
                .json(&shipment),
            400,
            "amount_cents",
        ),
        (post("/shipments", &payment), 400, "amount_cents"),
        (post("/payments", &json!({"order_id": -1})), 400, "-1"),
        (
            put("/modes/payment", &json!({"do": {"fault": "explode"}})),
            400,
            "explode",
        ),
        (put("/modes/other", &json!({})), 404, "/modes/shipment"),
        (http.get(page("/payments")), 405, "method"),
        (http.get(page("/nothing")), 404, "no such page"),
    ] {
        let (got, body) = ask(request).await;
        let detail = body["detail"].as_str().unwrap();
        assert_eq!(got, status, "{detail}");
        assert!(detail.contains(part), "{detail}");
    }
    assert_eq!(
        providers.ledger().await,
        json!({"payments": [], "shipments": []})
    );
}

#[tokio::test]
async fn both_providers_do_and_undo_under_keys_of_any_form() {
    let providers = Providers::start().await;
    let http = Client::new();
    let post = |path: &str, key: &str, body: &Value| {
        let page = format!("{}{path}", providers.base);
        ask(http.post(page).header("Idempotency-Key", key).json(body))
    };
    let key = "7:a/b%:do";
    let in_path = "7%3Aa%2Fb%25%3Ado";
    for (page, undo, body, id, words) in [
        (
            "/payments",
            "refund",
            json!({"order_id": 7, "amount_cents": 1500}),
            "pay-1",
            ["CHARGED", "REFUNDED"],
        ),
        (
            "/shipments",
            "cancel",
            json!({"order_id": 7}),
            "ship-1",
            ["CREATED", "CANCELLED"],
        ),
    ] {
        for _ in 0..2 {
            let (status, done) = post(page, key, &body).await;
            assert_eq!(
                (status, &done["id"], &done["status"]),
                (201, &json!(id), &json!(words[0]))
            );
        }
        let undo = format!("{page}/{in_path}/{undo}");
        for _ in 0..2 {
            let (status, undone) = post(&undo, "7:undo", &json!({})).await;
            assert_eq!((status, &undone["status"]), (200, &json!(words[1])));
        }
    }
    let of = |order| ask(http.get(format!("{}/ledger?order_id={order}", providers.base)));
    let payment = json!({"key": key, "id": "pay-1", "order_id": 7, "amount_cents": 1500, "status": "REFUNDED"});
    let shipment = json!({"key": key, "id": "ship-1", "order_id": 7, "status": "CANCELLED"});
    assert_eq!(
        of(7).await,
        (200, json!({"payments": [payment], "shipments": [shipment]}))
    );
    assert_eq!(of(8).await, (200, json!({"payments": [], "shipments": []})));
}

#[tokio::test]
async fn a_mode_of_one_side_leaves_the_others_alone() {
    let providers = Providers::start().await;
    let http = Client::new();
    let change = json!({"undo": {"fault": "decline", "share": 0.5, "times": 3}});
    let page = format!("{}/modes/shipment", providers.base);
    let (_, changed) = ask(http.put(page).json(&change)).await;
    let (_, shown) = ask(http.get(format!("{}/modes", providers.base))).await;
    assert_eq!(changed, shown);
    let plain = json!({"fault": "none", "share": 1.0, "times": null, "latency_ms": 0});
    let expected = json!({
        "payment": {"do": plain, "undo": plain},
        "shipment": {"do": plain, "undo": {"fault": "decline", "share": 0.5, "times": 3, "latency_ms": 0}},
    });
    assert_eq!(shown, expected);
}
