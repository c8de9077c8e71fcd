//! The durable and in-memory catalog, key generation and index builds.
