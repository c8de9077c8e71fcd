//! Raw BSON views, validation of untrusted bytes, comparison order and extended JSON.
