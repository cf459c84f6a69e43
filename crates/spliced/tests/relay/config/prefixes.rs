//! Prefixes from a file that changes while the relay runs.

use std::fs;

use netlab::Scratch;

use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{Relay, command};
use crate::server::Server;

#[test]
fn a_change_of_a_file_of_prefixes_changes_the_route() {
    let scratch = Scratch::new("prefixes").expect("a directory");
    let (listed, other) = (Server::new(), Server::new());
    let text = format!(
        "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\n\
         [[listener.route]]\nclient = \"file:list\"\nbackend = \"listed\"\n\
         [[listener.route]]\nbackend = \"other\"\n\
         [backend.listed]\nservers = {:?}\n[backend.other]\nservers = {:?}\n",
        listed.address, other.address
    );
    let list = scratch.write("list", "# Nobody.\n").expect("written");
    let path = scratch.write("spliced.toml", &text).expect("written");
    let path = path.to_str().expect("a path");
    let relay = Relay::spawn(&mut command(&["run", "--config", path]));
    let goes_to = |server: &Server| {
        let client = Peer::connect(&relay.address);
        let both = [&listed, &other];
        let found = until_accepted(&both);
        drop(client);
        std::ptr::eq(both[found], server)
    };
    assert!(goes_to(&other));

    // In one step: a file that is written in place may be read while it is empty.
    let replace = |text| {
        let new = scratch.write("new", text).expect("written");
        fs::rename(new, &list).expect("renamed");
    };
    replace("127.0.0.0/8\n");
    until("the new prefixes apply", || goes_to(&listed));

    replace("127.0.0.1/8\n");
    let said = relay.wait_logged("the last good prefixes go on");
    assert!(said.contains("list:1:1: prefix \"127.0.0.1/8\""), "{said}");
    assert!(goes_to(&listed));

    replace("192.0.2.0/24\n");
    until("the next prefixes apply", || goes_to(&other));
    assert_eq!(relay.lines_logged("the last good prefixes go on"), 1);
}

/// Which of `servers` a connection came to.
fn until_accepted(servers: &[&Server]) -> usize {
    let mut found = None;
    until("a server is called", || {
        found = servers
            .iter()
            .position(|server| server.is_called_within(std::time::Duration::ZERO));
        found.is_some()
    });
    let found = found.expect("found above");
    drop(servers[found].accept());
    found
}
