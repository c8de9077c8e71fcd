//! Wire messages, the command registry, OpContext, error codes.
