//! Binlog events from bytes (pure).
