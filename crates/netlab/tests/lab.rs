//! A lab forwards traffic in both directions, and leaves nothing behind.
#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test that cannot go on fails the test"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::panic;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use netlab::{
    ControlGroup, Lab, Namespace, Need, PATIENCE, Process, Scratch, Spinner, available, present,
    until,
};
use rustix::process::Signal;

/// Tells the copy of this program that a test starts what to do.
const ROLE: &str = "NETLAB_TEST_ROLE";

fn exists(name: &str) -> bool {
    Path::new("/run/netns").join(name).exists()
}

fn names(lab: &Lab) -> [String; 3] {
    [lab.client(), lab.relay(), lab.server()].map(|namespace| namespace.name().to_owned())
}

/// Connects from the client to the server and sends a line there and back.
fn round_trip(lab: &Lab, server: IpAddr) {
    let listener = lab
        .server()
        .enter(|| TcpListener::bind((server, 0)))
        .unwrap()
        .unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = lab
        .client()
        .enter(|| TcpStream::connect(address))
        .unwrap()
        .unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    for stream in [&client, &accepted] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut arrived = [0; 5];
    client.write_all(b"there").unwrap();
    accepted.read_exact(&mut arrived).unwrap();
    assert_eq!(&arrived, b"there");
    accepted.write_all(b"back!").unwrap();
    client.read_exact(&mut arrived).unwrap();
    assert_eq!(&arrived, b"back!");
}

#[test]
fn the_client_reaches_the_server_through_the_relay() {
    if !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().unwrap();
    round_trip(&lab, Lab::SERVER_V4.into());
    if lab.has_ipv6() {
        round_trip(&lab, Lab::SERVER_V6.into());
    }

    // Only forwarding connects the two.
    lab.relay().set_sysctl("net.ipv4.ip_forward", "0").unwrap();
    let listener = lab
        .server()
        .enter(|| TcpListener::bind((Lab::SERVER_V4, 0)))
        .unwrap()
        .unwrap();
    let address = listener.local_addr().unwrap();
    let short = Duration::from_millis(300);
    let attempt = lab
        .client()
        .enter(|| TcpStream::connect_timeout(&address, short))
        .unwrap();
    assert!(attempt.is_err());
}

#[test]
fn sysctls_belong_to_one_namespace() {
    if !available(Need::Netns) {
        return;
    }
    let (one, other) = (
        Namespace::new("one").unwrap(),
        Namespace::new("other").unwrap(),
    );
    one.set_sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    other.set_sysctl("net.ipv4.tcp_timestamps", "1").unwrap();
    assert_eq!(
        one.sysctl("net.ipv4.tcp_timestamps").unwrap().as_deref(),
        Some("0")
    );
    assert_eq!(one.sysctl("net.ipv4.no_such_thing").unwrap(), None);
    let error = one.set_sysctl("net.ipv4.no_such_thing", "1").unwrap_err();
    assert!(format!("{error:#}").contains("no_such_thing"));
}

#[test]
fn commands_run_inside_their_namespace() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("inside").unwrap();
    let inside = namespace
        .command("readlink")
        .arg("/proc/self/ns/net")
        .output()
        .unwrap()
        .stdout;
    let entered = namespace
        .enter(|| fs::read_link("/proc/thread-self/ns/net"))
        .unwrap()
        .unwrap();
    let outside = fs::read_link("/proc/thread-self/ns/net").unwrap();
    assert_eq!(
        String::from_utf8(inside).unwrap().trim(),
        entered.to_str().unwrap()
    );
    assert_ne!(entered, outside);
}

#[test]
fn a_drop_and_a_panic_leave_nothing_behind() {
    if !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().unwrap();
    let scratch = Scratch::new("dropped").unwrap();
    let file = scratch.write("a", "b").unwrap();
    let made = names(&lab);
    assert!(made.iter().all(|name| exists(name)));
    drop((lab, scratch));
    assert!(!made.iter().any(|name| exists(name)));
    assert!(!file.exists());

    let lab = Lab::new().unwrap();
    let made = names(&lab);
    let unwound = panic::catch_unwind(panic::AssertUnwindSafe(move || {
        lab.client().enter(|| panic!("on purpose")).unwrap();
    }));
    assert!(unwound.is_err());
    assert!(!made.iter().any(|name| exists(name)));
}

/// Not a test of its own: [`start_holder`] runs it in another process.
#[test]
#[ignore = "a process that another test starts"]
fn hold_a_lab() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let lab = Lab::new().unwrap();
    let scratch = Scratch::new("held").unwrap();
    let mut command = lab.relay().command("sleep");
    let sleeper = Process::spawn(command.arg("1000").stdout(Stdio::null())).unwrap();
    let [client, relay, server] = names(&lab);
    println!(
        "held: {client} {relay} {server} {} {}",
        scratch.path().display(),
        sleeper.id()
    );
    std::thread::sleep(PATIENCE);
}

/// Another process that holds a lab: itself, the namespaces, the scratch directory and its child.
fn start_holder() -> (Process, Vec<String>, String, u32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "hold_a_lab", "--ignored", "--nocapture"])
        .env(ROLE, "holder")
        .stdout(Stdio::piped());
    let mut holder = Process::spawn(&mut command).unwrap();
    let output = BufReader::new(holder.child_mut().stdout.take().unwrap());
    let words = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("held: ").map(|(_, words)| words.to_owned()))
        .expect("the holder says what it holds");
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    assert!(words[..3].iter().all(|name| exists(name)));
    (
        holder,
        words[..3].to_vec(),
        words[3].clone(),
        words[4].parse().unwrap(),
    )
}

fn gone(pid: u32) -> bool {
    // A killed child is a zombie (state Z) until init has reaped it.
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn a_signal_leaves_nothing_behind() {
    if !available(Need::Netns) {
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let (mut holder, namespaces, scratch, sleeper) = start_holder();
        holder.signal(signal).unwrap();
        let status = holder
            .wait_at_most(PATIENCE)
            .unwrap()
            .expect("the holder ends");
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(signal.as_raw())
        );
        assert!(
            !namespaces.iter().any(|name| exists(name)),
            "after {signal:?}"
        );
        assert!(!Path::new(&scratch).exists(), "after {signal:?}");
        until("the sleeper is gone", || gone(sleeper));
    }
}

#[test]
fn sweep_removes_what_a_killed_process_left() {
    if !available(Need::Netns) {
        return;
    }
    let (mut holder, namespaces, scratch, sleeper) = start_holder();
    holder.signal(Signal::KILL).unwrap();
    holder
        .wait_at_most(PATIENCE)
        .unwrap()
        .expect("the holder ends");
    until("the sleeper is gone", || gone(sleeper));
    netlab::sweep();
    // Other processes sweep as well, and may be removing a name.
    until("nothing is left", || {
        !namespaces.iter().any(|name| exists(name)) && !Path::new(&scratch).exists()
    });
}

#[test]
fn a_spinner_uses_only_idle_time_and_stops() {
    if !available(Need::Root) {
        return;
    }
    let spinner = Spinner::start(0).unwrap();
    until("it takes CPU time", || {
        spinner
            .cpu_time()
            .is_ok_and(|time| time > Duration::from_millis(20))
    });
}

/// `SCHED_IDLE` applies within a group only; the group's weight applies against kernel workers.
#[test]
fn a_spinner_has_a_group_of_the_lowest_weight() {
    if !available(Need::Root) {
        return;
    }
    // A kernel without autogroups has one group for all.
    let Ok(ours) = fs::read_to_string("/proc/self/autogroup") else {
        return;
    };
    let spinner = Spinner::start(0).unwrap();
    let theirs = || fs::read_to_string(format!("/proc/{}/autogroup", spinner.id())).unwrap();
    until("it is as nice as can be", || {
        theirs().trim_end().ends_with("nice 19")
    });
    let group = |text: &str| text.split(' ').next().unwrap().to_owned();
    assert_ne!(group(&theirs()), group(&ours));
}

#[test]
fn a_control_group_contains_its_threads_and_is_removed_with_its_guard() {
    if !available(Need::Root) {
        return;
    }
    let group = match ControlGroup::new("group") {
        Ok(group) => group,
        Err(error) => {
            present("cgroup", Some(format!("{error:#}")));
            return;
        }
    };
    let read = || fs::read_to_string("/proc/thread-self/cgroup").unwrap();
    let inside = group.enter(read).unwrap();
    let name = inside
        .lines()
        .find_map(|line| line.strip_prefix("0::")?.rsplit('/').next())
        .unwrap()
        .to_owned();
    assert!(name.ends_with("-group"), "{inside}");
    assert!(!read().contains(&name), "{}", read());
    let is_there = || {
        let groups = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let point = groups.lines().find(|line| line.contains(" - cgroup2 "));
        let point = point.and_then(|line| line.split(' ').nth(4)).unwrap();
        find(Path::new(point), &name)
    };
    assert!(is_there());
    let failed = panic::catch_unwind(panic::AssertUnwindSafe(move || {
        let group = group;
        let _: () = group.enter(|| panic!("as a test that fails")).unwrap();
    }));
    assert!(failed.is_err());
    assert!(!is_there());
}

/// Whether a directory of this name is below another.
fn find(directory: &Path, name: &str) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .any(|entry| entry.file_name() == name || find(&entry.path(), name))
}
