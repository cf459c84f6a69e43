//! The configurations that docs/proxy.md prints for other programs are ones that those programs take.

use std::process::Command;

use netlab::{Process, Scratch};

use crate::programs::installed;
use crate::relay::output;

/// What every configuration of HAProxy has, and no example repeats.
const DEFAULTS: &str =
    "defaults\n    timeout connect 5s\n    timeout client 1m\n    timeout server 1m\n";
/// The same of nginx. Debian has its module `stream` in a file of its own.
const MODULES: &str = "include /etc/nginx/modules-enabled/*.conf;\nevents {}\n";

/// The examples that stand behind this heading.
fn examples(heading: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/proxy.md");
    let page = std::fs::read_to_string(path).expect(path);
    let begin = format!("\n{heading}:\n\n```\n");
    let examples = page.split(&begin).skip(1);
    let example = |text: &str| {
        let (example, _) = text.split_once("```").expect("its end");
        example.to_owned()
    };
    examples.map(example).collect()
}

/// Each of the examples behind `common` is taken by a command that gets the path of the file.
fn are_taken(heading: &str, common: &str, least: usize, check: impl Fn(&str) -> Command) {
    let examples = examples(heading);
    assert!(examples.len() >= least, "{} examples", examples.len());
    let scratch = Scratch::new("examples").expect("a directory");
    for example in examples {
        let path = scratch.write("example", &format!("{common}{example}"));
        let checked = output(&mut check(&path.expect("a file").display().to_string()));
        assert!(checked.status.success(), "{example}\n{checked:?}");
    }
}

#[test]
fn haproxy_takes_its_examples() {
    let Some(haproxy) = installed("haproxy", "haproxy") else {
        return;
    };
    are_taken("HAProxy", DEFAULTS, 8, |path| {
        let mut command = Process::command(&haproxy);
        command.args(["-c", "-f", path]);
        command
    });
}

#[test]
fn nginx_takes_its_examples() {
    let Some(nginx) = installed("nginx", "libnginx-mod-stream") else {
        return;
    };
    are_taken("nginx", MODULES, 6, |path| {
        let mut command = Process::command(&nginx);
        // Its usual log is another one's.
        command.args(["-t", "-e", "stderr", "-c", path]);
        command
    });
}
