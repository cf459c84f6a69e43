//! The examples in C and Python of the protocol by which sockets are handed over.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use netlab::{Need, PATIENCE, Process, Scratch, available, present, program};
use splice_sockmap::{MapType, Redirect, Redirections, SocketKind, handover};

use crate::conversation::{Pair, put, take};
use crate::sockets::channel;

fn example(name: &str) -> PathBuf {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/sockmap/handover"
    ))
    .join(name)
}

fn installed(name: &str) -> Option<PathBuf> {
    let found = program(name);
    let why = found
        .is_none()
        .then(|| format!("no {name} (apt install {name})"));
    present(name, why);
    found
}

/// The words of a command that asks, in each language that there is.
fn asking(scratch: &Scratch) -> Vec<Vec<PathBuf>> {
    let mut commands = Vec::new();
    if let Some(python) = installed("python3") {
        commands.push(vec![python, example("ask.py")]);
    }
    if let Some(compiler) = installed("gcc") {
        let built = scratch.path().join("ask");
        let status = Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-o"])
            .args([&built, &example("ask.c")])
            .status();
        assert!(status.expect("it starts").success());
        commands.push(vec![built]);
    }
    commands
}

fn duplicate(socket: impl AsFd) -> Stdio {
    let socket: OwnedFd = socket.as_fd().try_clone_to_owned().expect("a duplicate");
    socket.into()
}

/// Has a command ask, and returns what it says and whether it has succeeded.
fn ask(
    words: &[PathBuf],
    scratch: &Scratch,
    channel: impl AsFd,
    source: impl AsFd,
    target: impl AsFd,
) -> (bool, String) {
    let said = scratch.path().join("said");
    let mut process = Process::spawn(
        Process::command("sh")
            .args([
                "-c",
                r#"exec "$@" 3 4 5 3<&0 4<&1 5<&2 >"$SAID" 2>&1"#,
                "sh",
            ])
            .args(words)
            .env("SAID", &said)
            .stdin(duplicate(channel))
            .stdout(duplicate(source))
            .stderr(duplicate(target)),
    )
    .expect("it starts");
    let status = process.wait_at_most(PATIENCE).expect("waited");
    let text = fs::read_to_string(&said).expect("what it says");
    (status.expect("it ends").success(), text)
}

#[test]
fn c_and_python_hand_sockets_over() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("handover").expect("a directory");
    for words in asking(&scratch) {
        let (asks, links) = channel();
        let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
        let linker = thread::spawn(move || {
            let redirections = Redirections::new(Redirect::IngressToEgress, MapType::Hash, 8);
            let redirections = redirections.expect("loaded");
            while let Some(request) = handover::next(&links).expect("received") {
                let linked = redirections.link(&request.source, &request.target);
                let told = request.answer(linked.as_ref().map(|_| ()));
                told.expect("answered");
            }
        });
        let asked = ask(&words, &scratch, &asks, &source.member, &target.member);
        assert_eq!(asked, (true, "linked\n".into()), "{words:?}");
        put(&source.peer, b"hello");
        assert_eq!(take(&target.peer), b"hello");
        let (linked, said) = ask(&words, &scratch, &asks, &source.member, &target.member);
        assert!(!linked && said.starts_with("refused: "), "{said}");
        assert!(said.contains("has a link already"), "{said}");
        drop(asks);
        linker.join().expect("the linker");
    }
}

#[test]
fn python_answers() {
    let Some(python) = installed("python3") else {
        return;
    };
    let (asks, answers) = channel();
    let _process = Process::spawn(
        Process::command(python)
            .arg(example("answer.py"))
            .arg("0")
            .stdin(duplicate(&answers)),
    )
    .expect("it starts");
    drop(answers);
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    handover::ask(&asks, &source.member, &target.member).expect("linked");
    put(&source.peer, b"hello");
    assert_eq!(take(&target.peer), b"hello");
    let datagrams = Pair::of(SocketKind::Udp);
    let refused = handover::ask(&asks, &datagrams.member, &target.member).expect_err("refused");
    assert!(
        refused.to_string().contains("only streams are copied here"),
        "{refused}"
    );
}
