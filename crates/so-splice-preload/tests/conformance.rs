//! The conformance suite: programs in C that know nothing of this library, each case in a process
//! of its own, as on FreeBSD and as on OpenBSD (`conformance/main.c`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

use netlab::{C_SOURCES, Scratch, built, present, program};

/// Cases wait more than they compute.
const AT_ONCE: usize = 4;

/// The program, and a directory that goes with it.
struct Suite {
    program: PathBuf,
    library: PathBuf,
    _scratch: Scratch,
}

/// `None` where something is missing.
fn suite() -> Option<&'static Suite> {
    static SUITE: OnceLock<Suite> = OnceLock::new();
    let missing = program("cc").is_none();
    if !present(
        "cc",
        missing.then(|| "no cc (apt install build-essential)".into()),
    ) {
        return None;
    }
    Some(SUITE.get_or_init(|| {
        let scratch = Scratch::new("conformance").expect("a directory");
        let program = scratch.path().join("conformance");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
        let sources = sources.read_dir().expect("the sources").flatten();
        let sources = sources.map(|entry| entry.path());
        let status = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"])
            .args(["-pthread", "-o"])
            .arg(&program)
            .arg(format!("-I{C_SOURCES}"))
            .arg(format!("{C_SOURCES}/ends.c"))
            .args(sources.filter(|path| path.extension().is_some_and(|end| end == "c")))
            .status();
        assert!(
            status.expect("cc starts").success(),
            "the suite does not compile"
        );
        Suite {
            program,
            library: built(&["so-splice-preload"]).join("libso_splice.so"),
            _scratch: scratch,
        }
    }))
}

impl Suite {
    /// The cases of a personality.
    fn cases(&self, personality: &str) -> Vec<String> {
        let listed = Command::new(&self.program).arg("--list").output();
        let listed = String::from_utf8(listed.expect("it starts").stdout).expect("text");
        let of_personality = |line: &str| {
            let (name, personalities) = line.split_once('\t')?;
            let mut personalities = personalities.split_whitespace();
            personalities
                .any(|one| one == personality)
                .then(|| name.to_owned())
        };
        listed.lines().filter_map(of_personality).collect()
    }

    /// What is wrong; `None` if the case passes.
    fn run(&self, case: &str, personality: &str) -> Option<String> {
        let output = Command::new(&self.program)
            .arg(case)
            .env("LD_PRELOAD", &self.library)
            .env("SO_SPLICE_PERSONALITY", personality)
            .stdin(Stdio::null())
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then(|| format!("{case}: {}: {said}", output.status))
    }

    fn run_all(&self, personality: &str) {
        let cases = self.cases(personality);
        assert!(
            cases.len() > 50,
            "only {} cases of {personality}",
            cases.len()
        );
        let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Some(failure) = self.run(case, personality) {
                            failures.lock().expect("no panic").push(failure);
                        }
                    }
                });
            }
        });
        let failures = failures.into_inner().expect("no panic");
        assert!(
            failures.is_empty(),
            "{personality}: {} of {} cases failed:\n{}",
            failures.len(),
            cases.len(),
            failures.join("\n")
        );
    }
}

#[test]
fn as_on_freebsd() {
    if let Some(suite) = suite() {
        suite.run_all("freebsd");
    }
}

#[test]
fn as_on_openbsd() {
    if let Some(suite) = suite() {
        suite.run_all("openbsd");
    }
}

#[test]
fn a_personality_that_does_not_exist_is_told_once_and_gives_no_option() {
    let Some(suite) = suite() else {
        return;
    };
    let case = suite.cases("freebsd").remove(0);
    let output = Command::new(&suite.program)
        .arg(case)
        .env("LD_PRELOAD", &suite.library)
        .env("SO_SPLICE_PERSONALITY", "netbsd")
        .output()
        .expect("it starts");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    let sentence = "libso_splice: SO_SPLICE_PERSONALITY is 'netbsd'; it must be 'freebsd' or \
                    'openbsd', so there is no SO_SPLICE\n";
    assert_eq!(said.matches(sentence).count(), 1, "{said}");
}
