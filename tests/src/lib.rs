//! Fixtures for the end-to-end tests and the benchmark.
//!
//! ```text
//!  writers ──tx──▶ Database (MySQL or MariaDB) ──▶ RelayProcess ──(Proxy)──▶ Broker ──▶ Inbox
//!     └──────────────▶ Ledger: what was committed, in order ──────verdict────────────────┘
//! ```
//!
//! A test runs in a [`Scene`](scene::Scene): a database, an exchange and a folder of its own, so that
//! tests run side by side on the same servers. The relay is a process started from its binary.
//! Nothing here sleeps for luck: everything waits on a condition with a deadline ([`until`](until::until)),
//! and no deadline is an assertion about speed.

pub mod both;
pub mod broker;
pub mod database;
pub mod garbler;
pub mod grants;
pub mod inbox;
pub mod ledger;
pub mod metrics;
pub mod port;
pub mod private;
pub mod process;
pub mod program;
pub mod proxy;
pub mod relay;
pub mod scene;
pub mod servers;
pub mod shop;
pub mod until;
pub mod writers;
