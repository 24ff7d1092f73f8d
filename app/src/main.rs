//! The order service: one binary for its API, its worker, and what one needs to try them out.
//!
//! `api` writes an order and its outbox row in one transaction; the relay publishes the row; `worker` consumes the
//! message, once, acknowledges it after its own commit, and runs the saga that the order asks for.

mod amqp;
mod api;
mod cli;
mod fulfilment;
mod http;
mod load;
mod metrics;
mod migrate;
mod orders;
mod providers;
mod rfc3339;
mod run;
mod sagas;
mod stock;
mod target;
mod telemetry;
mod worker;

use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = match cli::parse() {
        Ok(command) => command,
        Err(wrong) => {
            // Nothing can be done about a closed standard error.
            wrong.print().ok();
            return ExitCode::from(u8::try_from(wrong.exit_code()).unwrap_or(2));
        }
    };
    match run::run(command) {
        Ok(code) => code,
        Err(error) => {
            writeln!(
                std::io::stderr().lock(),
                "app: {}",
                telemetry::chain(error.as_ref())
            )
            .ok();
            ExitCode::FAILURE
        }
    }
}
