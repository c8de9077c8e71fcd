//! A whole node in the simulator: commands go into its registry, replies come out.

mod fake_set;
mod harness;

mod applier;
mod basics;
mod builds;
mod capped;
mod change_streams;
mod concerns;
mod default_concerns;
mod divided;
mod fail_points;
mod fsync_lock;
mod keys;
mod kinds;
mod member;
mod member_commands;
mod members;
mod own;
mod prepared;
mod reopen;
mod retryable;
mod retryable_durable;
mod series;
mod several;
mod spills;
mod topology;
mod transactions;
mod ttl;
