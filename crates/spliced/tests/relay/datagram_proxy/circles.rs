//! Listeners of one configuration that lead to one another.

use netlab::Scratch;

use crate::proxy::Proxy;
use crate::relay::{command, output};
use crate::server::free_port;

/// Listeners `a` and `b`, each of which leads to the other one. `of_b` is in the route of the latter.
fn configuration(kind: &str, of_b: &str) -> String {
    let [a, b] = [(); 2].map(|()| format!("{kind}127.0.0.1:{}", free_port()));
    format!(
        "[[listener]]\nname = \"a\"\naddress = {a:?}\n[[listener.route]]\nbackend = \"to_b\"\n\
         [[listener]]\nname = \"b\"\naddress = {b:?}\n[[listener.route]]\n{of_b}\nbackend = \"to_a\"\n\
         [backend.to_a]\nservers = {a:?}\n[backend.to_b]\nservers = {b:?}\n"
    )
}

#[test]
fn a_circle_that_no_client_leaves_is_refused() {
    for kind in ["udp:", ""] {
        let scratch = Scratch::new("circle").expect("a directory");
        let path = scratch.write("c.toml", &configuration(kind, ""));
        let path = path.expect("written").display().to_string();
        let why = "listeners lead to one another (a -> b -> a), so that clients go round";
        for verb in ["run", "check"] {
            let output = output(&mut command(&[verb, "--config", &path]));
            assert_eq!(output.status.code(), Some(2), "{verb}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(why), "{said}");
        }
    }
}

#[test]
fn a_circle_that_some_clients_leave_is_warned_of() {
    for kind in ["udp:", ""] {
        let text = configuration(kind, "client = \"127.0.0.0/8\"");
        let scratch = Scratch::new("circle").expect("a directory");
        let path = scratch.write("c.toml", &text).expect("written");
        let path = path.display().to_string();
        let why = "listeners lead to one another (a -> b -> a), so that some clients go round";
        let output = output(&mut command(&["check", "--config", &path]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("warning: {why}")), "{said}");
        assert!(output.status.success(), "{said}");
        Proxy::run(&text).relay.wait_logged(why);
    }
}
