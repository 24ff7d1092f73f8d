//! The relay.

pub mod event;
pub mod publish;
pub mod route;
pub mod source;
