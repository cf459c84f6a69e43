//! `libsplice`: joins two sockets from C. so_splice(3) and splice_join(3) have the user's view; the
//! comments of the functions here become those of `splice.h`.
//!
//! Symbols have no versions: rustc gives the linker a version script of its own, which cannot be
//! combined with another. A change that breaks programs changes the library's name instead
//! (`build.rs`).
#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header says what a caller owes"
)]

pub mod one_way;
pub mod pair;

mod ending;
pub mod options;

pub mod fault;

/// The version of this interface. It grows when functions or fields are added.
pub const SPLICE_ABI_VERSION: u32 = 1;

/// The version of the interface that the library has: SPLICE_ABI_VERSION of the header that it was
/// built with.
#[unsafe(no_mangle)]
pub extern "C" fn splice_abi_version() -> u32 {
    SPLICE_ABI_VERSION
}
