//! Mode, owner and group of the socket file of a UNIX listener.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::iter;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use netlab::{Need, Process, Scratch, available};
use rustix::process::{Signal, Uid};
use rustix::thread::set_thread_res_uid;

use crate::datagrams;
use crate::doctor::for_anybody;
use crate::proxy::Proxy;
use crate::relay::{BINARY, Relay, command};
use crate::server::Server;
use crate::usage::failure;

/// Owns nothing, by convention.
const NOBODY: u32 = 65534;

fn shown(path: &Path) -> (u32, u32, u32) {
    let metadata = fs::metadata(path).expect("a file");
    (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
}

/// `spliced` with another umask.
fn with_umask(umask: &str, arguments: &[&str]) -> Command {
    let mut command = Process::command("sh");
    command
        .args(["-c", &format!("umask {umask}; exec \"$@\""), "sh", BINARY])
        .args(arguments)
        .env_remove("SPLICED_LOG");
    command
}

#[test]
fn a_relay_and_an_echo_give_their_socket_mode_owner_and_group() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("access").expect("a directory");
    let path = scratch.path().join("socket");
    let listen = format!("unix:{}", path.display());
    let options = ["--mode", "0620", "--owner", "65534", "--group", "1234"];
    let datagrams = format!("unixgram:{}", path.display());
    for arguments in [
        &["relay", &listen, "127.0.0.1:1"][..],
        &["relay", &datagrams, "udp:127.0.0.1:1"],
        &["echo", &listen],
    ] {
        for umask in ["0", "077"] {
            let arguments = [arguments, &options].concat();
            let mut relay = Relay::spawn(&mut with_umask(umask, &arguments));
            assert_eq!(shown(&path), (0o620, NOBODY, 1234), "{arguments:?}");
            relay.terminate();
            assert!(!path.exists());
        }
    }
    // The group by its name, and the rest as without the option.
    for [listen, target] in [[&*listen, "127.0.0.1:1"], [&datagrams, "udp:127.0.0.1:1"]] {
        let arguments = ["relay", listen, target, "--group", "root"];
        let mut relay = Relay::spawn(&mut with_umask("027", &arguments));
        assert_eq!(shown(&path), (0o750, 0, 0));
        relay.terminate();
    }
}

#[test]
fn nobody_connects_before_the_mode_is_set() {
    const STARTS: usize = 20;
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("access").expect("a directory");
    let path = scratch.path().join("socket");
    let of_streams = format!("unix:{}", path.display());
    // It needs no listen(2) before somebody connects.
    let of_datagrams = format!("unixgram:{}", path.display());
    let connect: [fn(&Path) -> io::Result<()>; 2] = [
        |path| UnixStream::connect(path).map(drop),
        |path| UnixDatagram::unbound()?.connect(path),
    ];
    for (arguments, connect) in iter::zip(
        [
            &["echo", &of_streams][..],
            &["relay", &of_datagrams, "udp:127.0.0.1:9"],
        ],
        connect,
    ) {
        let denied = denied_while(STARTS, arguments, &path, connect);
        assert!(denied > 0, "{arguments:?}");
    }
}

/// How often another user is denied to `connect` while so many start with `arguments` one after the other, whose mode is for
/// their own user.
fn denied_while(
    starts: usize,
    arguments: &[&str],
    path: &Path,
    connect: fn(&Path) -> io::Result<()>,
) -> usize {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let user = Uid::from_raw(NOBODY);
            // Of this thread alone.
            set_thread_res_uid(user, user, user).expect("another user");
            let mut denied = 0;
            while !is_over.load(Ordering::Relaxed) {
                let connected = connect(path).map_err(|error| error.kind());
                assert!(connected.is_err(), "connected");
                denied += usize::from(connected.err() == Some(ErrorKind::PermissionDenied));
            }
            denied
        });
        for _ in 0..starts {
            let arguments = [arguments, &["--mode", "0600"]].concat();
            Relay::spawn(&mut with_umask("0", &arguments)).terminate();
        }
        is_over.store(true, Ordering::Relaxed);
        client.join().expect("nobody has connected")
    })
}

#[test]
fn the_groups_of_the_process_need_no_capability_and_others_do() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("access").expect("a directory");
    let spliced = for_anybody(&scratch);
    let directory = scratch.path().join("run");
    fs::create_dir(&directory).expect("made");
    chown(&directory, Some(NOBODY), Some(NOBODY)).expect("given away");
    let path = directory.join("socket");
    let listen = format!("unix:{}", path.display());
    let as_nobody = |options: &[&str]| {
        let mut command = Process::command("setpriv");
        command
            .args(["--reuid", "65534", "--regid", "65534", "--groups", "4321"])
            .args(["--inh-caps=-all", "--"])
            .arg(&spliced)
            .args(["relay", &listen, "127.0.0.1:1"])
            .args(options)
            .env_remove("SPLICED_LOG");
        command
    };
    let mut relay = Relay::spawn(&mut as_nobody(&["--group", "4321", "--mode", "0660"]));
    assert_eq!(shown(&path), (0o660, NOBODY, 4321));
    relay.terminate();
    for (options, words) in [
        (["--group", "1234"], "cannot have group 1234"),
        (["--owner", "root"], "cannot belong to user 0"),
    ] {
        let sentence = failure(&mut as_nobody(&options), 1);
        for part in [words, "user 65534", "CAP_CHOWN", &listen] {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
        assert!(!path.exists(), "its file is left behind");
    }
}

#[test]
fn what_has_no_socket_file_has_no_mode() {
    for (arguments, what) in [
        (&["relay", "127.0.0.1:0", "127.0.0.1:1"][..], "127.0.0.1:0"),
        (&["relay", "unix:@x", "127.0.0.1:1"], "unix:@x"),
        (&["echo", "[::1]:0"], "[::1]:0"),
        (
            &["relay", "unixgram:@x", "udp:127.0.0.1:1"],
            "unixgram:/path",
        ),
        (&["relay", "udp::0", "udp:127.0.0.1:1"], "udp::0"),
        (&["relay", "seqpacket:@x", "seqpacket:/y"], "seqpacket:@x"),
    ] {
        for option in [["--mode", "0660"], ["--owner", "0"], ["--group", "0"]] {
            let sentence = failure(&mut command(&[arguments, &option].concat()), 2);
            assert!(sentence.contains(what), "{sentence}");
            assert!(sentence.contains("leave"), "{sentence}");
        }
    }
    for (option, why) in [
        (["--mode", "0466"], "add 0200"),
        (["--mode", "rw"], "write four digits"),
        (["--owner", "no such user"], "no such user; add it"),
        (["--group", "4294967295"], "write one below"),
    ] {
        let arguments = ["relay", "unix:/x", "127.0.0.1:1"];
        let sentence = failure(&mut command(&[&arguments, &option[..]].concat()), 2);
        assert!(sentence.contains(why), "{sentence}");
    }
}

#[test]
fn a_reload_changes_them_on_the_socket_that_clients_have() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("access").expect("a directory");
    let [path, other] = ["socket", "other"].map(|name| scratch.path().join(name));
    let server = Server::new();
    // A listener on TCP does not care about those of [defaults].
    let configuration = |defaults: &str, of_path: &str, of_other: &str| {
        let listener = |address: &str, lines: &str| {
            format!(
                "[[listener]]\naddress = \"{address}\"\n{lines}\n[[listener.route]]\nbackend = \"b\"\n"
            )
        };
        format!("[defaults]\n{defaults}\n")
            + &listener("127.0.0.1:0", "")
            + &listener(&format!("unix:{}", path.display()), of_path)
            + &listener(&format!("unix:{}", other.display()), of_other)
            + &format!("[backend.b]\nservers = \"{}\"\n", server.address)
    };
    let proxy = Proxy::run(&configuration("owner = 1", "mode = \"0600\"", ""));
    assert_eq!(shown(&path), (0o600, 1, 0));
    let before = fs::metadata(&other).expect("a file");
    assert_eq!(before.uid(), 1);
    let inode = fs::metadata(&path).expect("a file").ino();
    let lines = "mode = \"0666\"\nowner = \"root\"\ngroup = 1234";
    let changed = configuration("owner = 1", lines, "");
    assert!(proxy.reload(&changed).status.success());
    assert_eq!(shown(&path), (0o666, 0, 1234));
    assert_eq!(shown(&other).1, 1);
    // Without the keys it is as it was made.
    assert!(
        proxy
            .reload(&configuration("", "mode = \"0640\"", ""))
            .status
            .success()
    );
    assert_eq!(shown(&path), (0o640, 0, 0));
    assert_eq!(shown(&other).1, 0);
    assert_eq!(fs::metadata(&path).expect("a file").ino(), inode);
    UnixStream::connect(&path)
        .and_then(|mut client| client.write_all(b"x"))
        .expect("it is still listened on");
    drop(server.accept());
    // One of them cannot be changed, and so both stay as they are.
    fs::remove_file(&other).expect("removed");
    let unchanged = configuration("", "mode = \"0640\"", "");
    assert!(proxy.reload(&unchanged).status.success());
    let told = proxy.relay.wait_logged("is not the socket of this process");
    assert!(told.contains("it was removed or replaced"), "{told}");
    let output = proxy.reload(&configuration("mode = \"0200\"", "", ""));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("nothing has changed"), "{told}");
    assert!(told.contains("is not the socket of this process"), "{told}");
    assert_eq!(shown(&path), (0o640, 0, 0));
}

/// Without the key it is as bind(2) would have made it, though nobody could send before it was set.
#[test]
fn a_reload_changes_them_on_a_socket_of_datagrams() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("access").expect("a directory");
    let path = scratch.path().join("socket");
    let target = datagrams::socket("127.0.0.1:0");
    let at = target.local_addr().expect("its address");
    let configuration = |defaults: &str, lines: &str| {
        format!(
            "[defaults]\n{defaults}\n[[listener]]\naddress = \"unixgram:{}\"\n{lines}\n[[listener.route]]\n\
             backend = \"b\"\n[backend.b]\nservers = \"udp:{at}\"\n",
            path.display()
        )
    };
    let private = configuration("owner = 1", "mode = \"0600\"");
    let mut run = Process::command("sh");
    run.args(["-c", "umask 027; exec \"$@\"", "sh", BINARY]);
    let proxy = Proxy::start(&private, run.env_remove("SPLICED_LOG"));
    assert_eq!(shown(&path), (0o600, 1, 0));
    let inode = fs::metadata(&path).expect("a file").ino();
    for (defaults, lines, expected) in [
        ("", "mode = \"0622\"\ngroup = 1234", (0o622, 0, 1234)),
        ("mode = \"0666\"", "", (0o666, 0, 0)),
        ("", "", (0o750, 0, 0)),
    ] {
        let output = proxy.reload(&configuration(defaults, lines));
        assert!(output.status.success(), "{output:?}");
        assert_eq!(shown(&path), expected);
    }
    assert_eq!(fs::metadata(&path).expect("a file").ino(), inode);
    let client = UnixDatagram::unbound().expect("a socket");
    client.send_to(b"x", &path).expect("it still receives");
    assert_eq!(datagrams::receive(&target).0, b"x");
    fs::remove_file(&path).expect("removed");
    let output = proxy.reload(&private);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("is not the socket of this process"), "{told}");
}

/// The set-group-ID bit of a directory gives its files a group that the process is not in, and could not give back.
#[test]
fn a_reload_that_fails_changes_no_socket_file() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("access").expect("a directory");
    chown(scratch.path(), None, Some(99)).expect("given away");
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o2755)).expect("set");
    let [first, second] = ["first", "second"].map(|name| scratch.path().join(name));
    let configuration = |of_first: &str, of_second: &str| {
        let listener = |path: &Path, lines: &str| {
            format!(
                "[[listener]]\naddress = \"unix:{}\"\n{lines}\n[[listener.route]]\nbackend = \"b\"\n",
                path.display()
            )
        };
        listener(&first, of_first)
            + &listener(&second, of_second)
            + "[backend.b]\nservers = \"127.0.0.1:1\"\n"
    };
    let run = |capabilities: &str| {
        let bounding = format!("--bounding-set={capabilities}");
        let mut command = Process::command("setpriv");
        command.args(["--groups", "0,4321", "--inh-caps=-all", &bounding, BINARY]);
        let private = "mode = \"0600\"";
        Proxy::start(
            &configuration(private, private),
            command.env_remove("SPLICED_LOG"),
        )
    };
    let fails = |proxy: &Proxy, configuration: &str, why: &str| {
        let output = proxy.reload(configuration);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(told.contains("nothing has changed"), "{told}");
        assert!(told.contains(why), "{told}");
    };

    let mut proxy = run("-all");
    assert_eq!(shown(&first), (0o600, 0, 99));
    let changed = configuration(
        "mode = \"0660\"\ngroup = 4321",
        "mode = \"0660\"\ngroup = 5555",
    );
    fails(&proxy, &changed, "cannot have group 5555");
    assert_eq!([shown(&first), shown(&second)], [(0o600, 0, 99); 2]);
    // It is not the process that has changed it.
    fs::set_permissions(&first, Permissions::from_mode(0o644)).expect("set");
    chown(&first, Some(NOBODY), Some(1)).expect("given away");
    fails(&proxy, &changed, "user 65534");
    assert_eq!(shown(&first), (0o644, NOBODY, 1));
    proxy.relay.terminate();

    let proxy = run("-all,+chown");
    let given_away = "mode = \"0666\"\nowner = 65534";
    let moved = scratch.path().join("moved");
    fs::rename(&second, &moved).expect("moved");
    fails(
        &proxy,
        &configuration(given_away, given_away),
        "is not the socket of this process",
    );
    assert_eq!(shown(&first), (0o600, 0, 99));
    fs::rename(&moved, &second).expect("moved back");
    // CAP_CHOWN suffices to change the mode of a file that has been given away.
    for mode in [0o666, 0o606] {
        let lines = format!("mode = \"{mode:04o}\"\nowner = 65534");
        let reloaded = proxy.reload(&configuration(&lines, &lines));
        assert!(reloaded.status.success(), "{reloaded:?}");
        assert_eq!([shown(&first), shown(&second)], [(mode, NOBODY, 99); 2]);
    }
}

/// CAP_CHOWN gives the file away, and no capability lets the next process connect to it. It cannot know whether somebody
/// listens, perhaps in another network namespace.
#[test]
fn a_socket_file_that_was_given_away_is_not_replaced() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("access").expect("a directory");
    let path = scratch.path().join("socket");
    let listen = format!("unix:{}", path.display());
    let given_away_with = |mode| {
        let mut command = Process::command("setpriv");
        command
            .args(["--inh-caps=-all", "--bounding-set=-all,+chown", BINARY])
            .args(["relay", &listen, "127.0.0.1:1"])
            .args(["--owner", "65534", "--mode", mode])
            .env_remove("SPLICED_LOG");
        command
    };
    let given_away = || given_away_with("0600");
    let inode = || fs::metadata(&path).expect("a file").ino();
    let mut first = Relay::spawn(&mut given_away());
    assert_eq!(shown(&path).1, NOBODY);
    let of_first = inode();
    for is_killed in [false, true] {
        if is_killed {
            first.signal_until_it_ends(Signal::KILL);
        }
        let told = failure(&mut given_away(), 1);
        for part in [
            "cannot be told",
            "user 0",
            "may not connect",
            "user 65534",
            "remove it if nobody does",
        ] {
            assert!(told.contains(part), "no {part:?} in {told:?}");
        }
        assert_eq!(inode(), of_first);
    }
    fs::remove_file(&path).expect("removed");

    // Others may connect to that one. In such a directory, only its owner and that of the file may remove it.
    let mut second = Relay::spawn(&mut given_away_with("0666"));
    chown(scratch.path(), Some(NOBODY), None).expect("given away");
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o1777)).expect("set");
    second.signal_until_it_ends(Signal::KILL);
    let told = failure(&mut given_away(), 1);
    for part in [
        "user 0",
        "may not remove",
        "user 65534",
        "remove it as that user",
    ] {
        assert!(told.contains(part), "no {part:?} in {told:?}");
    }
    fs::remove_file(&path).expect("removed");
    Relay::spawn(&mut given_away()).terminate();
    assert!(!path.exists(), "its file is left behind");
}
