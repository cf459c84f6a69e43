//! The weight of a server: its share of new clients, relative to those of the others.

/// The largest weight of a server: as that of HAProxy.
pub(crate) const WEIGHT_MOST: u16 = 256;
