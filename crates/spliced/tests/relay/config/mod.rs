//! Configuration files: those that are refused, and what `spliced check` says about the others.
//!
//! `broken/` and `doubtful/` have a file of the messages beside each configuration.

mod bounds;
mod here;
mod listening;
mod prefixes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use netlab::Scratch;

use crate::relay::{command, output};

/// Configurations of one kind.
fn directory(kind: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/relay/config");
    tests.join(kind)
}

/// The names of the configurations in `directory`.
fn configurations(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names
        .map(|name| name.into_string().expect("a name"))
        .filter(|name| name.ends_with(".toml"))
        .collect();
    names.sort();
    names
}

fn check(directory: &Path, name: &str) -> Output {
    output(command(&["check", "--config", name]).current_dir(directory))
}

/// What the configuration `name` in `directory` is to make `spliced` say.
fn expected(directory: &Path, name: &str) -> String {
    let path = directory.join(name).with_extension("txt");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_broken_configuration_has_its_messages() {
    let directory = directory("broken");
    let names = configurations(&directory);
    assert!(names.len() >= 30, "only {}", names.len());
    for name in &names {
        let output = check(&directory, name);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, expected(&directory, name), "{name}");
        assert_eq!(output.stdout, b"", "{name}");
        assert_eq!(output.status.code(), Some(2), "{name}");
    }
}

#[test]
fn a_broken_configuration_is_not_run() {
    let directory = directory("broken");
    let mut run = command(&["run", "--config", "ranges.toml"]);
    let output = output(run.current_dir(&directory));
    let said = String::from_utf8_lossy(&output.stderr);
    for line in expected(&directory, "ranges.toml").lines() {
        let sentence = line.strip_prefix("spliced: ").unwrap_or(line);
        let is_sum = sentence != line;
        assert!(is_sum || said.contains(sentence), "no {sentence:?}: {said}");
    }
    assert_eq!(output.status.code(), Some(2), "{said}");
}

#[test]
fn what_is_doubtful_is_a_warning() {
    let directory = directory("doubtful");
    for name in configurations(&directory) {
        let output = check(&directory, &name);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, expected(&directory, &name), "{name}");
        assert_eq!(output.status.code(), Some(0), "{name}");
    }
}

/// Runs the check of a configuration, which has to succeed, perhaps with warnings about this host.
fn is_accepted(directory: &Path, name: &str) {
    let output = check(directory, name);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{name}: {said}");
    let report = String::from_utf8_lossy(&output.stdout);
    let end = format!("{name} can be used\n");
    assert!(report.ends_with(&end), "{report}");
}

#[test]
fn every_valid_configuration_is_accepted() {
    for directory in [directory("valid"), directory("../../../../../examples")] {
        for name in configurations(&directory) {
            is_accepted(&directory, &name);
        }
    }
}

/// The page of the manual.
fn manual() -> String {
    let path = directory("../../../../../docs/configuration.md");
    fs::read_to_string(path).expect("the page")
}

#[test]
fn the_example_of_the_manual_is_accepted() {
    let manual = manual();
    let (_, after) = manual.split_once("```toml\n").expect("an example");
    let (example, _) = after.split_once("```").expect("its end");
    let scratch = Scratch::new("manual").expect("a directory");
    scratch.write("manual.toml", example).expect("written");
    is_accepted(scratch.path(), "manual.toml");
}

/// The message about an unknown key lists those that there are.
#[test]
fn the_manual_has_every_key() {
    let manual = manual();
    for table in [
        "x_y_z = 1\n",
        "[defaults]\nx_y_z = 1\n",
        "[process]\nx_y_z = 1\n",
        "[[listener]]\nx_y_z = 1\n",
        "[[listener]]\nclient_prefix = { x_y_z = 1 }\n",
        "[[listener]]\nkeepalive = { x_y_z = 1 }\n",
        "[[listener]]\n[[listener.route]]\nx_y_z = 1\n",
        "[[listener]]\n[[listener.route]]\nsocks = { x_y_z = 1 }\n",
        "[backend.a]\nx_y_z = 1\n",
        "[backend.a]\nhealth = { x_y_z = 1 }\n",
        "[backend.a]\nservers = { x_y_z = 1 }\n",
        "[[bypass]]\nx_y_z = 1\n",
    ] {
        let scratch = Scratch::new("keys").expect("a directory");
        scratch.write("keys.toml", table).expect("written");
        let output = check(scratch.path(), "keys.toml");
        let said = String::from_utf8_lossy(&output.stderr);
        let mut parts = said
            .lines()
            .filter_map(|line| line.split_once("\"x_y_z\"; it takes "));
        let (_, keys) = parts.next().unwrap_or_else(|| panic!("{said}"));
        for key in keys.split(", ").flat_map(|keys| keys.split(" or ")) {
            let shown = match key {
                "defaults" => "`[defaults]`".into(),
                "process" => "`[process]`".into(),
                "listener" => "`[[listener]]`".into(),
                "route" => "`[[listener.route]]`".into(),
                "backend" => "`[backend.NAME]`".into(),
                "bypass" => "`[[bypass]]`".into(),
                "ipv4" | "ipv6" | "idle" | "interval" | "probes" => format!("{key} = "),
                "allow" => "{ allow = ".into(),
                key => format!("`{key}`"),
            };
            assert!(manual.contains(&shown), "no {shown}");
        }
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let output = check(&directory("valid"), "missing.toml");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("missing.toml:1:1: "), "{said}");
    assert!(said.contains("No such file"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}
