//! What is possible here, tried out.

use crate::engine::sockmap;
use crate::error::Result;

/// How many entries the process's maps of sockets hold: sources, targets, indices.
///
/// # Errors
/// Where the engine `sockmap` cannot be used.
pub fn sockmap_entries() -> Result<[usize; 3]> {
    sockmap::entries()
}
