//! The Pinion server: reads options, builds the parts, joins them.
