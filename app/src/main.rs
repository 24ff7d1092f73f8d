//! The order app.
fn main() {}
