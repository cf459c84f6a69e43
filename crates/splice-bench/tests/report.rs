//! `splice-bench report` as it is typed.

use std::process::Command;

use netlab::Scratch;

#[test]
fn what_it_cannot_use_is_refused_in_one_line() {
    let scratch = Scratch::new("refused").expect("a directory");
    let old = r#"{"schema": {"name": "splice-bench results", "version": 0}}"#;
    for (text, reason) in [("{ broken", "not JSON"), (old, "version 0")] {
        scratch.write("results.json", text).expect("it is ours");
        let output = Command::new(env!("CARGO_BIN_EXE_splice-bench"))
            .arg("report")
            .arg(scratch.path())
            .output()
            .expect("the bench has been built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.contains("results.json") && said.contains(reason),
            "{said}"
        );
        assert!(!scratch.path().join("report.html").exists());
    }
}
