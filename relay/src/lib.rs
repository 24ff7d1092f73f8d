//! The relay: tails the MySQL binlog for rows inserted into an outbox table and publishes each to RabbitMQ.
//!
//! ```text
//! source ──▶ decode ──▶ route ──▶ publish ──▶ confirm ──▶ checkpoint
//! (binlog)              │ persistent, mandatory, confirms │ contiguous, fenced
//!                       ▼                                 ▼
//!                    RabbitMQ                 relay_checkpoints, status = 'PUBLISHED'
//! ```
//!
//! # Guarantee
//! Every committed row is published at least once: the checkpoint only covers transactions whose every row is
//! confirmed by the broker as routed, or durably dead-lettered. Events of one aggregate reach the broker in commit
//! order, also across retries. A consumer that remembers the `message_id`s it has seen gets each event once.
//!
//! # Modules
//! Data flows one way, and only [`pipeline`] sees every stage. `config`, `event`, `position`, `route`, `window` and
//! `source::binlog::decode` are pure: no sockets, no clock of their own.
//!
//! # Glossary
//! - **position**: how far the binlog is dealt with: a GTID set, MariaDB's GTID list, or file and offset.
//! - **transaction**: what lies between a GTID event and a commit; positions fall only on its end.
//! - **publication**: a routed message. **confirm**: the broker's ack or nack of it. **return**: an unroutable one.
//! - **in flight**: published and not yet confirmed.
//! - **watermark**: the highest position with everything before it confirmed. **checkpoint**: a persisted watermark.
//! - **lease**: leave to publish, as long as the server holds a lock for this relay. **standby**: a relay that waits for it.
//! - **epoch**: rises with each take-over of a checkpoint, and fences whoever held it before.
//! - **dead letter**: an event that was given up, kept with the reason.
//! - **drain**: finish what is in flight, take in nothing.

pub mod catalogue;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod dead_letter;
pub mod envelope;
pub mod error;
pub mod event;
pub mod health;
pub mod http;
pub mod leader;
pub mod ledger;
pub mod marker;
pub mod metrics;
pub mod mysql;
pub mod pipeline;
pub mod position;
pub mod preflight;
pub mod publish;
pub mod relay;
pub mod retention;
pub mod route;
pub mod source;
pub mod status;
pub mod table;
pub mod telemetry;
pub mod tls;
pub mod window;
