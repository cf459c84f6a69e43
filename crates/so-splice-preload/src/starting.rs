//! What replaces the program: execve(2) and its kind.
//!
//! Its first act ends all threads, those of the library as well, wherever they are. So the splices
//! are undone before: no byte is then between two sockets, and the next program goes on at the
//! right one.

use std::ffi::c_void;

use crate::marks;
use crate::next::{
    EXECL, EXECLE, EXECLP, EXECV, EXECVE, EXECVEAT, EXECVP, EXECVPE, FEXECVE, Next, Uncancelled,
};

/// Undoes all splices, and returns the function that starts the program. A child of vfork(2) has
/// its parent's memory, and leaves the splices in it alone.
fn undo_all(function: &Next<unsafe extern "C" fn()>) -> *const c_void {
    if marks::are_ours() {
        let _uncancelled = Uncancelled::new();
        so_splice::unsplice_all();
    }
    function.get() as *const c_void
}

/// Defines functions that undo, and then jump to the next library's with the registers and the
/// stack that they were called with: three of them take any number of arguments, which Rust cannot
/// define otherwise.
macro_rules! replace {
    ($($name:ident = $next:ident;)*) => {
        $(
            #[doc = concat!("As ", stringify!($name), "(3), after all splices have been undone.")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                extern "C" fn before() -> *const c_void {
                    undo_all(&$next)
                }
                undo_and_jump!(before)
            }
        )*
    };
}

/// The System V ABI passes integers in six registers, and in `al` how many vector registers hold
/// arguments, which is none here. With the return address, seven words keep the stack at 16 bytes.
#[cfg(target_arch = "x86_64")]
macro_rules! undo_and_jump {
    ($before:ident) => {
        std::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            "push rax",
            "call {before}",
            "mov r11, rax",
            "pop rax",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp r11",
            before = sym $before,
        )
    };
}

/// AAPCS64 passes integers in eight registers; `x30` is the return address, `x16` is free at a
/// call.
#[cfg(target_arch = "aarch64")]
macro_rules! undo_and_jump {
    ($before:ident) => {
        std::arch::naked_asm!(
            "stp x0, x1, [sp, #-80]!",
            "stp x2, x3, [sp, #16]",
            "stp x4, x5, [sp, #32]",
            "stp x6, x7, [sp, #48]",
            "str x30, [sp, #64]",
            "bl {before}",
            "mov x16, x0",
            "ldr x30, [sp, #64]",
            "ldp x6, x7, [sp, #48]",
            "ldp x4, x5, [sp, #32]",
            "ldp x2, x3, [sp, #16]",
            "ldp x0, x1, [sp], #80",
            "br x16",
            before = sym $before,
        )
    };
}

replace! {
    execl = EXECL;
    execle = EXECLE;
    execlp = EXECLP;
    execv = EXECV;
    execve = EXECVE;
    execveat = EXECVEAT;
    execvp = EXECVP;
    execvpe = EXECVPE;
    fexecve = FEXECVE;
}
