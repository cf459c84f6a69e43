//! An access log that cannot be written, before it has lost anything.

use std::fs;
use std::os::unix::fs::symlink;

use netlab::Scratch;
use rustix::process::Signal;

use super::reading::Reading;
use super::wait_for;
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{Relay, command, output};

#[test]
fn a_log_that_cannot_be_written_is_told_while_its_lines_wait() {
    let scratch = Scratch::new("waiting").expect("a directory");
    let path = |name| {
        let path = scratch.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    };
    let [log, socket] = ["log", "sock"].map(path);
    symlink("/dev/full", &log).expect("a link");
    // Nobody listens there, so each client has its line at once.
    let options = ["--control", &socket, "--access-log", &log];
    let relay = Relay::to("127.0.0.1:9", &options);
    wait_for(&socket);
    let is = |name: &str, log: &str, count: u64| {
        until(&format!("{name} of {log} is {count}"), || {
            Reading::at(&socket).sum(name, &[("log", log)]) == count
        });
    };
    let status = || {
        let told = output(&mut command(&["status", "--control", &socket]));
        String::from_utf8(told.stdout).expect("UTF-8")
    };
    is("spliced_log_lines_waiting", &log, 0);
    is("spliced_log_failing", &log, 0);
    assert!(!status().contains("cannot be written"));
    (0..3).for_each(|_| Peer::is_reset_by(&relay.address));
    is("spliced_log_lines_waiting", &log, 3);
    is("spliced_log_failing", &log, 1);
    is("spliced_log_failing", "stderr", 0);
    is("spliced_log_lines_dropped_total", &log, 0);
    let line = format!(
        "log {log} cannot be written: No space left on device (os error 28); lines that wait: 3\n"
    );
    let told = status();
    assert!(told.contains(&line), "{told}");
    relay.wait_logged("No space left on device (os error 28); make room or move it (");
    fs::remove_file(&log).expect("the link");
    relay.signal(Signal::USR1);
    is("spliced_log_lines_waiting", &log, 0);
    is("spliced_log_failing", &log, 0);
    assert!(!status().contains("cannot be written"));
    assert_eq!(
        fs::read_to_string(&log).expect("the log").lines().count(),
        3
    );
}
