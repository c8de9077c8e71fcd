//! Cores, tasks, timers, files, sockets and the cross-core mesh, with a real and a simulated backend.
