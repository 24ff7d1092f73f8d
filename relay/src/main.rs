//! The relay.
fn main() {}
