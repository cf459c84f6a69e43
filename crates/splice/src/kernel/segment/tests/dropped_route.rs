//! Sockets whose route the kernel drops while they are idle: they find the next one, and are spliced.

use super::*;
use splice_bpf::types::SegmentTuple;

/// When the route goes.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Before the engine sees the pair.
    New,
    /// While the program watches it.
    Watched,
}

/// The way to the server, of its own; without it there is the one to the whole network.
fn route(lab: &Lab, how: &str, server: IpAddr) {
    let version = if server.is_ipv4() { "-4" } else { "-6" };
    let route = format!("{version} route {how} {server} dev {}", Lab::TO_SERVER);
    run(lab.relay(), "ip", &route);
}

/// Removes that; the kernel takes it from sockets a while later (`dst_dev_put`).
fn drop_route(lab: &Lab, server: IpAddr, tuples: &[SegmentTuple; 2]) {
    route(lab, "del", server);
    let datapath = datapath_in(lab);
    let is_dropped = || {
        let found = datapath.inspect(tuples).expect("run");
        found.socket[1].out_device == 0
    };
    netlab::until("a socket has no route", || {
        lab.relay().enter(is_dropped).expect("entered")
    });
}

fn are_spliced(connect: fn(&Lab) -> Connected, server: IpAddr) {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    for when in [When::New, When::Watched] {
        route(&lab, "add", server);
        let connected = connect(&lab);
        let tuples = [tuple(&connected.a), tuple(&connected.b)];
        let joined = match when {
            When::New => {
                drop_route(&lab, server, &tuples);
                connected.join(&splicer, &by_name())
            }
            When::Watched => {
                let halt = Halt::at(&splicer, ["watching"]);
                let joined = connected.join(&splicer, &by_name());
                halt.wait();
                drop_route(&lab, server, &tuples);
                halt.go_on();
                joined
            }
        };
        let (client, server, handle) = joined;
        // Without a byte.
        netlab::until(&format!("{when:?}: the engine has the pair"), || {
            assert!(handle.outcome().is_none(), "{when:?}: {handle:?}");
            handle.engine().0 == EngineName::Segment
        });
        ping(&client, &server);
    }
}

#[test]
fn are_spliced_v4() {
    are_spliced(Connected::across, Lab::SERVER_V4.into());
}

#[test]
fn are_spliced_v6() {
    are_spliced(Connected::across_v6, Lab::SERVER_V6.into());
}
