//! What becomes of an order after it was placed.

#[allow(dead_code, reason = "the sagas call providers")]
pub(crate) mod provider;
