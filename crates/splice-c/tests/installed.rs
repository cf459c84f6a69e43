//! `make install-libraries` and `make uninstall`: the files, the manual pages, and programs that use the library.

mod staged;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::staged::{PREFIX, Staged, is_there, said, written};

const SO_SPLICE: [&str; 6] = [
    "so_splice",
    "so_splice_as",
    "so_splice_bytes",
    "so_splice_error",
    "so_splice_fd",
    "so_unsplice",
];
const SPLICE_JOIN: [&str; 10] = [
    "splice_join",
    "splice_abi_version",
    "splice_counters",
    "splice_detach",
    "splice_engine",
    "splice_fd",
    "splice_release",
    "splice_strerror",
    "splice_undo",
    "splice_wait",
];
const PAGES: [&str; 3] = [
    "man3/so_splice.3",
    "man3/splice_join.3",
    "man7/libso_splice.7",
];

/// Sends a line to itself through a pair, so that the library has to work and not only to load.
const PROGRAM: &str = r#"
#include <assert.h>
#include <splice.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
	int in[2], out[2];
	char line[64] = "";
	splice_pair *pair;
	struct splice_result result;

	assert(splice_abi_version() == SPLICE_ABI_VERSION);
	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, in) == 0);
	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, out) == 0);
	if (splice_join(in[1], out[0], NULL, &pair) == -1) {
		fprintf(stderr, "%s\n", splice_strerror());
		return 1;
	}
	assert(write(in[0], "through the library\n", 20) == 20);
	assert(read(out[1], line, sizeof line) == 20);
	assert(splice_undo(pair, &result) == 0);
	assert(result.a_to_b == 20 && result.b_to_a == 0 && result.reason == SPLICE_UNDONE);
	splice_release(pair);
	fputs(line, stdout);
	return 0;
}
"#;

/// The files below, with their permissions.
fn files(directory: &Path, below: &str, found: &mut BTreeMap<String, u32>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let metadata = entry.path().metadata().expect("its metadata");
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        let mode = metadata.permissions().mode() & 0o7777;
        if metadata.is_dir() {
            assert_eq!(mode, 0o755, "{name}");
            files(&entry.path(), &format!("{name}/"), found);
        } else {
            found.insert(name, mode);
        }
    }
}

fn installed(staged: &Staged) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    files(&staged.prefix(), "", &mut found);
    found
}

#[test]
fn everybody_can_read_what_is_installed_and_uninstall_removes_it() {
    let Some(staged) = Staged::new() else {
        return;
    };
    let names = SO_SPLICE.iter().chain(&SPLICE_JOIN);
    let mut expected: BTreeMap<_, _> = names
        .map(|name| (format!("share/man/man3/{name}.3"), 0o644))
        .collect();
    for (file, mode) in [
        ("include/splice.h", 0o644),
        ("lib/libsplice.so.1", 0o755),
        ("lib/libsplice.so", 0o755),
        ("lib/libsplice.a", 0o644),
        ("lib/libso_splice.so", 0o755),
        ("lib/pkgconfig/libsplice.pc", 0o644),
        ("share/man/man7/libso_splice.7", 0o644),
    ] {
        expected.insert(file.into(), mode);
    }
    assert_eq!(installed(&staged), expected);
    let link = fs::read_link(staged.lib().join("libsplice.so")).expect("a link");
    assert_eq!(link, Path::new("libsplice.so.1"));

    staged.make("uninstall");
    assert_eq!(installed(&staged), BTreeMap::new());
}

#[test]
fn pkg_config_knows_the_version_and_the_directories() {
    let Some(staged) = Staged::new() else {
        return;
    };
    assert_eq!(
        flags(&staged, &["--modversion"]),
        [env!("CARGO_PKG_VERSION")]
    );
    let file = staged.lib().join("pkgconfig/libsplice.pc");
    let text = fs::read_to_string(file).expect("libsplice.pc");
    assert!(text.starts_with(&format!("prefix={PREFIX}\n")), "{text}");
    assert!(!text.contains('@'), "{text}");
    let include = format!("-I{}", staged.prefix().join("include").display());
    assert_eq!(flags(&staged, &["--cflags"]), [include]);
    let lib = format!("-L{}", staged.lib().display());
    assert_eq!(flags(&staged, &["--libs"]), [lib.as_str(), "-lsplice"]);
}

fn flags(staged: &Staged, arguments: &[&str]) -> Vec<String> {
    let mut pkg_config = Command::new("pkg-config");
    let said = said(
        staged
            .with_pkg_config(&mut pkg_config)
            .args(arguments)
            .arg("libsplice"),
    );
    said.split_whitespace().map(Into::into).collect()
}

/// Compiles [`PROGRAM`].
fn compiled(staged: &Staged, name: &str, libraries: &[String]) -> PathBuf {
    let source = staged.path("program.c");
    fs::write(&source, PROGRAM).expect("the source");
    let program = staged.path(name);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .arg(&program)
        .args(flags(staged, &["--cflags"]))
        .arg(source)
        .args(libraries);
    // The linker warns of static programs that look up names or users.
    written(&mut cc);
    program
}

#[test]
fn a_program_runs_with_the_shared_library() {
    let Some(staged) = Staged::new() else {
        return;
    };
    let program = compiled(&staged, "dynamic", &flags(&staged, &["--libs"]));
    let line = said(Command::new(program).env("LD_LIBRARY_PATH", staged.lib()));
    assert_eq!(line, "through the library\n");
}

#[test]
fn a_program_runs_with_the_static_library() {
    let Some(staged) = Staged::new() else {
        return;
    };
    let mut libraries = flags(&staged, &["--libs", "--static"]);
    let library = libraries.iter_mut().find(|flag| *flag == "-lsplice");
    *library.expect("the library") = "-l:libsplice.a".into();
    let program = compiled(&staged, "partly", &libraries);
    assert_eq!(said(&mut Command::new(program)), "through the library\n");

    libraries.push("-static".into());
    let program = compiled(&staged, "wholly", &libraries);
    assert_eq!(said(&mut Command::new(program)), "through the library\n");
}

#[test]
fn groff_accepts_the_pages() {
    let Some(staged) = Staged::new() else {
        return;
    };
    let directory = staged.prefix().join("share/man");
    let read = |page: &str| fs::read_to_string(directory.join(page)).expect("a page");
    for (page, names) in [
        ("so_splice", SO_SPLICE.as_slice()),
        ("splice_join", &SPLICE_JOIN),
    ] {
        let text = read(&format!("man3/{page}.3"));
        for name in names {
            assert!(text.contains(&format!("{name}(")), "no {name} in {page}(3)");
            if *name != page {
                let link = read(&format!("man3/{name}.3"));
                assert_eq!(link, format!(".so man3/{page}.3\n"));
            }
        }
        for section in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "RETURN VALUE",
            "ERRORS",
            "EXAMPLES",
        ] {
            assert!(
                text.contains(&format!(".SH {section}\n")),
                "no {section} in {page}(3)"
            );
        }
    }
    if !is_there("groff", "groff-base") {
        return;
    }
    for page in PAGES {
        // -z: only complain; -ww: about everything.
        let mut groff = Command::new("groff");
        groff
            .args(["-t", "-man", "-Tutf8", "-ww", "-z"])
            .arg(directory.join(page));
        assert_eq!(said(&mut groff), "");
    }
}
