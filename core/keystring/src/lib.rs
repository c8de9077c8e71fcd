//! KeyString version 1 encoder and decoder, Ordering and TypeBits.
