//! Frames for the program: to the mesh itself, and to groups.

use splice_bpf::types::{MeshPart, mesh_size};

/// How many parts of frames may wait for the program: as many as the kernel's ring holds.
pub(super) const MOST_PARTS: u32 = mesh_size::HEARD / size_of::<MeshPart>() as u32;

/// How many of one member: a quarter, so that one member alone does not fill it.
pub(super) const MEMBER_PARTS: u32 = MOST_PARTS / 4;

/// A frame for the program.
pub(super) struct Heard {
    /// The sender's place.
    pub(super) source: u32,
    pub(super) frame: Vec<u8>,
}

/// How many parts a frame of so many bytes has.
pub(super) fn parts(frame_bytes: usize) -> u64 {
    frame_bytes.div_ceil(mesh_size::PART as usize) as u64
}
