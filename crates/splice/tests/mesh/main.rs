//! The mesh: whole frames from member to member, by the kernel.

mod delivery;
mod every_frame;
mod limits;
mod program;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../support/random.rs"]
mod random;
mod stage;
mod variants;
