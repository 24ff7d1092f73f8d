//! `app load`: orders over HTTP, and how long they took.

mod client;
mod report;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use reqwest::Client;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use crate::cli::LoadArgs;
use crate::target::Target;
use client::{Errand, Progress};
use report::Tally;

/// Longest wait for a connection, and for an answer.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(35);

/// The goods that are ordered.
pub(crate) fn skus() -> impl Iterator<Item = String> {
    client::skus()
}

/// Places the orders and prints what happened; exit code 1 if any failed.
pub(crate) async fn run(args: LoadArgs, stop: CancellationToken) -> Result<ExitCode> {
    let http = Client::builder()
        .connect_timeout(CONNECT)
        .timeout(ANSWER)
        .pool_max_idle_per_host(usize::try_from(args.clients).unwrap_or(usize::MAX))
        .tcp_nodelay(true)
        .no_proxy()
        .build()
        .context("cannot set up the HTTP client")?;
    look(&http, &args.url).await?;
    let progress = Arc::new(Progress::default());
    let started = Instant::now();
    let errand = Arc::new(Errand {
        http,
        page: args.url.page("/orders")?,
        orders: args.orders,
        rate: args.rate,
        started,
        progress: progress.clone(),
        stop: stop.clone(),
    });
    let mut clients = JoinSet::new();
    for _ in 0..args.clients.min(args.orders) {
        clients.spawn(errand.clone().run());
    }
    let showing = tokio::spawn(show(progress, args.orders, started));
    let mut tally = Tally::default();
    while let Some(ended) = clients.join_next().await {
        tally.add(ended.context("a client failed")?);
    }
    let took = started.elapsed();
    showing.abort();
    showing.await.ok();
    if std::io::stderr().is_terminal() {
        // The line of progress makes room for the report.
        std::io::stderr().lock().write_all(b"\r\x1b[K").ok();
    }
    let report = tally.report(args.orders, took);
    let mut out = std::io::stdout().lock();
    if args.json {
        let text = serde_json::to_string(&report).context("cannot write the report")?;
        writeln!(out, "{text}").context("cannot print")?;
    } else {
        write!(out, "{report}").context("cannot print")?;
    }
    Ok(if report.placed == args.orders {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Asks whether it is the API that answers.
async fn look(http: &Client, target: &Target) -> Result<()> {
    match http.get(target.page("/livez")?).send().await {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => {
            bail!(
                "{target}/livez answers {}: is this `app api`?",
                answer.status()
            )
        }
        Err(error) if error.is_connect() => Err(anyhow!(
            "nothing answers at {target}: is `app api` running?"
        )),
        Err(error) => Err(error.without_url()).with_context(|| format!("{target} does not answer")),
    }
}

/// Shows how far it is, until aborted: in place on a terminal, else a line now and then.
async fn show(progress: Arc<Progress>, orders: u64, started: Instant) {
    let terminal = std::io::stderr().is_terminal();
    let mut ticks = interval(Duration::from_millis(if terminal { 200 } else { 5000 }));
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let (placed, failed) = progress.read();
        let rate = report::rate(placed, started.elapsed());
        let (start, end) = if terminal {
            ("\r", "\x1b[K")
        } else {
            ("", "\n")
        };
        let line = format!("{start}{placed} of {orders} placed, {failed} failed, {rate:.0}/s{end}");
        // Progress is a courtesy; a closed standard error does not matter.
        std::io::stderr().lock().write_all(line.as_bytes()).ok();
    }
}
