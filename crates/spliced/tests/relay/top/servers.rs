//! The page of backends, and orders about a server.

use netlab::Scratch;

use super::terminal::{Size, Terminal};
use super::{DOWN, END, USUAL};
use crate::peer::Peer;
use crate::proxy::Proxy;
use crate::relay::{Relay, command};
use crate::server::{Server, free_port};

/// Longer than the least width of its column.
const BACKEND: &str = "a-backend-with-a-long-name";

const FILE: &str = "proxy.toml";

/// A proxy with two servers, which answers on a socket for orders and on one for reading.
struct Scene {
    servers: [Server; 2],
    relay: Relay,
    scratch: Scratch,
}

impl Scene {
    fn new() -> Self {
        let servers = [(); 2].map(|()| Server::new());
        let scratch = Scratch::new("top").expect("a directory");
        let [one, other] = servers.each_ref().map(|server| &server.address);
        let text = format!(
            "[process]\ncontrol = \"control\"\ncontrol_read = \"read\"\n\
             [[listener]]\nname = \"web\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"{BACKEND}\"\n\
             [backend.{BACKEND}]\nservers = [{{ address = \"{one}\", weight = 2 }}, \"{other}\"]\n",
        );
        scratch.write(FILE, &text).expect("written");
        let relay = start(&scratch);
        Self {
            servers,
            relay,
            scratch,
        }
    }

    /// The page of backends, by the socket with this name.
    fn page(&self, size: Size, socket: &str) -> Terminal {
        let mut top = Terminal::top(size, &["--control", &self.socket(socket)]);
        top.until_shown("1 process");
        top.press("2");
        top
    }

    fn socket(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    /// The first server, as questions name it.
    fn first(&self) -> String {
        let (server, process) = (&self.servers[0].address, self.relay.id());
        format!("server {server} of backend {BACKEND} in process {process}")
    }

    /// Its state, its sessions and its weight, without the time that there may be room for.
    fn row(&self, lines: &[String]) -> Vec<String> {
        let address = &self.servers[0].address;
        let row = lines[3..].iter().find(|line| line.contains(&**address));
        let cells = row.map(|row| row.split_once(&**address).expect("found").1);
        let words = cells.unwrap_or_default().split_whitespace();
        let is_time =
            |word: &&str| word.starts_with(|it: char| it.is_ascii_digit()) && word.ends_with('s');
        let words = words.filter(|word| !is_time(word));
        words.map(str::to_owned).collect()
    }
}

fn start(scratch: &Scratch) -> Relay {
    let file = scratch.path().join(FILE);
    Relay::spawn(command(&["run", "--config"]).arg(file))
}

/// Without the wraps, which depend on the length of numbers.
fn last_lines(lines: &[String]) -> String {
    lines[lines.len() - 3..lines.len() - 1]
        .join(" ")
        .trim_end()
        .to_owned()
}

#[test]
fn a_server_is_drained_undrained_and_weighed_by_keys() {
    let scene = Scene::new();
    let mut top = scene.page(USUAL, "control");
    let lines = top.until("both are there", |lines| {
        scene
            .servers
            .iter()
            .all(|server| lines.iter().any(|line| line.contains(&server.address)))
    });
    for head in ["BACKEND", "SERVER", "STATE", "SESSIONS", "WEIGHT"] {
        assert!(lines[2].contains(head), "{}", lines[2]);
    }
    assert!(lines[3].starts_with("a-back"), "{}", lines[3]);
    assert!(lines[3].contains("~"), "the name is cut: {}", lines[3]);
    // What is asked does nothing yet.
    let first = scene.first();
    for (key, question) in [("d", "Drain"), ("u", "Undrain")] {
        top.press(key);
        let question = format!("{question} {first}? y/n");
        top.until(&question, |lines| last_lines(lines) == question);
        top.press("n");
        top.until_shown("addresses: ");
    }
    top.press("dy");
    let done = format!(
        "server {} gets no new clients; those that it has go on",
        scene.servers[0].address
    );
    top.until(&done, |lines| last_lines(lines) == done);
    top.until("its row says so", |lines| {
        scene
            .row(lines)
            .starts_with(&["drained".into(), "0".into(), "2".into()])
    });
    // Its message is there until the next key.
    top.press(DOWN);
    top.until_gone("gets no new clients");
    let near = Peer::connect(&scene.relay.address);
    let far = scene.servers[1].accept();
    near.write_number(1);
    assert_eq!(far.read_number(), 1);
    top.press("\x1b[H");
    top.press("u\r");
    top.until_shown("is no longer drained");
    top.until("it serves again", |lines| {
        scene.row(lines).first().is_some_and(|state| state == "not")
    });
    top.press("w257\r");
    top.until_shown("it is not a number from 0 to 256");
    top.press("\x7f\x7f\x7f");
    let weight = format!("The weight of {first}, from 0 to 256");
    top.until(&weight, |lines| last_lines(lines) == weight);
    top.press("0\r");
    let question = format!("Change the weight of {first} from 2 to 0? y/n");
    top.until(&question, |lines| last_lines(lines) == question);
    top.press("y");
    top.until_shown("has the weight 0 now");
    top.until("its row has it", |lines| {
        scene
            .row(lines)
            .starts_with(&["weight", "0", "0", "0"].map(Into::into))
    });
    for order in ["POST", "PUT"] {
        scene.relay.wait_logged(&format!("{order} /v1/backends/"));
    }
    top.press("q");
    assert!(top.wait_end().success());
    top.expect_as_before();
}

#[test]
fn an_order_on_a_socket_for_reading_is_refused_in_words() {
    let scene = Scene::new();
    for size in [USUAL, (200, 60)] {
        let mut top = scene.page(size, "read");
        top.until("it is there", |lines| !scene.row(lines).is_empty());
        for keys in ["dy", "uy", "w3\ry"] {
            top.press(keys);
            let refused = "this socket is for reading only; ask the control socket";
            top.until(refused, |lines| last_lines(lines) == refused);
            top.press(DOWN);
            top.until_gone("for reading only");
            top.press("\x1b[H");
        }
    }
    let mut top = scene.page(USUAL, "control");
    top.until("nothing has changed", |lines| {
        scene
            .row(lines)
            .starts_with(&["not", "checked", "0", "2"].map(Into::into))
    });
}

#[test]
fn an_order_goes_to_the_process_that_was_asked_about() {
    let mut scene = Scene::new();
    let mut top = scene.page(USUAL, "control");
    top.until("it is there", |lines| !scene.row(lines).is_empty());
    top.press("d");
    let question = format!("Drain {}? y/n", scene.first());
    top.until(&question, |lines| last_lines(lines) == question);
    let process = scene.relay.id();
    scene.relay.terminate();
    scene.relay = start(&scene.scratch);
    top.press("y");
    let server = &scene.servers[0].address;
    let ended = format!("process {process} has ended, and its server {server} with it");
    top.until(&ended, |lines| last_lines(lines) == ended);
    assert_eq!(scene.relay.lines_logged("was asked for by"), 0);
    // Nobody is there at all.
    let mut top = scene.page(USUAL, "control");
    top.until("it is there", |lines| !scene.row(lines).is_empty());
    top.press("d");
    let question = format!("Drain {}? y/n", scene.first());
    top.until(&question, |lines| last_lines(lines) == question);
    let process = scene.relay.id();
    scene.relay.terminate();
    top.press("y");
    let server = &scene.servers[0].address;
    let ended = format!("process {process} has ended, and its server {server} with it");
    top.until(&ended, |lines| last_lines(lines) == ended);
}

#[test]
fn the_page_of_backends_in_200_columns() {
    let scene = Scene::new();
    let mut top = scene.page((200, 60), "control");
    let lines = top.until("it is there", |lines| !scene.row(lines).is_empty());
    let head: Vec<_> = lines[2].split_whitespace().collect();
    assert_eq!(
        head.join(" "),
        "BACKEND SERVER STATE FOR SESSIONS WEIGHT TOTAL FAILED WHY, OR THE LAST ERROR"
    );
    let words: Vec<_> = lines[3].split_whitespace().collect();
    assert_eq!(words[..2], [BACKEND, &*scene.servers[0].address]);
    let row = ["not", "checked", "0", "2", "0", "0", "-"];
    assert_eq!(scene.row(&lines), row);
    let keys = "F1Help F3Search dDrain uUndrain wWeigh F10Quit TabPage pPause";
    assert_eq!(lines[59], keys);
    top.press("d");
    let question = format!("Drain {}? y/n", scene.first());
    let lines = top.until_shown(&question);
    assert_eq!(lines[57], question);
    assert_eq!(lines[59], "y drains it; any other key leaves it");
}

#[test]
fn the_page_of_backends_says_which_server_is_down_and_why() {
    let server = Server::new();
    let port = free_port();
    let proxy = Proxy::run(&format!(
        "[[listener]]\nname = \"web\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = [\"{}\", \"127.0.0.1:{port}\"]\n\
         health = {{ tcp = true, every = \"50ms\", fall = 1 }}\n",
        server.address
    ));
    let configuration = proxy.configuration();
    let mut top = Terminal::top(USUAL, &["--config", configuration]);
    top.until_shown("1 process");
    top.press("2");
    let down = format!("127.0.0.1:{port}");
    let is_row = |line: &&String, address: &str, state: &str| {
        let mut words = line.split_whitespace();
        words.next() == Some("b") && words.next() == Some(address) && words.next() == Some(state)
    };
    let lines = top.until("the check has failed", |lines| {
        lines.iter().any(|line| is_row(&line, &down, "down"))
            && lines
                .iter()
                .any(|line| is_row(&line, &server.address, "up"))
    });
    let head: Vec<_> = lines[2].split_whitespace().take(4).collect();
    assert_eq!(head, ["BACKEND", "SERVER", "STATE", "FOR"]);
    assert!(lines[1].contains("2 Backends"), "{}", lines[1]);
    top.press(END);
    top.until_shown(&format!("{down}: down: "));
    top.until_shown("addresses: 127.0.0.1:");
    drop(server);
    top.press("q");
    assert!(top.wait_end().success());
}
