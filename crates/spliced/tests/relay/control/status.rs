//! What `spliced status` says of a server.

use serde_json::Value;

use super::relay_to_nobody;
use crate::patience::until_found;
use crate::peer::Peer;
use crate::relay::{command, output};

/// It has no checks and no other server beside it, so that it stays in use.
#[test]
fn a_server_that_refuses_every_client_has_a_reason_and_a_time() {
    let (_scratch, socket, relay) = relay_to_nobody();
    let path = socket.to_str().expect("UTF-8");
    Peer::connect(&relay.address).expect_reset();
    let shown = |arguments: &[&str]| {
        let output = output(command(arguments).args(["--control", path]));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let error = until_found("it is told", || {
        let told: Value = serde_json::from_str(&shown(&["status", "--json"])).expect("JSON");
        let server = &told[0]["backends"][0]["servers"][0];
        assert_eq!(
            (&server["state"], &server["why"]),
            (&"not checked".into(), &Value::Null)
        );
        let error = server["last_error"].clone();
        (!error.is_null()).then_some(error)
    });
    assert_eq!(error["error"], "connection refused");
    let time = error["time"].as_str().expect("a time");
    humantime::parse_rfc3339(time).expect("RFC 3339");
    let table = shown(&["status"]);
    let row = table.lines().last().expect("a server");
    assert!(
        row.contains("  last error ") && row.ends_with(" ago: connection refused"),
        "{table}"
    );
}
