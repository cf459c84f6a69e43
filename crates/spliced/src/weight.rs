//! The weight of a server: its share of new clients, relative to those of the others.

/// The largest weight of a server: as that of HAProxy.
pub(crate) const WEIGHT_MOST: u16 = 256;

/// # Errors
/// If it is none.
pub(crate) fn weight(text: &str) -> Result<u16, String> {
    let weight = text.parse().ok().filter(|weight| *weight <= WEIGHT_MOST);
    weight.ok_or_else(|| {
        format!(
            "a weight is a number from 0 to {WEIGHT_MOST}, relative to those of the other servers"
        )
    })
}
