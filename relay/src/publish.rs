//! Where publications go, and what comes back.

pub mod rabbitmq;
