//! `make install` and `make uninstall`: the files, their modes, and what is in them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use netlab::{Scratch, present, program};

const COMMANDS: [&str; 19] = [
    "relay", "run", "check", "reload", "status", "sessions", "kill", "top", "backends", "drain",
    "undrain", "weigh", "echo", "mesh", "adopt", "bypass", "doctor", "matrix", "trace",
];
const PAGES: [&str; 20] = [
    "spliced",
    "spliced-relay",
    "spliced-run",
    "spliced-check",
    "spliced-reload",
    "spliced-status",
    "spliced-sessions",
    "spliced-kill",
    "spliced-top",
    "spliced-backends",
    "spliced-drain",
    "spliced-undrain",
    "spliced-weigh",
    "spliced-echo",
    "spliced-mesh",
    "spliced-adopt",
    "spliced-bypass",
    "spliced-doctor",
    "spliced-matrix",
    "spliced-trace",
];
const PREFIX: &str = "/opt/spliced";
const BASH: &str = "share/bash-completion/completions/spliced";
const ZSH: &str = "share/zsh/site-functions/_spliced";
const FISH: &str = "share/fish/vendor_completions.d/spliced.fish";

/// A tree into which this build has been installed.
struct Installed {
    scratch: Scratch,
}

impl Installed {
    /// `None` where something is missing.
    fn new() -> Option<Self> {
        let missing = program("make").is_none();
        let missing = missing.then(|| "no make (apt install make)".into());
        if !present("make", missing) {
            return None;
        }
        let scratch = Scratch::new("install").expect("a directory");
        let release = scratch.path().join("target/release");
        fs::create_dir_all(release.join("examples")).expect("a directory");
        symlink(env!("CARGO_BIN_EXE_spliced"), release.join("spliced")).expect("a link");
        let tests = std::env::current_exe().expect("this program");
        let build = tests.parent().and_then(Path::parent).expect("deps");
        let manual = build.join("examples/manual");
        assert!(
            manual.exists(),
            "there is no {}; run: cargo build --package spliced --example manual",
            manual.display()
        );
        symlink(manual, release.join("examples/manual")).expect("a link");
        let installed = Self { scratch };
        installed.make("install-program");
        Some(installed)
    }

    /// Runs `make goal` with what has been built already, as somebody who hides new files.
    fn make(&self, goal: &str) -> String {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let scratch = self.scratch.path().display();
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "umask 077; exec \"$@\"",
                "sh",
                "make",
                "-C",
                root,
                goal,
            ])
            .args(["CARGO=true", &format!("PREFIX={PREFIX}")])
            .arg(format!("TARGET={scratch}/target"))
            .arg(format!("DESTDIR={scratch}/root"));
        // Of the make that runs the tests.
        for variable in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEFILES"] {
            command.env_remove(variable);
        }
        said(&mut command)
    }

    fn prefix(&self) -> PathBuf {
        self.scratch.path().join("root").join(&PREFIX[1..])
    }

    fn read(&self, file: &str) -> String {
        let path = self.prefix().join(file);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

/// What a command that succeeds without complaint writes.
fn said(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.env("LC_ALL", "C").output().expect("it starts");
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(
        status.success() && stderr.is_empty(),
        "{command:?}: {status}\n{stdout}{stderr}"
    );
    stdout
}

/// The files and directories below, with their permissions.
fn tree(directory: &Path, below: &str, found: &mut BTreeMap<String, u32>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let metadata = entry.metadata().expect("its metadata");
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if metadata.is_dir() {
            tree(&entry.path(), &format!("{name}/"), found);
        }
        found.insert(name, metadata.permissions().mode() & 0o7777);
    }
}

fn files_of(installed: &Installed) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    tree(&installed.prefix(), "", &mut found);
    found
}

#[test]
fn everybody_can_read_what_is_installed_and_nothing_else_is() {
    let Some(installed) = Installed::new() else {
        return;
    };
    let mut found = files_of(&installed);
    found.retain(|name, &mut mode| {
        let directory = installed.prefix().join(name).is_dir();
        assert!(!directory || mode == 0o755, "{name}: {mode:o}");
        !directory
    });
    let pages = PAGES.map(|page| format!("share/man/man1/{page}.1"));
    let mut expected: BTreeMap<_, _> = pages.into_iter().map(|page| (page, 0o644)).collect();
    expected.extend([BASH, ZSH, FISH].map(|file| (file.into(), 0o644)));
    expected.insert("bin/spliced".into(), 0o755);
    assert_eq!(found, expected);

    let version = |program: &Path| said(Command::new(program).arg("--version"));
    assert_eq!(
        version(&installed.prefix().join("bin/spliced")),
        version(Path::new(env!("CARGO_BIN_EXE_spliced")))
    );
}

#[test]
fn uninstall_leaves_no_file() {
    let Some(installed) = Installed::new() else {
        return;
    };
    installed.make("uninstall");
    let mut found = files_of(&installed);
    found.retain(|name, _| !installed.prefix().join(name).is_dir());
    assert_eq!(found, BTreeMap::new());
}

#[test]
fn every_page_has_its_sections_and_groff_accepts_it() {
    let Some(installed) = Installed::new() else {
        return;
    };
    for page in PAGES {
        let file = format!("share/man/man1/{page}.1");
        let text = installed.read(&file);
        for section in [
            "NAME",
            "SYNOPSIS",
            "OPTIONS",
            "EXIT STATUS",
            "RIGHTS",
            "SEE ALSO",
        ] {
            let heading = if section.contains(' ') {
                format!(".SH \"{section}\"\n")
            } else {
                format!(".SH {section}\n")
            };
            assert!(text.contains(&heading), "no {section} in {page}");
        }
        // Those that stay until a signal comes.
        let lives = ["spliced-relay", "spliced-run", "spliced-echo"].contains(&page);
        // These write no file.
        let has_signals =
            lives || ["spliced-mesh", "spliced-adopt", "spliced-bypass"].contains(&page);
        for (section, is_there) in [("SIGNALS", has_signals), ("FILES", lives)] {
            assert_eq!(
                text.contains(&format!(".SH {section}\n")),
                is_there,
                "{page}"
            );
        }
        assert!(text.contains("SPLICED_LOG"), "no SPLICED_LOG in {page}");
    }
    for command in COMMANDS {
        let overview = installed.read("share/man/man1/spliced.1");
        assert!(overview.contains(&format!("spliced\\-{command}(1)")));
    }
    let missing = program("groff").is_none();
    if !present(
        "groff",
        missing.then(|| "no groff (apt install groff-base)".into()),
    ) {
        return;
    }
    for page in PAGES {
        let path = installed.prefix().join(format!("share/man/man1/{page}.1"));
        // -z: only complain; -ww: about everything.
        let written = said(
            Command::new("groff")
                .args(["-man", "-Tutf8", "-ww", "-z"])
                .arg(path),
        );
        assert_eq!(written, "");
    }
}

#[test]
fn the_completions_know_every_command_and_every_engine() {
    let Some(installed) = Installed::new() else {
        return;
    };
    let engines = splice::EngineName::ALL.map(splice::EngineName::as_str);
    for file in [BASH, ZSH, FISH] {
        let text = installed.read(file);
        for word in COMMANDS
            .iter()
            .chain(&engines)
            .chain(&["--drain-timeout", "auto"])
        {
            // fish writes long options without their dashes.
            let word = word.trim_start_matches("--");
            assert!(text.contains(word), "no {word} in {file}");
        }
    }
    let complete = |words: &[&str]| {
        let script = r#"
            source "$1"; shift
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            _spliced "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            echo "${COMPREPLY[@]}"
        "#;
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", script, "bash"]);
        said(bash.arg(installed.prefix().join(BASH)).args(words))
    };
    let commands = complete(&["spliced", ""]);
    for command in COMMANDS {
        assert!(commands.contains(command), "{commands}");
    }
    assert_eq!(complete(&["spliced", "relay", "--eng"]), "--engine\n");
    assert_eq!(
        complete(&["spliced", "relay", "--engine", "sock"]),
        "sockmap\n"
    );
}
