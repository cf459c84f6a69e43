//! Network namespaces with VSOCK ports of their own, as Linux 7.0 and later can make them (`child_ns_mode`,
//! net/vmw_vsock/af_vsock.c).

use netlab::{Namespace, present};

use crate::peer::{Peer, exchange};
use crate::relay::{BINARY, Relay};
use crate::server::Server;

const MODE_OF_CHILDREN: &str = "net.vsock.child_ns_mode";

fn relay_in(namespace: &Namespace, listen: &str, target: &str) -> Relay {
    let mut command = namespace.command(BINARY);
    Relay::spawn(
        command
            .args(["relay", listen, target])
            .env_remove("SPLICED_LOG"),
    )
}

/// A relay reaches the ports of its own namespace. Of one in another namespace it says why it does not reach it.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn a_vsock_target_in_another_namespace_is_refused_with_the_reason() {
    const BYTES: u64 = 1_000_000;
    const TARGET: &str = "vsock:1:70709";
    // What is made within it inherits its mode, so this machine's own stays as it is.
    let outer = Namespace::new("outer").expect("a namespace");
    let has_none = outer.sysctl(MODE_OF_CHILDREN).expect("read").is_none();
    let why = has_none.then(|| format!("no {MODE_OF_CHILDREN}, which came with Linux 7.0"));
    if !present("vsock-namespaces", why) {
        return;
    }
    outer.set_sysctl(MODE_OF_CHILDREN, "local").expect("set");
    let [near, far] = ["near", "far"].map(|role| {
        let made = outer.enter(|| Namespace::new(role));
        made.expect("entered").expect("a namespace")
    });
    let mode = far.sysctl("net.vsock.ns_mode").expect("read");
    assert_eq!(mode.as_deref(), Some("local"));

    let server = Server::in_namespace(&far, "127.0.0.1:0");
    let _inner = relay_in(&far, "vsock::70709", &server.address);
    let beside = relay_in(&far, "127.0.0.1:0", TARGET);
    let client = far.enter(|| Peer::connect(&beside.address));
    exchange(&client.expect("entered"), &server.accept(), 1, BYTES, BYTES);

    let elsewhere = relay_in(&near, "127.0.0.1:0", TARGET);
    let _client = near.enter(|| Peer::connect(&elsewhere.address));
    let line = elsewhere.wait_logged("nothing listens there");
    assert!(line.contains("network namespace"), "{line}");
}
