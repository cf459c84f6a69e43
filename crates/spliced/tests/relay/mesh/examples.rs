//! The clients in `examples/mesh/`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use netlab::{Need, Process, Scratch, available, present, program};

use super::client::{Client, mesh};
use crate::relay::Relay;

/// The first time, the compiler builds its whole standard library beside the other tests.
const COMPILATION: Duration = Duration::from_secs(240);

/// A running example.
struct Example {
    _process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Example {
    fn start(command: &mut Command, mesh: &Relay, name: &str) -> Self {
        command.args([&*mesh.address, name]);
        let mut process =
            Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).expect("started");
        let child = process.child_mut();
        Self {
            input: child.stdin.take().expect("a pipe"),
            output: BufReader::new(child.stdout.take().expect("a pipe")),
            _process: process,
        }
    }

    fn type_line(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("typed");
    }

    /// The next line that it writes; empty at the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read");
        line.trim_end().into()
    }
}

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/mesh")
        .join(path)
}

fn is_there(name: &str, package: &str) -> bool {
    let missing = program(name).is_none();
    present(
        name,
        missing.then(|| format!("no {name} (apt install {package})")),
    )
}

/// Two of them register, look one another up, send, receive, and are refused what is for nobody.
fn works(start: impl Fn(&Relay, &str) -> Example) {
    let mesh = mesh("auto", &["--register", "name"]);
    let mut alice = start(&mesh, "alice");
    assert_eq!(alice.line(), "registered as 1");
    let mut bob = start(&mesh, "bob");
    assert_eq!(bob.line(), "registered as 2");
    alice.type_line("bob hello, bob");
    assert_eq!(bob.line(), "hello, bob");
    bob.type_line("1 hello to an id");
    assert_eq!(alice.line(), "hello to an id");
    bob.type_line("carol are you there?");
    assert_eq!(bob.line(), "nobody has this name");
    bob.type_line("99 to nobody");
    assert_eq!(bob.line(), "notice 2 frames 1 destination 99");
    // They speak the same as the clients of the tests.
    let mut carol = Client::named(&mesh, "carol");
    bob.type_line("carol hello, carol");
    assert!(carol.frame().ends_with(b"hello, carol"));
    carol.send(1, b"hello, alice");
    assert_eq!(alice.line(), "hello, alice");
    let mut impostor = start(&mesh, "bob");
    assert_eq!(impostor.line(), "notice 8 frames 0 destination 0");
    drop(impostor.input);
    drop(bob.input);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut bob.output, &mut rest).expect("read");
    assert_eq!(rest, "");
    mesh.wait_logged("member 2 has left, it ended its stream");
}

#[test]
fn in_python() {
    if available(Need::Bpf) && is_there("python3", "python3") {
        works(|mesh, name| {
            let mut command = Process::command("python3");
            Example::start(command.arg(example("client.py")), mesh, name)
        });
    }
}

#[test]
fn in_go() {
    if !(available(Need::Bpf) && is_there("go", "golang-go")) {
        return;
    }
    let scratch = Scratch::new("mesh-go").expect("a directory");
    let client = scratch.path().join("client");
    let mut go = Command::new("go");
    go.args(["build", "-o"])
        .arg(&client)
        .arg(".")
        .current_dir(example("go"))
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .env("GOPROXY", "off")
        .env("GOTOOLCHAIN", "local")
        .env("GOPATH", scratch.path().join("path"))
        // Kept for the next run: it has the compiled standard library.
        .env(
            "GOCACHE",
            Path::new(env!("CARGO_TARGET_TMPDIR")).join("mesh-go"),
        )
        .env_remove("GOROOT");
    let built = crate::relay::output_within(COMPILATION, &mut go);
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(built.status.success(), "{said}");
    works(|mesh, name| Example::start(&mut Process::command(&client), mesh, name));
}
