//! What is too much for a configuration, each with its sentence.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use netlab::{Process, Scratch};

use crate::patience::PATIENCE;
use crate::relay::{BINARY, command, output};

const LISTENER: &str = "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:80\"\n";
const ROUTE: &str = "[[listener.route]]\nbackend = \"b\"\n";
const TO_BOTH: &str = "[[listener.route]]\nbackend = \"b\"\nfallback = \"c\"\n";
const BACKEND: &str = "[backend.b]\nservers = \"10.0.0.1:80\"\n";

/// What a check may take of a CPU: as long as somebody waits who has mistyped something. It is a test build that takes
/// it.
const CPU_SECONDS: u32 = 10;

/// How long that takes on a busy machine.
const LONGEST: Duration = PATIENCE.saturating_mul(5);

/// The status of the check of `text` and the lines of its messages, which may be more than fits into a pipe.
fn checked(text: &str) -> (Option<i32>, Vec<String>) {
    let scratch = Scratch::new("bounds").expect("a directory");
    scratch.write("c.toml", text).expect("written");
    let messages = scratch.path().join("messages");
    let script = format!("ulimit -t {CPU_SECONDS} && exec \"$@\"");
    let mut check = Process::command("sh");
    check
        .args(["-c", &script, "sh", BINARY, "check", "--config", "c.toml"])
        .env_remove("SPLICED_LOG")
        .current_dir(scratch.path())
        .stdout(Stdio::null())
        .stderr(File::create(&messages).expect("a file"));
    let mut process = Process::spawn(&mut check).expect("it starts");
    let status = process.wait_at_most(LONGEST).expect("it can be waited for");
    let said = fs::read_to_string(messages).expect("text");
    (
        status.expect("it ends in time").code(),
        said.lines().map(str::to_owned).collect(),
    )
}

/// Backends with `count` servers together.
fn servers(count: usize) -> String {
    let mut text = format!("{LISTENER}{ROUTE}");
    for (backend, from) in [("b", 0), ("c", count / 2)] {
        let to = if backend == "b" { count / 2 } else { count };
        let servers: Vec<_> = (from..to)
            .map(|number| format!("\"10.0.{}.{}:80\"", number / 250, number % 250))
            .collect();
        let servers = servers.join(", ");
        let _ = writeln!(text, "[backend.{backend}]\nservers = [{servers}]");
    }
    text.replace(ROUTE, TO_BOTH)
}

fn listeners(count: usize) -> String {
    let listener = |number| {
        let port = 1000 + number;
        format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\n{ROUTE}")
    };
    (0..count).map(listener).collect()
}

fn routes(count: usize) -> String {
    let route = |number| format!("[[listener.route]]\nsni = \"{number}.test\"\nbackend = \"b\"\n");
    (0..count).map(route).collect()
}

fn bypasses(count: usize) -> String {
    let bypass = |number| {
        format!(
            "[[bypass]]\nall = true\ncgroups = \"/sys/fs/cgroup\"\npins = \"/sys/fs/bpf/{number}\"\n"
        )
    };
    (0..count).map(bypass).collect()
}

/// Each server would take tens of milliseconds if the packet filters were read for it.
#[test]
fn as_much_as_is_allowed_is_checked_in_time() {
    // All of it in one configuration: each listener leads to each server.
    let servers = servers(10_000);
    let backends = &servers[servers.find("[backend").expect("a backend")..];
    let routes_left = routes(10_000 - 1000).replace(
        "[[listener.route]]",
        "[[listener.route]]\nprotocol = \"tls\"",
    );
    let everything = [&listeners(999), LISTENER, &routes_left, ROUTE, backends].concat();
    for text in [servers.clone(), everything.replace(ROUTE, TO_BOTH)] {
        assert_eq!(checked(&text), (Some(0), Vec::new()));
    }
}

/// Each value of a route is held against those of the other.
#[test]
fn routes_with_many_values_are_checked_in_time() {
    const COUNT: usize = 40_000;
    let list = |value: &dyn Fn(usize) -> String| -> String {
        let values: Vec<_> = (0..COUNT)
            .map(|number| format!("\"{}\"", value(number)))
            .collect();
        values.join(", ")
    };
    let route = |condition: &str, values: &str| {
        format!("[[listener.route]]\n{condition} = [{values}]\nbackend = \"b\"\n")
    };
    let names = |of: &str| list(&|number| format!("{number}.{of}.test"));
    let prefixes =
        |of: usize| list(&|number| format!("{of}.{}.{}.0/24", number / 256, number % 256));
    let paths = |of: &str| list(&|number| format!("/{of}/{number}/"));
    for (condition, first, second) in [
        ("sni", names("a"), names("b")),
        ("http_host", names("a"), names("b")),
        ("client", prefixes(10), prefixes(11)),
        ("http_path", paths("a"), paths("b")),
    ] {
        let routes = |second: &str| {
            let second = format!("{second}, {first}");
            [
                LISTENER,
                &route(condition, &first),
                &route(condition, &second),
                BACKEND,
            ]
            .concat()
        };
        let (status, said) = checked(&routes(&second));
        assert_eq!(status, Some(0), "{condition}: {said:?}");
        assert!(
            said.iter()
                .all(|line| !line.contains("no connection reaches"))
        );
        // All of them are covered.
        let (status, said) = checked(&routes(&first));
        let line = "no connection reaches this route, since the route of line 4";
        assert_eq!(status, Some(2), "{condition}");
        assert!(said.iter().any(|said| said.contains(line)), "{said:?}");
    }
}

#[test]
fn what_is_too_many_is_refused_where_it_begins() {
    for (text, place, what) in [
        (servers(10_001), "9:10", "10000 servers"),
        (servers(200_000), "7:10", "10000 servers"),
        (
            format!("{}{BACKEND}", listeners(1001)),
            "4001:1",
            "1000 listeners",
        ),
        (
            format!("{LISTENER}{}{BACKEND}", routes(10_001)),
            "30004:1",
            "10000 routes",
        ),
        (bypasses(101), "401:1", "100 bypasses"),
        // More than these would be compared with one another.
        (bypasses(40_000), "401:1", "100 bypasses"),
    ] {
        let (status, said) = checked(&text);
        let sentence = format!(
            "c.toml:{place}: a configuration has at most {what}, and here are more; divide them among several relays"
        );
        assert_eq!(said.first(), Some(&sentence));
        assert_eq!(status, Some(2), "{said:?}");
        assert_eq!(said.len(), 2, "{said:?}");
    }
}

/// Whatever is wrong with their control groups here.
#[test]
fn as_many_bypasses_as_are_allowed_are_read() {
    let (_, said) = checked(&bypasses(100));
    assert!(
        said.iter().all(|line| !line.contains("at most")),
        "{said:?}"
    );
}

/// As of a file of some other kind.
#[test]
fn a_mistake_in_every_line_is_told_a_hundred_times() {
    let values: String = (0..300_000).map(|key| format!("k{key} = 1\n")).collect();
    for text in ["= =\n".repeat(500_000), values] {
        let (status, said) = checked(&text);
        assert_eq!(status, Some(2));
        assert_eq!(said.len(), 102, "{:?}", said.first());
        let last = "there may be more like the 100 before; correct those first";
        assert!(said[100].ends_with(last), "{}", said[100]);
    }
}

#[test]
fn what_is_no_file_or_too_long_is_refused() {
    let scratch = Scratch::new("bounds").expect("a directory");
    let made = Process::command("mkfifo")
        .arg(scratch.path().join("fifo"))
        .status();
    assert!(made.expect("mkfifo").success());
    scratch
        .write("long", &"#".repeat((4 << 20) + 1))
        .expect("written");
    for (path, why) in [
        ("fifo", "it is not a regular file"),
        (".", "it is not a regular file"),
        ("/dev/zero", "it is not a regular file"),
        ("long", "it has more than 4 MiB"),
    ] {
        for verb in ["check", "run"] {
            let mut command = command(&[verb, "--config", path]);
            let output = output(command.current_dir(scratch.path()));
            let said = String::from_utf8_lossy(&output.stderr);
            let sentence = format!("the configuration cannot be read ({why}); choose another file");
            assert!(said.contains(&sentence), "{said}");
            assert_eq!(output.status.code(), Some(2), "{said}");
        }
    }
}

/// A file of prefixes has the same bounds.
#[test]
fn a_mistake_in_every_line_of_a_file_of_prefixes_is_told_a_hundred_times() {
    let scratch = Scratch::new("bounds").expect("a directory");
    let list = scratch
        .write("list", &"x\n".repeat(500_000))
        .expect("written");
    let list = list.display();
    let route = format!("[[listener.route]]\nclient = \"file:{list}\"\nbackend = \"b\"\n");
    // Each of them would read it again.
    let text = format!("{LISTENER}{}{BACKEND}", route.repeat(1000));
    let (status, said) = checked(&text);
    assert_eq!(status, Some(2));
    assert_eq!(said.len(), 102, "{:?}", said.first());
    assert!(said[99].ends_with("list:100:1: prefix \"x\" cannot be used: it is not an address; write 10.0.0.0/8 or 2001:db8::/32"));
    let last = format!("{list}:101:1: there may be more like the 100 before; correct those first");
    assert_eq!(said[100], last);
}

#[test]
fn a_file_of_prefixes_that_is_no_file_is_refused() {
    for path in [Path::new("/dev/zero"), Path::new("/")] {
        let path = path.display();
        let (status, said) = checked(&format!(
            "{LISTENER}[[listener.route]]\nclient = \"file:{path}\"\nbackend = \"b\"\n{BACKEND}"
        ));
        assert_eq!(status, Some(2));
        assert!(said[0].contains("it is not a regular file"), "{said:?}");
    }
}
