//! Executes commands and plans over partitions: data commands, cursors, sessions, diagnostics.
