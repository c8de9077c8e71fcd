//! Rings, partitions, page files, checkpoint, recovery and units of work.
