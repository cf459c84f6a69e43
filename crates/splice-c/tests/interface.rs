//! The interface as C sees it: the header, the symbols, and what the functions do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use netlab::{C_SOURCES, Scratch, built, present, program};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Set to `write`, it brings the header up to date.
const VARIABLE: &str = "SPLICE_HEADER";

fn is_there(name: &str, package: &str) -> bool {
    let missing = program(name).is_none();
    present(
        name,
        missing.then(|| format!("no {name} (apt install {package})")),
    )
}

fn libraries() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| built(&["splice-c"]))
}

#[test]
fn the_header_is_what_the_sources_say() {
    let config = cbindgen::Config::from_file(format!("{CRATE}/cbindgen.toml")).expect("a file");
    let mut header = Vec::new();
    cbindgen::Builder::new()
        .with_crate(CRATE)
        .with_config(config)
        .generate()
        .expect("a header")
        .write(&mut header);
    let path = format!("{CRATE}/include/splice.h");
    if std::env::var_os(VARIABLE).is_some_and(|value| value == "write") {
        fs::write(&path, &header).expect("it is written");
    }
    let checked_in = fs::read(&path).expect("a header");
    assert!(
        header == checked_in,
        "include/splice.h is out of date; run the tests once with {VARIABLE}=write"
    );
}

#[test]
fn the_header_is_c_and_cpp() {
    if !is_there("cc", "build-essential") {
        return;
    }
    for standard in ["c99", "c11", "gnu17"] {
        compile(&["-x", "c", &format!("-std={standard}")]);
    }
    if is_there("c++", "build-essential") {
        compile(&["-x", "c++", "-std=c++17"]);
    }
}

/// Compiles a program that only includes the header, and the one that has a function `splice`, too.
fn compile(arguments: &[&str]) {
    let mut command = Command::new("cc");
    command
        .args(arguments)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg(format!("-I{CRATE}/include"))
        .args(["-fsyntax-only", "-"])
        .stdin(Stdio::piped());
    let mut compiler = command.spawn().expect("cc starts");
    let source = b"#define _GNU_SOURCE 1\n#include <fcntl.h>\n#include <splice.h>\nint main(void) \
                   { splice_pair *pair = NULL; splice_release(pair); return SPLICE_RUNNING; }\n";
    let mut input = compiler.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, source).expect("it reads");
    drop(input);
    assert!(compiler.wait().expect("it ends").success(), "{command:?}");
}

#[test]
fn the_library_exports_what_is_listed_and_nothing_else() {
    if !is_there("nm", "build-essential") {
        return;
    }
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=just-symbols"])
        .arg(libraries().join("libsplice.so"))
        .output()
        .expect("nm starts");
    let exported = String::from_utf8(output.stdout).expect("text");
    let listed = fs::read_to_string(format!("{CRATE}/include/symbols")).expect("a list");
    assert_eq!(exported, listed);
}

#[test]
fn the_library_has_the_name_that_programs_ask_for() {
    if !is_there("readelf", "build-essential") {
        return;
    }
    let output = Command::new("readelf")
        .arg("--dynamic")
        .arg(libraries().join("libsplice.so"))
        .output()
        .expect("readelf starts");
    let dynamic = String::from_utf8(output.stdout).expect("text");
    assert!(dynamic.contains("[libsplice.so.1]"), "{dynamic}");
    // dlclose(3) would leave its threads without code.
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

/// A program in C that exits with 0, or says in one line what is wrong.
fn passes(name: &str) {
    if !is_there("cc", "build-essential") {
        return;
    }
    let scratch = Scratch::new("interface").expect("a directory");
    let program = scratch.path().join(name);
    let library = libraries();
    // What `make install` makes of it.
    std::os::unix::fs::symlink(
        library.join("libsplice.so"),
        scratch.path().join("libsplice.so.1"),
    )
    .expect("a link");
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-I{CRATE}/include"))
        .arg("-o")
        .arg(&program)
        .arg(format!("-I{C_SOURCES}"))
        .arg(format!("{C_SOURCES}/ends.c"))
        .arg(format!("{CRATE}/tests/c/{name}.c"))
        .arg(library.join("libsplice.so"))
        .arg("-pthread")
        .status();
    assert!(compiled.expect("cc starts").success());
    let output = Command::new(&program)
        .env("LD_LIBRARY_PATH", scratch.path())
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}: {said}", output.status);
}

#[test]
fn one_way() {
    passes("one_way");
}

#[test]
fn pairs() {
    passes("pairs");
}

#[test]
fn undoing() {
    passes("undoing");
}

#[test]
fn processes() {
    passes("processes");
}

#[test]
fn threads() {
    passes("threads");
}
