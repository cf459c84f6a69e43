//! The tour in docs/sockmap-api.md: each of its commands and examples does what the page says.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;
use std::thread;

use netlab::{BpfFileSystem, Need, Process, available, built_examples};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Of code. A scenario that needs more is not what the interface is for.
const MOST_LINES: usize = 60;

fn example(name: &str, pins: &Path) -> Process {
    static DIRECTORY: OnceLock<std::path::PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| built_examples("splice-sockmap"));
    let mut command = Process::command(directory.join(name));
    command.stdout(Stdio::piped());
    if name == "ingress_to_egress" {
        command.args(["127.0.0.1:0", &server().to_string()]);
    }
    if name == "lease" {
        command.arg(pins.join("lease"));
    }
    Process::spawn(&mut command).expect("it starts")
}

/// Returns everything to one client, once the client has ended its stream.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("accepted");
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).expect("read");
        client.write_all(&bytes).expect("written");
    });
    address
}

/// The blocks of the page in a language.
fn blocks(language: &str) -> Vec<String> {
    let page = fs::read_to_string(format!("{ROOT}/docs/sockmap-api.md")).expect("the page");
    let begin = format!("\n```{language}\n");
    let blocks = page.split(&begin).skip(1);
    let blocks = blocks.map(|rest| rest.split("\n```").next().expect("an end").to_owned());
    blocks.collect()
}

/// Those in Rust; examples in other languages lie in directories.
fn examples() -> Vec<(String, String)> {
    let directory = Path::new(ROOT).join("examples/sockmap");
    let files = fs::read_dir(directory).expect("a directory").flatten();
    let paths = files.map(|file| file.path());
    let examples = paths.filter(|path| path.is_file()).map(|path| {
        let name = path.file_stem().expect("a name").to_string_lossy();
        let text = fs::read_to_string(&path).expect("text");
        (name.into_owned(), text)
    });
    examples.collect()
}

/// Without indentation, which a part of a function has and a block of the page has not.
fn lines(of: &str) -> Vec<&str> {
    of.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn the_code_of_the_page_is_that_of_the_examples() {
    let examples = examples();
    let blocks = blocks("rust");
    assert!(blocks.len() >= 4, "{blocks:?}");
    for block in blocks {
        let part = lines(&block);
        let is_part = |text: &str| lines(text).windows(part.len()).any(|some| some == part);
        assert!(
            examples.iter().any(|(_, text)| is_part(text)),
            "in no example:\n{block}"
        );
    }
}

#[test]
fn every_example_is_run_by_the_page_and_is_short() {
    let examples: BTreeSet<_> = examples()
        .into_iter()
        .map(|(name, text)| {
            let code = |line: &&str| !line.is_empty() && !line.starts_with("//");
            let length = lines(&text).into_iter().filter(code).count();
            assert!(length <= MOST_LINES, "{name}: {length} lines");
            name
        })
        .collect();
    let run: BTreeSet<_> = commands().into_iter().map(|(name, _)| name).collect();
    assert_eq!(run, examples);
}

/// Each example that the page runs, with what it prints there.
fn commands() -> Vec<(String, String)> {
    let mut commands = Vec::new();
    for block in blocks("console") {
        for command in block.split("$ ").skip(1) {
            let (line, printed) = command.split_once('\n').unwrap_or((command, ""));
            if let Some((_, example)) = line.split_once("--example ") {
                let name = example.split(' ').next().expect("a name");
                commands.push((name.to_owned(), printed.trim_end().to_owned()));
            }
        }
    }
    commands
}

#[test]
fn every_example_prints_what_the_page_says() {
    if !available(Need::Root) {
        return;
    }
    let pins = BpfFileSystem::new("tour").expect("a BPF file system");
    for (name, printed) in commands() {
        let mut process = example(&name, pins.path());
        let mut output = BufReader::new(process.child_mut().stdout.take().expect("piped"));
        let mut first = String::new();
        output.read_line(&mut first).expect("a line");
        if name == "ingress_to_egress" {
            let address = first
                .trim_end()
                .strip_prefix("listening on ")
                .expect("an address");
            converse(address);
            // It runs until it is ended.
            continue;
        }
        output.read_to_string(&mut first).expect("text");
        assert_eq!(first.trim_end(), printed, "{name}");
        let status = process.child_mut().wait().expect("waited");
        assert!(status.success(), "{name}: {status}");
    }
}

/// Everything goes to the server and comes back, and so does the end of the stream.
fn converse(address: &str) {
    let mut client = TcpStream::connect(address).expect("connected");
    let sent: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_ne_bytes).collect();
    let mut writer = client.try_clone().expect("a duplicate");
    let mut come = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).expect("written");
            writer.shutdown(Shutdown::Write).expect("ended");
        });
        client.read_to_end(&mut come).expect("read");
    });
    assert!(come == sent, "{} of {} bytes", come.len(), sent.len());
}
