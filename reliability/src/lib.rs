//! Reliability.
