//! Names the library as programs are to ask for it.

fn main() {
    // The number changes when a program that was linked before would not run any more.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsplice.so.1");
    // dlclose(3) must not remove code that the loops' threads run.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
