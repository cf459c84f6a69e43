//! The libraries of this build, installed into a directory of the test as `make install-libraries` does it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use netlab::{Scratch, built, present, program};

pub(crate) const PREFIX: &str = "/opt/libsplice";
/// Of the make and the cargo that run the tests.
const INHERITED: [&str; 5] = [
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "MAKEFILES",
    "CARGO_MAKEFLAGS",
];
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A root directory into which the libraries have been installed.
pub(crate) struct Staged {
    scratch: Scratch,
}

impl Staged {
    /// `None` where something is missing.
    pub(crate) fn new() -> Option<Self> {
        for (name, package) in [
            ("make", "make"),
            ("cc", "build-essential"),
            ("pkg-config", "pkgconf"),
        ] {
            if !is_there(name, package) {
                return None;
            }
        }
        let scratch = Scratch::new("libsplice").expect("a directory");
        let release = scratch.path().join("target/release");
        fs::create_dir_all(&release).expect("a directory");
        let libraries = built(&["splice-c", "so-splice-preload"]);
        for library in ["libsplice.so", "libsplice.a", "libso_splice.so"] {
            symlink(libraries.join(library), release.join(library)).expect("a link");
        }
        let staged = Self { scratch };
        staged.make("install-libraries");
        Some(staged)
    }

    /// Runs `make goal` with what has been built already, as somebody who hides new files.
    pub(crate) fn make(&self, goal: &str) {
        let target = self.path("target");
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "umask 077; exec \"$@\"",
                "sh",
                "make",
                "-C",
                ROOT,
                goal,
            ])
            // In MAKEFLAGS, PREFIX and DESTDIR would reach the make that builds libbpf for cargo.
            .arg("CARGO=sh -c '[ -z \"$${MAKEFLAGS+set}\" ]'")
            .arg(format!("PREFIX={PREFIX}"))
            .arg(format!("TARGET={}", target.display()))
            .arg(format!("DESTDIR={}", self.root().display()));
        said(&mut command);
    }

    /// A file of the test's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn root(&self) -> PathBuf {
        self.path("root")
    }

    pub(crate) fn prefix(&self) -> PathBuf {
        self.root().join(&PREFIX[1..])
    }

    pub(crate) fn lib(&self) -> PathBuf {
        self.prefix().join("lib")
    }

    /// Has pkg-config find what is installed, and nothing of this host.
    pub(crate) fn with_pkg_config<'command>(
        &self,
        command: &'command mut Command,
    ) -> &'command mut Command {
        command
            .env("PKG_CONFIG_LIBDIR", self.lib().join("pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", self.root())
            .env_remove("PKG_CONFIG_PATH")
    }
}

/// Whether a program is there; if not, the test is left out.
pub(crate) fn is_there(name: &str, package: &str) -> bool {
    let missing = program(name).is_none();
    present(
        name,
        missing.then(|| format!("no {name} (apt install {package})")),
    )
}

/// What a command that succeeds without complaint writes.
pub(crate) fn said(command: &mut Command) -> String {
    let [stdout, stderr] = written(command);
    assert_eq!(stderr, "", "{command:?}: {stdout}");
    stdout
}

/// What a command that succeeds writes to standard output and standard error.
pub(crate) fn written(command: &mut Command) -> [String; 2] {
    for variable in INHERITED {
        command.env_remove(variable);
    }
    let Output {
        status,
        stdout,
        stderr,
    } = command.env("LC_ALL", "C").output().expect("it starts");
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    [stdout, stderr]
}
