//! The saga engine.

#[path = "saga/crash.rs"]
mod crash;
#[path = "saga/proxy.rs"]
mod proxy;
#[path = "saga/rules.rs"]
mod rules;
#[path = "saga/workers.rs"]
mod workers;
#[path = "saga/world.rs"]
mod world;
