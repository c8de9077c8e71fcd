//! The connection layer: from sockets to registered commands and back.
