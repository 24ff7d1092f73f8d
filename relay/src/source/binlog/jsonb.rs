//! Binary JSON to text (pure).
