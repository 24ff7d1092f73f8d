//! What a source yields.

pub mod binlog;
