//! What is not adopted, and is told in one sentence.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Stdio;

use netlab::{Need, Process, Scratch, available};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, gettid};
use rustix::io::Errno;
use rustix::process::Signal;
use socket2::{Domain, Protocol, Socket, Type};
use splice_sockmap::SockMap;

use super::list::listed;
use super::owner::{IS_LATE, Owner, adopt_by, adopting, both_ways};
use crate::doctor::{NOBODY, for_anybody};
use crate::forbidden_call::{ForbiddenCall, GETDENTS64, READLINK};
use crate::patience::{until, until_found};
use crate::peer::Peer;
use crate::programs::installed;
use crate::relay::{BINARY, Relay, command, output};
use crate::server::Server;
use crate::tls;
use crate::usage::{failure, sentence};

const REFUSED: i32 = 2;

fn of_numbers(owner: &Owner, numbers: [u32; 2]) -> String {
    until_found("it is refused for another reason", || {
        let mut command = adopting([&owner.process, &owner.process], numbers);
        let sentence = failure(&mut command, REFUSED);
        let is_late = IS_LATE.iter().any(|late| sentence.contains(late));
        (!is_late).then_some(sentence)
    })
}

fn says(sentence: &str, parts: &[&str]) {
    for part in parts {
        assert!(sentence.contains(part), "no {part}: {sentence}");
    }
}

/// The whole sentence.
fn refuses(sentence: &str, why: &str) {
    assert_eq!(sentence, format!("cannot adopt these sockets: {why}"));
}

fn name(owner: &Owner) -> String {
    format!("the process {} (socat)", owner.process.id())
}

/// A refusal must leave the owner as it was.
fn is_untouched(owner: &Owner) {
    assert!(owner.has_its_sockets());
    owner.expect_both_ways();
}

#[test]
fn wrong_numbers() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let pid = owner.process.id().to_string();
    let [first, second] = owner.numbers();
    for (arguments, parts) in [
        (
            &["--pid", &pid, "--fd", "5"][..],
            &["a splice has two sockets: give --fd twice; see 'spliced adopt --help'"][..],
        ),
        (
            &[
                "--pid", "1", "--pid", "1", "--pid", "1", "--fd", "5", "--fd", "6",
            ],
            &["a splice has two sockets: give --pid once or twice; see 'spliced adopt --help'"],
        ),
        (
            &["--pid", "x", "--fd", "5", "--fd", "6"],
            &["invalid value 'x'"],
        ),
        (
            &["--pid", "4000000000", "--fd", "5", "--fd", "6"],
            &["cannot adopt these sockets: there is no process 4000000000: "],
        ),
        (&["--fd", "5", "--fd", "6"], &["--pid <PID>"]),
    ] {
        let arguments = [&["adopt"], arguments].concat();
        says(&failure(&mut command(&arguments), REFUSED), parts);
    }
    refuses(
        &of_numbers(&owner, [first, 9999]),
        &format!(
            "the process {pid} has no descriptor 9999: {}",
            std::io::Error::from(Errno::BADF)
        ),
    );
    refuses(
        &of_numbers(&owner, [0, first]),
        &format!(
            "the descriptor 0 of the process {pid} (socat) is no TCP socket, and only TCP counts \
             what its owner has read and written"
        ),
    );
    refuses(
        &of_numbers(&owner, [second, second]),
        "both are the same one; see 'spliced adopt --help'",
    );
    is_untouched(&owner);
}

/// Each end has read what the other one has written, as the sockets of a relay have.
#[test]
fn the_two_ends_of_one_connection() {
    const TO_ITSELF: &str = "import socket, sys
family = socket.AF_INET6 if \":\" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], 0), family=family, dualstack_ipv6=family == socket.AF_INET6)
one = socket.create_connection((\"127.0.0.1\", listener.getsockname()[1]))
other, _ = listener.accept()
one.sendall(b\"?\")
other.sendall(other.recv(1))
one.recv(1)
print(one.fileno(), other.fileno(), flush=True)
sys.stdin.read()
";
    let Some(python) = installed("python3", "python3") else {
        return;
    };
    for host in ["127.0.0.1", "::"] {
        let mut command = Process::command(&python);
        command.args(["-c", TO_ITSELF, host]);
        let mut process =
            Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).expect("started");
        let mut line = String::new();
        let output = process.child_mut().stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let numbers: Vec<u32> = line
            .split_whitespace()
            .map(|number| number.parse().expect("a number"))
            .collect();
        let [one, other] = numbers[..] else {
            panic!("two numbers: {line}");
        };
        for [first, second] in [[one, other], [other, one]] {
            let mut command = adopting([&process, &process], [first, second]);
            refuses(
                &failure(&mut command, REFUSED),
                &format!(
                    "{first} and {second} are the two ends of one connection; name sockets of two connections between \
                     which a process relays"
                ),
            );
        }
        let list = listed(process.id());
        assert_eq!(list["pairs"], serde_json::json!([]), "{list}");
    }
}

/// Sockets of this process, which is no relay.
#[test]
fn other_sockets() {
    const NO_TCP: &str =
        "is no TCP socket, and only TCP counts what its owner has read and written";
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let (unix, _other) = UnixStream::pair().expect("a pair");
    let (messages, _other) = UnixDatagram::pair().expect("a pair");
    let multipath = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
    let table = [
        (
            Some(listener.as_raw_fd()),
            "is a listening socket; name a connected one",
        ),
        (Some(udp.as_raw_fd()), NO_TCP),
        (Some(unix.as_raw_fd()), NO_TCP),
        (Some(messages.as_raw_fd()), NO_TCP),
        (
            multipath.ok().map(|socket| socket.into_raw_fd()),
            "is a Multipath TCP socket, whose bytes go over several connections",
        ),
    ];
    for (number, why) in table {
        if let Some(number) = number {
            of_this_process(number, why);
        }
    }
}

/// One of the sockets of this process is refused.
fn of_this_process(number: i32, why: &str) {
    let us = std::process::id();
    let name = std::fs::read_to_string("/proc/self/comm").expect("a name");
    let [us, number] = [us.to_string(), number.to_string()];
    let mut adopt = command(&["adopt", "--pid", &us, "--fd", &number, "--fd", "9999"]);
    refuses(
        &failure(&mut adopt, REFUSED),
        &format!(
            "the descriptor {number} of the process {us} ({}) {why}",
            name.trim_end()
        ),
    );
}

#[test]
#[ignore = "kernel: needs kTLS; make test-kernels runs it"]
fn a_socket_with_tls_in_the_kernel() {
    let (near, far) = netlab::connection();
    tls::encrypt([&near, &far]);
    of_this_process(
        near.as_raw_fd(),
        "has a protocol on top of TCP in the kernel (tls), whose bytes are not the connection's",
    );
    (&near).write_all(b"as before").expect("written");
    let mut come = [0; 9];
    (&far).read_exact(&mut come).expect("read");
    assert_eq!(&come, b"as before");
}

/// Of the owner, or of what it has open.
#[test]
fn what_cannot_be_looked_at() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    for call in [GETDENTS64, READLINK] {
        let forbidden = ForbiddenCall::any(call, Errno::NOMEM);
        let Some(mut adopt) = forbidden.spliced(Process::command("perl")) else {
            return;
        };
        let pid = owner.process.id().to_string();
        adopt.args(["adopt", "--pid", &pid]);
        for number in owner.numbers() {
            adopt.args(["--fd", &number.to_string()]);
        }
        let sentence = failure(&mut adopt, REFUSED);
        let why = format!(
            "what {} has open cannot be found out; run spliced as the same user, or with CAP_SYS_PTRACE: {}",
            name(&owner),
            std::io::Error::from(Errno::NOMEM)
        );
        refuses(&sentence, &why);
    }
    is_untouched(&owner);
}

#[test]
fn a_socket_that_is_open_elsewhere_too() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let [first, second] = owner.numbers();
    let duplicate = splice_sockmap::of_process(owner.process.id(), second).expect("a duplicate");
    let us = std::fs::read_to_string("/proc/self/comm").expect("a name");
    refuses(
        &of_numbers(&owner, [first, second]),
        &format!(
            "the socket {second} of {} is open as {} of the process {} ({}), too; close that descriptor first",
            name(&owner),
            duplicate.as_raw_fd(),
            std::process::id(),
            us.trim_end()
        ),
    );
    drop(duplicate);
    is_untouched(&owner);
}

#[test]
fn a_socket_that_is_adopted_already() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let numbers = owner.numbers();
    let mut adopt = owner.adopt();
    refuses(
        &of_numbers(&owner, numbers),
        &format!(
            "the descriptor {} of {} is adopted by another spliced; end that one first",
            numbers[0],
            name(&owner)
        ),
    );
    owner.expect_both_ways();
    adopt.terminate();
    is_untouched(&owner);
}

#[test]
fn a_socket_in_a_map() {
    if !available(Need::Bpf) {
        return;
    }
    let Some(owner) = Owner::socat() else {
        return;
    };
    let [first, second] = owner.numbers();
    let map = SockMap::create(1).expect("a map");
    let socket = splice_sockmap::of_process(owner.process.id(), first).expect("a duplicate");
    map.insert(0, &socket).expect("inserted");
    let id = splice_sockmap::id_of_map_with(&socket).expect("looked up");
    drop(socket);
    refuses(
        &of_numbers(&owner, [first, second]),
        &format!(
            "the descriptor {first} of {} is in a map of sockets already (bpftool map show id {}), where a program may \
             redirect its bytes",
            name(&owner),
            id.expect("it is in one")
        ),
    );
    map.remove(0).expect("removed");
    is_untouched(&owner);
}

#[test]
fn a_stopped_owner() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let numbers = owner.numbers();
    owner.process.signal(Signal::STOP).expect("stopped");
    let status = format!("/proc/{}/stat", owner.process.id());
    until("it stands still", || {
        std::fs::read_to_string(&status).is_ok_and(|stat| stat.contains(") T "))
    });
    let sentence = format!(
        "{} is stopped; continue it first (kill -CONT {})",
        name(&owner),
        owner.process.id()
    );
    refuses(&of_numbers(&owner, numbers), &sentence);
    owner.process.signal(Signal::CONT).expect("continued");
    is_untouched(&owner);
}

#[test]
fn an_owner_that_is_traced() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let numbers = owner.numbers();
    let pid = Pid::from_raw(owner.process.id().cast_signed());
    ptrace::seize(pid, ptrace::Options::empty()).expect("the right to trace it");
    refuses(
        &of_numbers(&owner, numbers),
        &format!(
            "{} is traced by the process {} already; end that first",
            name(&owner),
            // The kernel names the thread.
            gettid()
        ),
    );
    // It can only be let go while it stands still.
    ptrace::interrupt(pid).expect("stopped");
    waitpid(pid, Some(WaitPidFlag::__WALL)).expect("it stands still");
    ptrace::detach(pid, None).expect("let go");
    is_untouched(&owner);
}

/// The filter allows everything, which nobody can see from outside.
#[test]
fn an_owner_that_filters_its_system_calls() {
    // prctl(2) with PR_SET_NO_NEW_PRIVS, and with PR_SET_SECCOMP and one instruction (linux/seccomp.h); then socat.
    const FILTERED: &str = "my $allow = pack('SCCL', 6, 0, 0, 0x7fff0000); my $filter = pack('Sx6P', 1, $allow); \
                            syscall(157, 38, 1, 0, 0, 0) == 0 or die; syscall(157, 22, 2, $filter) == 0 or die; exec @ARGV";
    if installed("perl", "perl").is_none() {
        return;
    }
    let Some(owner) = Owner::socat_by(&["perl", "-e", FILTERED]) else {
        return;
    };
    refuses(
        &of_numbers(&owner, owner.numbers()),
        &format!(
            "{} filters its system calls (seccomp), and the filter might end it at a call that is not its own",
            name(&owner)
        ),
    );
    is_untouched(&owner);
}

#[test]
fn an_owner_with_io_uring() {
    let server = Server::new();
    let relay = Relay::to(&server.address, &["--engine", "uring"]);
    let client = Peer::connect(&relay.address);
    let far = server.accept();
    both_ways(&client, &far, 1, 1000);
    let pid = relay.id().to_string();
    // Whatever the numbers are: a socket of an owner with io_uring is not looked at.
    let mut adopt = command(&["adopt", "--pid", &pid, "--fd", "5", "--fd", "6"]);
    refuses(
        &failure(&mut adopt, REFUSED),
        &format!(
            "the process {pid} (spliced) uses io_uring, which may have requests on the socket itself"
        ),
    );
    both_ways(&client, &far, 2, 1000);
}

#[test]
fn without_the_right_to_trace_the_owner() {
    if !available(Need::Root) {
        return;
    }
    let Some(owner) = Owner::socat() else {
        return;
    };
    let [first, second] = owner.numbers().map(|number| number.to_string());
    let scratch = Scratch::new("adopt").expect("a directory");
    let mut command = Process::command("setpriv");
    command
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"])
        .arg(for_anybody(&scratch))
        .args([
            "adopt",
            "--pid",
            &owner.process.id().to_string(),
            "--fd",
            &first,
            "--fd",
            &second,
        ])
        .env_remove("SPLICED_LOG");
    refuses(
        &failure(&mut command, REFUSED),
        &format!(
            "cannot look at {}; run spliced as the same user, or with CAP_SYS_PTRACE: {}",
            name(&owner),
            std::io::Error::from(Errno::ACCESS)
        ),
    );
    is_untouched(&owner);
}

/// A process of the same user, which is no descendant.
#[test]
#[ignore = "kernel: needs Yama; make test-kernels runs it"]
fn where_yama_forbids_tracing() {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    let before = std::fs::read_to_string(SCOPE).expect("Yama");
    let (near, _far) = netlab::connection();
    // By its path: the shell of a guest has a smaller one of its own.
    let setpriv = installed("setpriv", "util-linux").expect("a guest has it");
    let nobody = || {
        let mut command = Process::command(&setpriv);
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"]);
        command
    };
    let owner = Process::spawn(nobody().args(["sleep", "1000"]).stdin(OwnedFd::from(near)))
        .expect("it starts");
    let pid = owner.id().to_string();
    let name = format!("/proc/{pid}/comm");
    until("it sleeps", || {
        std::fs::read_to_string(&name).is_ok_and(|name| name.trim_end() == "sleep")
    });
    std::fs::write(SCOPE, "1").expect("set");
    let mut adopt = nobody();
    adopt
        .arg(BINARY)
        .args(["adopt", "--pid", &pid, "--fd", "0", "--fd", "1"])
        .env_remove("SPLICED_LOG");
    let told = output(&mut adopt);
    std::fs::write(SCOPE, before).expect("set back");
    refuses(
        &sentence(&told),
        &format!(
            "cannot take the descriptor 0 of the process {pid}: {}; run it as the same user, or with CAP_SYS_PTRACE, and look \
             at kernel.yama.ptrace_scope",
            std::io::Error::from(Errno::PERM)
        ),
    );
    assert_eq!(told.status.code(), Some(REFUSED));
}

#[test]
fn a_connection_that_is_ending() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let numbers = owner.numbers();
    owner.server.end_stream();
    owner.client.expect_end();
    refuses(
        &of_numbers(&owner, numbers),
        &format!(
            "the connection of the socket {} of {} is ending or has ended; adopt one that is established",
            numbers[0],
            name(&owner)
        ),
    );
}

/// splice(2) does not pass it.
#[test]
fn an_urgent_byte_that_was_not_read() {
    let Some(owner) = Owner::nginx() else {
        return;
    };
    owner.expect_both_ways();
    owner.client.send_urgent(b'!');
    let numbers = owner.numbers();
    refuses(
        &of_numbers(&owner, numbers),
        &format!(
            "the socket {} of the process {} (nginx) has an urgent byte that was not read, which splice(2) does not pass; \
             try again when it was read",
            numbers[0],
            owner.process.id()
        ),
    );
    assert!(owner.has_its_sockets());
}

/// nginx that announces its client to the server has written what it has not read.
#[test]
fn an_owner_that_adds_bytes() {
    let Some(owner) = Owner::nginx_with("proxy_protocol on;") else {
        return;
    };
    let header = owner.server.read_line();
    assert!(header.starts_with("PROXY TCP4 "));
    let [first, second] = owner.numbers();
    refuses(
        &of_numbers(&owner, [first, second]),
        &format!(
            "the process {} (nginx) has written {} bytes to {second} and read only 0 from {first}: it is no plain relay of \
             these two",
            owner.process.id(),
            header.len()
        ),
    );
    is_untouched(&owner);
}

/// The one has read more than the other has written, and nobody is going to write it.
#[test]
fn sockets_that_do_not_belong_together() {
    let (Some(one), Some(other)) = (Owner::socat(), Owner::socat()) else {
        return;
    };
    one.expect_both_ways();
    let numbers = [one.numbers()[0], other.numbers()[1]];
    let mut adopt = Relay::spawn_silent(
        adopting([&one.process, &other.process], numbers).stdout(Stdio::null()),
    );
    // It says so at once where bytes were written that were not read.
    assert_eq!(adopt.wait_end().code(), Some(REFUSED));
    adopt.wait_logged("no plain relay");
    let sink = Owner::socat().expect("it is there");
    let payload = crate::payload::Payload::new(1);
    sink.client.send(payload, 0, 1000);
    sink.server.expect(payload, 0, 1000);
    let numbers = [sink.numbers()[0], other.numbers()[1]];
    let mut adopt = adopt_by(|| {
        let mut command = adopting([&sink.process, &other.process], numbers);
        command.stdout(Stdio::null());
        command
    });
    assert_eq!(adopt.wait_end().code(), Some(REFUSED));
    let [from, to] = numbers;
    adopt.wait_logged(&format!(
        "has read 1000 bytes from {from} that it does not write to {to}: it is no plain relay; their owner has them again"
    ));
    for owner in [&one, &other, &sink] {
        is_untouched(owner);
    }
}
