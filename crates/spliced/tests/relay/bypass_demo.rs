//! `spliced bypass --demo`: what it says, and what it leaves.

use rustix::process::Signal;
use serde_json::Value;

use crate::bypass::Place;
use crate::patience::until;
use crate::relay::{Relay, command, output};

fn own_pins(place: &Place) -> std::path::PathBuf {
    format!("{}-demo", place.pins()).into()
}

/// The groups of demonstrations below that of this process.
fn groups() -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let of_groups = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
    let roots = of_groups.filter_map(|line| line.split(' ').nth(4));
    let own = std::fs::read_to_string("/proc/self/cgroup").expect("groups");
    let own = own.lines().find_map(|line| line.strip_prefix("0::"));
    let own = own.expect("version 2");
    let all = roots.filter_map(|root| std::fs::read_dir(format!("{root}{own}")).ok());
    let names = all.flatten().flatten().map(|entry| entry.file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with("spliced-demo-"))
        .collect()
}

#[test]
fn the_demonstration_shows_both_redirects_beside_tcp_and_leaves_nothing() {
    let Some(place) = Place::new() else { return };
    let told = output(&mut command(&[
        "bypass",
        "--demo",
        "--json",
        "--pins",
        place.pins(),
    ]));
    assert!(told.status.success(), "{told:?}");
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let ways = told["ways"].as_array().expect("a list");
    let number = |way: &Value, field: &str| way[field].as_f64().expect("a number");
    let expected = [
        ("TCP", "", false, 0.0..=0.0),
        ("send to local", "send to local", false, 1.0..=1.0),
        // A heartbeat that comes late on a busy machine lets messages pass.
        ("'spliced bypass'", "send to local", false, 0.001..=1.0),
        ("TCP, copied by the proxy", "", true, 0.0..=0.0),
        ("send to egress", "send to egress", true, 1.0..=1.0),
    ];
    assert_eq!(ways.len(), expected.len());
    for (way, (name, redirect, has_proxy, share)) in ways.iter().zip(expected) {
        assert_eq!(way["way"], name);
        assert_eq!(way["redirect"].as_str().unwrap_or(""), redirect, "{way}");
        assert_eq!(way["has_proxy"], has_proxy, "{way}");
        assert!(share.contains(&number(way, "redirected")), "{way}");
        assert!(number(way, "round_trips") > 3.0, "{way}");
        assert!(number(way, "p50_us") > 0.0 && number(way, "p99_us") >= number(way, "p50_us"));
        assert!(number(way, "p50_of_tcp") > 0.0, "{way}");
    }
    assert!(!own_pins(&place).exists());
}

#[test]
fn a_demonstration_that_a_signal_ends_cleans_up() {
    let Some(place) = Place::new() else { return };
    let mut demo = Relay::spawn_silent(&mut command(&["bypass", "--demo", "--pins", place.pins()]));
    let group = format!("spliced-demo-{}", demo.id());
    until("its bypass runs", || own_pins(&place).exists());
    assert!(groups().contains(&group));
    demo.signal(Signal::INT);
    assert_eq!(demo.wait_end().code(), Some(1));
    assert_eq!(demo.lines_logged("a signal has ended the demonstration"), 1);
    assert!(!own_pins(&place).exists());
    assert!(!groups().contains(&group));
}
