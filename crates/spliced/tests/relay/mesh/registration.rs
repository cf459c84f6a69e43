//! Clients register with their first frame.

use std::fs;
use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use netlab::{Scratch, until};
use rustix::process::Signal;
use splice::mesh::Code;

use super::client::{Client, mesh, registration, usual};
use crate::relay::command;
use crate::usage::failure;

by_each_engine!(
    a_name_is_registered_and_found,
    a_number_is_registered_once_at_a_time,
    what_comes_behind_the_registration_is_delivered,
    who_does_not_register_is_told_why_and_ended,
    who_comes_to_a_mesh_that_is_full_meanwhile_is_told,
    silent_clients_are_ended_in_time_and_keep_nobody_out,
    a_registration_needs_a_token_from_the_file,
);

const LOOK_UP: u32 = 2;

/// What a client is told that cannot become a member, and that its connection ends then.
fn refusal(client: &mut Client) -> Code {
    let (code, frames, destination) = client.told();
    assert_eq!((frames, destination), (0, 0));
    client.is_ended();
    code
}

fn a_name_is_registered_and_found(engine: &str) {
    let mesh = mesh(engine, &["--register", "name"]);
    let mut alice = Client::named(&mesh, "alice");
    let mut bob = Client::named(&mesh, "böb's \"host\"");
    mesh.wait_logged("member 1 has come from 127.0.0.1");
    mesh.wait_logged("it is called \"alice\"");
    alice.ask(LOOK_UP, 7, "böb's \"host\"".as_bytes());
    assert_eq!(alice.told(), (Code::Found, 7, bob.id));
    alice.ask(LOOK_UP, 8, b"carol");
    assert_eq!(alice.told(), (Code::NoSuchName, 8, 0));
    alice.ask(99, 9, b"");
    assert_eq!(alice.told(), (Code::BadRequest, 9, 0));
    // Groups were not asked for.
    alice.ask(3, 10, &7u64.to_be_bytes());
    assert_eq!(alice.told(), (Code::BadRequest, 10, 7));
    // A second registration changes nothing.
    alice.register(0, b"carol", b"");
    assert_eq!(alice.told(), (Code::BadRequest, 0, 0));
    alice.send(bob.id, b"hello");
    assert!(bob.frame().ends_with(b"hello"));
    // A name is free when its member has left.
    bob.stream.shutdown(Shutdown::Write).expect("shut down");
    bob.is_ended();
    mesh.wait_logged("member 2 has left");
    alice.ask(LOOK_UP, 11, "böb's \"host\"".as_bytes());
    assert_eq!(alice.told(), (Code::NoSuchName, 11, 0));
    let again = Client::named(&mesh, "böb's \"host\"");
    assert_eq!(again.id, 3);
}

fn a_number_is_registered_once_at_a_time(engine: &str) {
    let mesh = mesh(engine, &["--register", "number"]);
    let registered = |number| {
        let mut client = Client::stranger(&mesh, usual());
        client.register(number, b"", b"");
        let notice = client.notice();
        client.id = notice.receiver;
        (client, notice.code)
    };
    let (mut seven, code) = registered(7);
    assert_eq!((code, seven.id), (Code::Welcome, 7));
    let (mut highest, code) = registered(u64::from(u32::MAX));
    assert_eq!((code, highest.id), (Code::Welcome, u64::from(u32::MAX)));
    highest.send(7, b"hello");
    assert!(seven.frame().ends_with(b"hello"));
    for (number, expected) in [
        (7, Code::Taken),
        (0, Code::BadName),
        (u64::from(u32::MAX) + 1, Code::BadName),
    ] {
        let (mut client, code) = registered(number);
        assert_eq!(code, expected, "{number}");
        client.is_ended();
    }
    mesh.wait_logged("another member has its id or name");
    drop(seven);
    until("the id is free again", || registered(7).1 == Code::Welcome);
}

fn what_comes_behind_the_registration_is_delivered(engine: &str) {
    /// Together more than a segment.
    const FRAMES: u32 = 300;
    let mesh = mesh(engine, &["--register", "name"]);
    let mut b = Client::named(&mesh, "b");
    let mut asker = Client::named(&mesh, "asker");
    let frame = |destination, body: &[u8]| usual().frame(destination, body).expect("a frame");
    // In one piece, and cut within the registration, at its end and behind it.
    for cut in [0, 1, 7, 8, 12, 21, 22, 23, 40] {
        let mut all = frame(0, &registration(0, &[b'A' + cut as u8], b""));
        assert_eq!(all.len(), 22);
        for number in 0..FRAMES {
            let mut body = number.to_be_bytes().to_vec();
            body.resize(4 + number as usize, number as u8);
            all.extend(frame(b.id, &body));
        }
        let mut a = Client::stranger(&mesh, usual());
        a.stream.set_nodelay(true).expect("set");
        a.stream.write_all(&all[..cut]).expect("sent");
        // A turn of the mesh reads from those who register, and then answers; the first one may have begun before.
        for tag in 0..2 {
            asker.ask(LOOK_UP, tag, b"nobody");
            assert_eq!(asker.told(), (Code::NoSuchName, tag, 0));
        }
        a.stream.write_all(&all[cut..]).expect("sent");
        a.welcome();
        for number in 0..FRAMES {
            let frame = b.frame();
            assert_eq!(frame[8..12], number.to_be_bytes(), "{cut}");
            assert_eq!(frame.len(), 12 + number as usize);
            assert!(frame[12..].iter().all(|byte| *byte == number as u8));
        }
    }
}

fn who_does_not_register_is_told_why_and_ended(engine: &str) {
    let mesh = mesh(engine, &["--register", "name"]);
    let alice = Client::named(&mesh, "alice");
    let long = [b'x'; 65];
    let cases: [(u64, Vec<u8>, Code); 9] = [
        (0, registration(0, b"alice", b""), Code::Taken),
        (0, registration(0, b"", b""), Code::BadName),
        (0, registration(0, b"a\n", b""), Code::BadName),
        (0, registration(0, b"\xff", b""), Code::BadName),
        (0, registration(0, &long, b""), Code::BadName),
        (0, registration(5, b"eve", b""), Code::BadName),
        (alice.id, b"hello".to_vec(), Code::NotRegistered),
        (0, b"hello, mesh".to_vec(), Code::NotRegistered),
        (0, vec![0; 5000], Code::NotRegistered),
    ];
    for (destination, body, expected) in cases {
        let mut client = Client::stranger(&mesh, usual());
        client.send(destination, &body);
        assert_eq!(refusal(&mut client), expected, "{body:?}");
    }
    // A length that no frame has.
    let mut client = Client::stranger(&mesh, usual());
    client.stream.write_all(&[0xff; 8]).expect("sent");
    assert_eq!(refusal(&mut client), Code::NotRegistered);
    // The notice arrives also if the client goes on sending what nobody reads.
    let mut client = Client::stranger(&mesh, usual());
    client.stream.write_all(&[0xff; 200_000]).expect("sent");
    assert_eq!(refusal(&mut client), Code::NotRegistered);
    mesh.signal(Signal::TERM);
    drop(alice);
    mesh.wait_logged("1 members, 0 frames delivered");
    mesh.wait_logged("11 clients refused");
}

fn who_comes_to_a_mesh_that_is_full_meanwhile_is_told(engine: &str) {
    let mesh = mesh(engine, &["--register", "name", "--members", "2"]);
    let _a = Client::named(&mesh, "a");
    let before = mesh.descriptors();
    let [mut b, mut late] = [(); 2].map(|()| Client::stranger(&mesh, usual()));
    // A third one would wait in the backlog from the second member on.
    until("both are accepted", || mesh.descriptors() == before + 2);
    b.register(0, b"b", b"");
    b.welcome();
    late.register(0, b"late", b"");
    assert_eq!(refusal(&mut late), Code::NoRoom);
}

fn silent_clients_are_ended_in_time_and_keep_nobody_out(engine: &str) {
    const TIMEOUT: Duration = Duration::from_millis(1500);
    /// More than may be about to register.
    const SILENT: usize = 300;
    let mesh = mesh(
        engine,
        &["--register", "name", "--register-timeout", "1500ms"],
    );
    let start = Instant::now();
    let mut silent: Vec<_> = (0..SILENT)
        .map(|_| Client::stranger(&mesh, usual()))
        .collect();
    // A part of a frame is as good as nothing.
    for client in &mut silent {
        let _ = client.stream.write_all(&[0, 0]);
    }
    let mut a = Client::named(&mesh, "a");
    let mut b = Client::named(&mesh, "b");
    a.send(b.id, b"hello");
    assert!(b.frame().ends_with(b"hello"));
    let last = silent.last_mut().expect("some");
    assert_eq!(refusal(last), Code::TooLate);
    assert!(start.elapsed() >= TIMEOUT);
    for client in &mut silent[..SILENT - 1] {
        assert_eq!(refusal(client), Code::TooLate);
    }
    // Members need not say anything.
    b.send(a.id, b"still there");
    assert!(a.frame().ends_with(b"still there"));
}

fn a_registration_needs_a_token_from_the_file(engine: &str) {
    let scratch = Scratch::new("tokens").expect("a directory");
    let path = scratch.path().join("tokens");
    let write = |text: &str| {
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    };
    write("first\n\nsecond token\r\n");
    let file = path.to_str().expect("a path");
    let mesh = mesh(engine, &["--register", "name", "--token-file", file]);
    let attempt = |name: &[u8], token: &[u8]| {
        let mut client = Client::stranger(&mesh, usual());
        client.register(0, name, token);
        (client.notice().code, client)
    };
    let (code, _one) = attempt(b"one", b"first");
    assert_eq!(code, Code::Welcome);
    let (code, _two) = attempt(b"two", b"second token");
    assert_eq!(code, Code::Welcome);
    for wrong in [&b""[..], b"firs", b"first\n", b"second", b"First"] {
        // Nor does it learn whether a name is taken.
        for name in [&b"three"[..], b"one", b""] {
            assert_eq!(attempt(name, wrong).0, Code::WrongToken, "{wrong:?}");
        }
    }
    write("third\n");
    mesh.signal(Signal::HUP);
    mesh.wait_logged("the token file was read again: 1 tokens");
    assert_eq!(attempt(b"three", b"first").0, Code::WrongToken);
    let (code, _three) = attempt(b"three", b"third");
    assert_eq!(code, Code::Welcome);
    // A file that is no use leaves things as they are.
    write("");
    mesh.signal(Signal::HUP);
    mesh.wait_logged("the tokens from before stay valid");
    let (code, _four) = attempt(b"four", b"third");
    assert_eq!(code, Code::Welcome);
    let logged = mesh.logged().join("\n");
    for secret in ["first", "second token", "third"] {
        assert!(!logged.contains(secret), "{logged}");
    }
}

#[test]
fn a_token_file_that_is_no_secret_is_refused() {
    let scratch = Scratch::new("tokens").expect("a directory");
    let path = scratch.path().join("tokens");
    let said = |text: &str, mode| {
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        let file = path.to_str().expect("a path");
        let arguments = [
            "mesh",
            "127.0.0.1:0",
            "--frame",
            "u32be@0",
            "--register",
            "name",
            "--token-file",
            file,
        ];
        failure(&mut command(&arguments), 1)
    };
    for mode in [0o604, 0o640, 0o620, 0o666] {
        let sentence = said("token\n", mode);
        let mode = format!("{mode:o}");
        assert!(
            sentence.contains("other users may use it")
                && sentence.contains(&mode)
                && sentence.contains("chmod 600"),
            "{sentence}"
        );
    }
    assert!(said("\n", 0o600).contains("it has no token"));
    assert!(said(&"x".repeat(1025), 0o600).contains("more than 1024 bytes"));
}
