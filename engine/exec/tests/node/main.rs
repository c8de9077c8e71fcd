//! A whole node in the simulator: commands go into its registry, replies come out.

mod harness;

mod applier;
mod basics;
mod capped;
mod divided;
mod fail_points;
mod fsync_lock;
mod keys;
mod kinds;
mod member_commands;
mod series;
mod several;
mod spills;
mod topology;
mod ttl;
