//! The binlog source.

pub mod decode;
pub mod jsonb;
