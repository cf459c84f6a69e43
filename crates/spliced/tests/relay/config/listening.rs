//! What `spliced check` says of the addresses to listen on.

use std::net::TcpListener;

use netlab::{Lab, Need, Process, Scratch, available};

use super::here::{ROUTE, assert_in, checked, checked_in, said};
use crate::doctor::{NOBODY, for_anybody};

/// What a start would fail with is said without touching what a running relay holds.
#[test]
fn addresses_that_this_host_does_not_have_are_obstacles() {
    let scratch = Scratch::new("check").expect("a directory");
    let file = scratch.write("file", "").expect("written");
    let file = file.to_str().expect("a path");
    let used = TcpListener::bind("127.0.0.1:0").expect("an address in use");
    let used = used.local_addr().expect("its address").to_string();
    let with_metrics = |metrics: &str| {
        format!(
            "[process]\nmetrics = \"{metrics}\"\n[[listener]]\nname = \"web\"\naddress = \"127.0.0.1:9501\"\n"
        )
    };
    let listening =
        |address: &str| format!("[[listener]]\nname = \"web\"\naddress = \"{address}\"\n");
    let both = |one: &str, other: &str| {
        format!(
            "{}{ROUTE}[[listener]]\nname = \"b\"\naddress = \"{other}\"\n",
            listening(one)
        )
    };
    let not_here = "is not an address of this host; choose one that is\n";
    for (text, obstacle) in [
        // RFC 5737 and RFC 3849.
        (
            listening("192.0.2.55:8000"),
            format!("listener \"web\": cannot listen on 192.0.2.55:8000: 192.0.2.55:8000 {not_here}"),
        ),
        (listening("[2001:db8::5]:8000"), format!("[2001:db8::5]:8000 {not_here}")),
        (
            listening("unix:/no-such-directory/x"),
            "cannot listen on unix:/no-such-directory/x: its directory does not exist; make it or choose another\n"
                .to_owned(),
        ),
        (
            listening(&format!("unix:{file}/x")),
            "what would be its directory is a file; choose another\n".to_owned(),
        ),
        (
            listening(&format!("unix:{file}")),
            "the file exists and is not a socket; remove it or choose another\n".to_owned(),
        ),
        (
            both("0.0.0.0:9501", "127.0.0.1:9501"),
            "listener \"b\": cannot listen on 127.0.0.1:9501: listener \"web\" has 0.0.0.0:9501, and one socket only can \
             listen there; choose another\n"
                .to_owned(),
        ),
        (
            with_metrics("127.0.0.1:9501"),
            "metrics: cannot listen on 127.0.0.1:9501: listener \"web\" has 127.0.0.1:9501, and one socket only".to_owned(),
        ),
        (with_metrics(":9501"), "metrics: cannot listen on :9501: listener \"web\" has".to_owned()),
        (with_metrics("192.0.2.55:9500"), format!("metrics: cannot listen on 192.0.2.55:9500: 192.0.2.55:9500 {not_here}")),
        (
            with_metrics("no-such-host.invalid:9500"),
            "metrics: the name in no-such-host.invalid:9500 cannot be resolved; check it".to_owned(),
        ),
    ] {
        let text = format!("{text}{ROUTE}[backend.web]\nservers = \"127.0.0.3:1\"\n");
        let (_, said) = checked(&text, 2);
        assert_in(&said, &obstacle);
        assert_in(&said, "has 1 obstacle on this host");
    }
    for text in [
        listening(&used),
        listening("127.9.9.9:9501"),
        listening(":9501"),
        both("127.0.0.1:9501", "127.0.0.2:9501"),
        both("127.0.0.1:0", "0.0.0.0:0"),
        listening(&format!("unix:{}", scratch.path().join("new").display())),
        with_metrics(&used),
        with_metrics("127.0.0.1:9502"),
    ] {
        let text = format!("{text}{ROUTE}[backend.web]\nservers = \"127.0.0.3:1\"\n");
        let (_, said) = checked(&text, 0);
        assert_eq!(said, "", "{text}");
    }
}

/// `net.ipv4.ip_nonlocal_bind` lets a start have an address that comes later, as a pair of hosts with one shared address needs.
#[test]
fn an_address_of_another_host_is_no_obstacle_where_the_kernel_binds_it() {
    if !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().expect("namespaces");
    let text = format!(
        "[[listener]]\naddress = \"192.0.2.55:8000\"\n{ROUTE}[backend.web]\nservers = \"127.0.0.3:1\"\n"
    );
    let (_, said) = checked_in(&lab, &text, 2);
    assert_in(&said, "192.0.2.55:8000 is not an address of this host");
    let set = lab
        .relay()
        .command("sysctl")
        .args(["-qw", "net.ipv4.ip_nonlocal_bind=1"])
        .status();
    assert!(set.expect("sysctl").success());
    checked_in(&lab, &text, 0);
}

#[test]
fn a_port_and_a_directory_that_this_user_may_not_have_are_warnings() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("check").expect("a directory");
    let spliced = for_anybody(&scratch);
    for (address, why) in [
        (
            "127.0.0.1:80",
            "port 80 is privileged; choose one above 1023 or run with CAP_NET_BIND_SERVICE",
        ),
        (
            "unix:/run/x",
            "no permission to write to its directory; choose another or run as its owner",
        ),
    ] {
        let text = format!(
            "[[listener]]\nname = \"web\"\naddress = \"{address}\"\nengine = \"copy\"\n{ROUTE}[backend.web]\n\
             servers = \"127.0.0.1:1\"\n"
        );
        let path = scratch.write("spliced.toml", &text).expect("written");
        let readable = Process::command("chmod").arg("644").arg(&path).status();
        assert!(readable.expect("chmod").success());
        let mut check = Process::command("setpriv");
        check
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"])
            .arg(&spliced)
            .args(["check", "--config"])
            .arg(&path)
            .env_remove("SPLICED_LOG");
        let (_, said) = said(&mut check, 0);
        assert_in(
            &said,
            &format!("warning: listener \"web\": cannot listen on {address}: {why}\n"),
        );
    }
}
