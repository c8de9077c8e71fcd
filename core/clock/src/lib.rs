//! Timestamp, OpTime, the vector clock and its signing.
