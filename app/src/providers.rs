//! `app providers`: a payment and a shipping provider to try sagas on, over real HTTP, with faults at the flick of a switch.

mod book;
mod journal;
mod mode;
mod serve;
mod wire;

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::http;
use serve::Counter;

/// Serves both providers until `stop`; with `state`, what they did is kept in that file.
pub(crate) async fn run(
    address: SocketAddr,
    state: Option<&Path>,
    stop: CancellationToken,
) -> Result<()> {
    let counter = Counter::open(state, stop.clone())?;
    let listener = http::bind(address, "APP_PROVIDERS_ADDR").await?;
    match state {
        Some(path) => info!(state = %path.display(), "simulating payment and shipping providers"),
        None => info!("simulating payment and shipping providers; a restart forgets what they did"),
    }
    let router = serve::router(counter);
    serve::serve(listener, router, stop).await
}

#[cfg(test)]
pub(crate) mod testing {
    //! The providers in a test, on a port of their own.

    use axum::Router;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;
    use tokio_util::sync::{CancellationToken, DropGuard};

    use super::serve::{self, Counter};

    /// Providers that serve until dropped.
    pub(crate) struct Providers {
        pub(crate) base: String,
        stop: Option<DropGuard>,
        serving: JoinHandle<anyhow::Result<()>>,
    }

    impl Providers {
        pub(crate) async fn start() -> Self {
            Self::with(|router| router).await
        }

        /// With something around their router.
        pub(crate) async fn with(wrap: impl FnOnce(Router) -> Router) -> Self {
            let stop = CancellationToken::new();
            let counter = Counter::open(None, stop.clone()).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let base = format!("http://{}", listener.local_addr().unwrap());
            let router = wrap(serve::router(counter));
            let serving = tokio::spawn(serve::serve(listener, router, stop.clone()));
            let stop = Some(stop.drop_guard());
            Self {
                base,
                stop,
                serving,
            }
        }

        /// Stops, and says how the serving ended.
        pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
            self.stop.take();
            self.serving.await?
        }

        pub(crate) async fn mode(&self, service: &str, change: serde_json::Value) {
            let page = format!("{}/modes/{service}", self.base);
            let answer = reqwest::Client::new().put(page).json(&change).send().await;
            assert_eq!(answer.unwrap().status(), 200, "{change}");
        }

        pub(crate) async fn ledger(&self) -> serde_json::Value {
            let page = format!("{}/ledger", self.base);
            reqwest::get(page).await.unwrap().json().await.unwrap()
        }
    }
}
