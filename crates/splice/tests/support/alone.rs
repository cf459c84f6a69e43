//! A test that needs a process of its own: it counts descriptors, sets limits of the process, or
//! uses up what the process shares.

use std::cell::RefCell;
use std::process::Command;
use std::{env, thread};

const VARIABLE: &str = "SPLICED_TEST_ALONE";

thread_local! {
    /// The test that this thread works for, if its own name does not say so.
    pub(crate) static TEST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The name of the test that runs on this thread.
pub(crate) fn test_name() -> String {
    TEST.with_borrow(Clone::clone).unwrap_or_else(|| {
        let thread = thread::current();
        let name = thread.name();
        name.expect("the harness names threads after tests").into()
    })
}

/// Runs `body` in a process that runs only this test.
pub(crate) fn alone(body: impl FnOnce()) {
    if env::var_os(VARIABLE).is_some() {
        return body();
    }
    let name = test_name();
    let program = env::current_exe().expect("the path of this program");
    let output = Command::new(program)
        .args([&name, "--exact", "--nocapture", "--include-ignored"])
        .env(VARIABLE, "1")
        .output()
        .expect("this program again");
    let text = String::from_utf8_lossy(&output.stdout);
    eprintln!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "failed alone: {}", output.status);
    assert!(text.contains("1 passed"), "no test is called {name}");
}
