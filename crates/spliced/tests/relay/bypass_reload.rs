//! A reload whose bypass cannot start.
//!
//! The process is in a network namespace without 127.0.0.1, so a bypass without `bulk_bytes`, which it would have to
//! measure, does not start.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use netlab::{ControlGroup, Namespace, Scratch};

use crate::bypass::{Place, redirected};
use crate::patience::until;
use crate::proxy::Proxy;
use crate::relay::output;

const WHY: &str = "Cannot assign requested address";

fn without_loopback() -> Namespace {
    let namespace = Namespace::new("no-loopback").expect("a namespace");
    let words = ["addr", "del", "127.0.0.1/8", "dev", "lo"];
    let deleted = output(namespace.command("ip").args(words));
    assert!(deleted.status.success(), "{deleted:?}");
    namespace
}

fn bypass(groups: &[&str], pins: &str, more: &str) -> String {
    format!(
        "[[bypass]]\ncgroups = {groups:?}\npins = \"{pins}\"\ndespite_fionread = true\n{more}\n"
    )
}

const SIZE: &str = "bulk_bytes = \"4KiB\"";

fn listener(path: &Path, mode: &str) -> String {
    format!(
        "[[listener]]\naddress = \"unix:{}\"\nmode = \"{mode}\"\n[[listener.route]]\nbackend = \"b\"\n",
        path.display()
    )
}

#[test]
fn one_that_cannot_start_beside_another_changes_nothing() {
    let Some(place) = Place::new() else { return };
    let namespace = without_loopback();
    let scratch = Scratch::new("bypass").expect("a directory");
    let sockets = ["a", "b"].map(|name| scratch.path().join(name));
    let backend = "[backend.b]\nservers = [\"127.0.0.1:1\"]\n";
    let first = bypass(&[place.group()], place.pins(), SIZE);
    let text = [&listener(&sockets[0], "0600"), backend, &first].concat();
    let mut proxy = Proxy::run_in(&namespace, &text);
    let ends = place.connect();
    until("it is redirected", || {
        ends.converse(50);
        redirected(&place.status()) > 0
    });
    let other_pins = format!("{}-other", place.pins());
    // One beside the first, and one in place of it: whichever is first in the file.
    let beside = bypass(&[place.group()], &other_pins, "");
    let changed = bypass(&[place.group()], place.pins(), "bulk_bytes = \"8KiB\"");
    for bypasses in [&first, &changed, ""] {
        let listeners = [listener(&sockets[0], "0666"), listener(&sockets[1], "0666")].concat();
        let text = [&listeners, backend, bypasses, &beside].concat();
        let told = proxy.reload(&text);
        let told = String::from_utf8(told.stderr).expect("a text");
        assert!(told.contains("nothing has changed"), "{told}");
        assert!(told.contains(WHY), "{told}");
        let mode = fs::metadata(&sockets[0]).expect("a socket").mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!sockets[1].exists());
        assert_eq!(
            proxy.status()["listeners"].as_array().map(Vec::len),
            Some(1)
        );
        assert!(!Path::new(&other_pins).exists());
        // The connection is redirected as before.
        let before = redirected(&place.status());
        until("it is redirected", || {
            ends.converse(50);
            redirected(&place.status()) > before
        });
    }
    proxy.relay.terminate();
    assert!(!place.pins.exists());
}

#[test]
fn one_that_cannot_start_in_place_of_another_leaves_that_one() {
    let Some(place) = Place::new() else { return };
    let namespace = without_loopback();
    let with_size = bypass(&[place.group()], place.pins(), SIZE);
    let mut proxy = Proxy::run_in(&namespace, &with_size);
    let before = place.connect();
    until("it is redirected", || {
        before.converse(50);
        redirected(&place.status()) > 0
    });
    before.under_load(|| {
        let told = proxy.reload(&bypass(&[place.group()], place.pins(), ""));
        let told = String::from_utf8(told.stderr).expect("a text");
        assert!(!told.contains("nothing has changed"), "{told}");
        assert!(told.contains(WHY), "{told}");
        assert!(
            told.contains("was started again as it was, for new connections only"),
            "{told}"
        );
    });
    let ends = place.connect();
    until("it is redirected", || {
        ends.converse(50);
        redirected(&place.status()) > 0
    });
    before.converse(50);
    // What is in force is what was there before, and can be changed.
    let denied = bypass(
        &[place.group()],
        place.pins(),
        &format!("{SIZE}\ndeny = [\"uid:0\"]"),
    );
    assert!(proxy.reload(&denied).status.success());
    ends.converse(50);
    assert_eq!(redirected(&place.status()), 0);
    proxy.relay.terminate();
    assert!(!place.pins.exists());
}

#[test]
fn one_that_cannot_start_again_is_told() {
    let Some(place) = Place::new() else { return };
    let namespace = without_loopback();
    let gone = ControlGroup::new("gone").expect("a control group");
    let path = gone.path().to_str().expect("ASCII").to_owned();
    let text = bypass(&[place.group(), &path], place.pins(), SIZE);
    let mut proxy = Proxy::run_in(&namespace, &text);
    drop(gone);
    let told = proxy.reload(&bypass(&[place.group()], place.pins(), ""));
    let told = String::from_utf8(told.stderr).expect("a text");
    assert!(!told.contains("nothing has changed"), "{told}");
    assert!(
        told.contains("is off, since it could not be started again"),
        "{told}"
    );
    assert!(!place.pins.exists());
    // It starts with the next reload that can start it.
    let reloaded = proxy.reload(&bypass(&[place.group()], place.pins(), SIZE));
    assert!(reloaded.status.success(), "{reloaded:?}");
    assert!(place.pins.exists());
    proxy.relay.terminate();
    assert!(!place.pins.exists());
}
