//! `spliced mesh`: the kernel hands frames from client to client.

/// Makes two tests of each function that takes an engine.
macro_rules! by_each_engine {
    ($($name:ident),* $(,)?) => {
        mod sockmap {$(
            #[test]
            fn $name() {
                if netlab::available(netlab::Need::Bpf) {
                    super::$name("sockmap");
                }
            }
        )*}
        mod copy {$(
            #[test]
            fn $name() {
                super::$name("copy");
            }
        )*}
    };
}

mod client;
mod examples;
mod groups;
mod leaving;
mod registration;

use std::io::Read;
use std::net::Shutdown;

use netlab::{Need, Process, available};
use rustix::process::Signal;
use splice::mesh::{Code, Framing};

use self::client::{Client, framing};
use crate::relay::{BINARY, Relay, command};
use crate::usage::failure;

#[test]
fn clients_reach_one_another_by_their_ids() {
    for (listen, length, destination, engine) in [
        ("127.0.0.1:0", "u32be@0", "u32be@4", "sockmap"),
        ("[::1]:0", "u16le@2+0", "u16le@0", "sockmap"),
        ("127.0.0.1:0", "u24be@1", "u32be@4", "copy"),
        ("[::1]:0", "u16le@2+0", "u16le@0", "auto"),
    ] {
        if engine == "sockmap" && !available(Need::Bpf) {
            continue;
        }
        let arguments = [
            "mesh",
            listen,
            "--frame",
            length,
            "--destination",
            destination,
            "--engine",
            engine,
        ];
        let mesh = Relay::spawn(&mut command(&arguments));
        let framing = framing(length, destination);
        let [mut a, mut b] = [(); 2].map(|()| Client::new(&mesh, framing));
        assert_eq!((a.id, b.id), (1, 2));
        a.send(b.id, b"from a to b");
        assert!(b.frame().ends_with(b"from a to b"));
        b.send(9, b"to nobody");
        let notice = b.notice();
        assert_eq!((notice.code, notice.destination), (Code::Unknown, 9));
        a.stream.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(a.stream.read(&mut [0]).expect("the end"), 0);
        let line = mesh.wait_logged("member 1 has left");
        assert!(
            line.contains("it ended its stream: 1 frames sent"),
            "{line}"
        );
        drop(b);
        mesh.wait_logged("member 2 has left");
        mesh.signal(Signal::TERM);
        let line = mesh.wait_logged("the mesh is over");
        assert!(
            line.contains("2 members, 1 frames delivered, 1 without a destination"),
            "{line}"
        );
    }
}

#[test]
fn frames_may_end_with_a_delimiter() {
    for engine in ["sockmap", "copy"] {
        if engine == "sockmap" && !available(Need::Bpf) {
            continue;
        }
        let arguments = [
            "mesh",
            "127.0.0.1:0",
            "--frame",
            "until:0x0a",
            "--destination",
            "u8@0",
            "--engine",
            engine,
        ];
        let mesh = Relay::spawn(&mut command(&arguments));
        let destination = "u8@0".parse().expect("a field");
        let framing = Framing::delimited(b'\n', destination, 682).expect("a framing");
        let [mut a, mut b] = [(); 2].map(|()| Client::new(&mesh, framing));
        a.send(b.id, b"a line");
        assert_eq!(b.frame(), b"\x02a line\n");
    }
    for (options, part) in [
        (&["--frame", "until:ab"][..], "not one byte"),
        (&["--frame", "until:0x100"], "not one byte"),
        (&["--frame", "until:7"], "choose another delimiter"),
        (
            &["--frame", "until:;", "--register", "name"],
            "give frames a length",
        ),
        (
            &["--frame", "until:;", "--groups", "2"],
            "give frames a length",
        ),
        (
            &["--frame", "until:;", "--most-bytes", "683"],
            "less than one frame needs",
        ),
    ] {
        let output =
            crate::relay::output(&mut command(&[&["mesh", "127.0.0.1:0"], options].concat()));
        assert!(!output.status.success());
        let sentence = crate::usage::sentence(&output);
        assert!(sentence.contains(part), "{sentence}");
    }
}

#[test]
fn without_rights_user_space_moves_the_frames_and_it_is_said() {
    let mut without_rights = Process::command("setpriv");
    without_rights
        .args(["--bounding-set=-all", "--", BINARY])
        .args(["mesh", "127.0.0.1:0", "--frame", "u32be@0"])
        .env_remove("SPLICED_LOG");
    let mesh = Relay::spawn(&mut without_rights);
    let line = mesh.wait_logged("user space moves the frames (engine copy)");
    assert!(line.contains("the mesh cannot be set up"), "{line}");
    let [mut a, b] = [(); 2].map(|()| Client::new(&mesh, framing("u32be@0", "u32be@4")));
    a.send(a.id, b"to itself");
    assert!(a.frame().ends_with(b"to itself"));
    drop((a, b));

    let mut by_name = Process::command("setpriv");
    by_name
        .args(["--bounding-set=-all", "--", BINARY])
        .args(["mesh", "127.0.0.1:0", "--frame", "u32be@0"])
        .args(["--engine", "sockmap"]);
    let sentence = failure(&mut by_name, 1);
    assert!(sentence.contains("the mesh cannot be set up"), "{sentence}");
}

#[test]
fn a_signal_lets_members_go() {
    if !available(Need::Bpf) {
        return;
    }
    let mesh = Relay::spawn(&mut command(&["mesh", "127.0.0.1:0", "--frame", "u32be@0"]));
    let mut a = Client::new(&mesh, framing("u32be@0", "u32be@4"));
    mesh.signal(Signal::TERM);
    assert_eq!(a.stream.read(&mut [0]).expect("the end"), 0);
    drop(a);
    mesh.wait_logged("member 1 has left, the mesh ends");
}

#[test]
fn bad_input_of_a_mesh_is_one_sentence() {
    for (arguments, parts) in [
        (&["127.0.0.1:0"][..], &["--frame"][..]),
        (
            &["127.0.0.1:0", "--frame", "u12be@0"],
            &["\"u12be@0\"", "write width"],
        ),
        (
            &["127.0.0.1:0", "--frame", "u32be@0+x"],
            &["\"u32be@0+x\"", "plus sign"],
        ),
        (
            &[
                "127.0.0.1:0",
                "--frame",
                "u32be@0",
                "--destination",
                "u32be@2",
            ],
            &["overlap", "another offset"],
        ),
        (
            &["127.0.0.1:0", "--frame", "u32be@0", "--most-bytes", "70000"],
            &["70000", "at most 65536"],
        ),
        (
            &["127.0.0.1:0", "--frame", "u32be@0", "--most-bytes", "20"],
            &["limit is 20", "raise it"],
        ),
        (
            &["127.0.0.1:0", "--frame", "u32be@0", "--frame-timeout", "0s"],
            &["--frame-timeout", "longer than zero"],
        ),
        (
            &["127.0.0.1:0", "--frame", "u32be@0", "--members", "0"],
            &["--members", "0"],
        ),
        (
            &["127.0.0.1:0", "--frame", "u32be@0", "--engine", "pipe"],
            &["no mesh has the engine pipe", "auto, copy or sockmap"],
        ),
        (
            &["unix:/tmp/mesh", "--frame", "u32be@0"],
            &["unix:/tmp/mesh", "HOST:PORT"],
        ),
        (
            &[
                "127.0.0.1:0",
                "--frame",
                "u32be@0",
                "--token-file",
                "/tokens",
            ],
            &["--token-file", "--register"],
        ),
        (
            &[
                "127.0.0.1:0",
                "--frame",
                "u32be@0",
                "--destination",
                "u8@4",
                "--groups",
                "254",
            ],
            &["254 groups leave no ids", "wider field"],
        ),
        (
            &[
                "127.0.0.1:0",
                "--frame",
                "u32be@0",
                "--access-log",
                "-",
                "--access-log-start",
            ],
            &["--access-log-start", "leave out"],
        ),
    ] {
        let sentence = failure(&mut command(&[&["mesh"][..], arguments].concat()), 2);
        for part in parts {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

#[test]
fn a_bound_below_one_frame_is_refused() {
    if !available(Need::Bpf) {
        return;
    }
    let arguments = [
        "mesh",
        "127.0.0.1:0",
        "--frame",
        "u32be@0",
        "--member-bytes",
        "1000",
    ];
    let sentence = failure(&mut command(&arguments), 2);
    assert!(
        sentence.contains("1000 bytes on the way") && sentence.contains("allow"),
        "{sentence}"
    );
}
