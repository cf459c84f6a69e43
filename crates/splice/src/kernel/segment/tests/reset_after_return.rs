//! Resets soon after a pair has gone back to its sockets, which may lag behind their peers: they are passed on, and nothing
//! is left of the pair.

use std::net::{IpAddr, TcpListener};

use rustix::net::{connect_unspec, sockopt};

use super::return_scene::{Form, Scene, wait_for_return};
use super::*;

/// A pair whose relay still listens where its client has connected.
fn connect(scene: &Scene, is_v4: bool) -> (Connected, TcpListener) {
    let lab = &scene.lab;
    let [relay, server]: [IpAddr; 2] = match is_v4 {
        true => [Lab::RELAY_V4.into(), Lab::SERVER_V4.into()],
        false => [Lab::RELAY_V6.into(), Lab::SERVER_V6.into()],
    };
    let (front, front_address) = listen_in(lab.relay(), (relay, 0));
    // As ss(8) has every socket get one.
    sockopt::socket_cookie(&front).expect("a cookie");
    let (back, back_address) = listen_in(lab.server(), (server, 0));
    let client = connect_in(lab.client(), front_address);
    let a = front.accept().expect("accept").0;
    let b = connect_in(lab.relay(), back_address);
    let server = back.accept().expect("accept").0;
    (Connected::new(client, [a, b], server), front)
}

/// One peer sends as much as it can, at some moment the pair goes back, and then that peer, or the other one, resets its
/// connection.
#[test]
fn a_reset_soon_after_the_return_is_passed_on() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    let mut random = Random::seeded(seed());
    let mut listeners = Vec::new();
    for round in 0..rounds(24) {
        let (is_v4, sends, resets) = (round % 2 == 0, round / 2 % 2, round / 4 % 2);
        let (connected, front) = connect(&scene, is_v4);
        listeners.push(front);
        let joined = spliced(&scene.lab, &scene.splicer, connected);
        netlab::until("it is translated", || scene.translated(&joined).is_some());
        let ends = [&joined.0, &joined.1];
        let place = random.below(2 << 20);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut from = ends[sends];
                while from.write_all(&[7; 4096]).is_ok() {}
            });
            scope.spawn(|| {
                let mut to = ends[1 - sends];
                while to.read(&mut [0; 65536]).is_ok_and(|count| count > 0) {}
            });
            netlab::until("it has got there", || joined.2.counters().total() >= place);
            let began = Instant::now();
            while let Some(frame) = scene.next(&joined, sends) {
                assert!(began.elapsed() < PATIENCE, "it does not go back");
                scene.feed(sends, &Form::Fragment.of(&frame));
            }
            wait_for_return(&joined);
            connect_unspec(ends[resets]).expect("reset");
            let what = format!("round {round}: the other one is reset");
            netlab::until(&what, || ends[1 - resets].peer_addr().is_err());
        });
        let outcome = joined.2.wait_timeout(PATIENCE).expect("it ends");
        assert!(matches!(outcome.reason, Reason::Reset(_)), "{outcome:?}");
    }
    netlab::until("nothing is left of them", || scene.datapath.entries() == 0);
}

/// A rule of a host's filter that drops segments.
fn drops(net: &Namespace, chain: &str, flags: &str) {
    run(
        net,
        "nft",
        &format!("add rule inet t {chain} tcp flags & {flags} drop"),
    );
}

/// Has both peers' hosts filter what comes and goes, with rules that are added later.
fn filter(scene: &Scene) {
    for net in peers(scene) {
        run(net, "nft", "add table inet t");
        for hook in ["input", "output"] {
            let chain =
                format!("add chain inet t {hook} {{ type filter hook {hook} priority 0 ; }}");
            run(net, "nft", &chain);
        }
    }
}

/// Removes the rules of one host, and what they hang on.
fn let_pass(net: &Namespace) {
    run(net, "nft", "delete table inet t");
}

/// A pair that has gone back while its server has sent something of which nobody knows whether the client has got it. The
/// server cannot send it again.
fn unsure(scene: &Scene, is_v4: bool, has_come: bool) -> (Joined, TcpListener) {
    let [client_net, server_net] = peers(scene);
    filter(scene);
    let (connected, front) = connect(scene, is_v4);
    let joined = spliced(&scene.lab, &scene.splicer, connected);
    netlab::until("it is translated", || scene.translated(&joined).is_some());
    let (mut client, mut server) = (&joined.0, &joined.1);
    ping(client, server);
    if has_come {
        drops(client_net, "output", "(rst | ack) == ack");
    } else {
        drops(client_net, "input", "psh == psh");
    }
    let flow = scene.translated(&joined).expect("it is translated");
    let before = flow.side[1].high_seq();
    server.write_all(b"ahead").expect("write");
    if has_come {
        client.read_exact(&mut [0; 5]).expect("read");
    }
    netlab::until("it has been translated", || {
        flow.side[1].high_seq() != before
    });
    drops(server_net, "output", "psh == psh");
    let frame = scene.next(&joined, 1).expect("it is translated");
    assert_eq!(scene.feed(1, &Form::Fragment.of(&frame)), 2);
    wait_for_return(&joined);
    (joined, front)
}

fn peers(scene: &Scene) -> [&Namespace; 2] {
    [scene.lab.client(), scene.lab.server()]
}

/// The relay's socket lags behind its client, which resets the connection. Another socket listens on the same address.
#[test]
fn nothing_is_left_of_a_pair_that_lags_behind() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    let scene = Scene::new();
    for is_v4 in [true, false] {
        let (joined, _front) = unsure(&scene, is_v4, true);
        connect_unspec(&joined.0).expect("reset");
        netlab::until("the server is reset", || joined.1.peer_addr().is_err());
        netlab::until("nothing is left of it", || scene.datapath.entries() == 0);
        peers(&scene).into_iter().for_each(let_pass);
    }
}

/// The client answers the question of the socket that takes its connection up, and for half a second no other segment that
/// it does not expect (`tcp_invalid_ratelimit`). The server resets its connection at that time.
#[test]
fn a_reset_reaches_a_peer_that_has_just_been_asked() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    let scene = Scene::new();
    for is_v4 in [true, false] {
        let (joined, _front) = unsure(&scene, is_v4, false);
        connect_unspec(&joined.1).expect("reset");
        netlab::until("the client is reset", || joined.0.peer_addr().is_err());
        netlab::until("nothing is left of it", || scene.datapath.entries() == 0);
        peers(&scene).into_iter().for_each(let_pass);
    }
}

/// Whether a host still has a socket whose own port (`sport`), or whose peer's (`dport`), is this one.
fn has_socket(net: &Namespace, whose: &str, port: u16) -> bool {
    let shown = net
        .command("ss")
        .args(["-Htan", &format!("{whose} = :{port}")])
        .output()
        .expect("ss");
    assert!(shown.status.success(), "{shown:?}");
    !shown.stdout.is_empty()
}

/// One peer ends its stream, and the acknowledgement of that gets lost before the relay. The pair goes back, and the other
/// peer ends its own stream, which it may do for good. What the socket sends once more it can only answer with a reset:
/// that ends nothing, since what it has sent has not got to the first peer yet.
#[test]
fn a_peer_that_has_ended_in_order_resets_nobody() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    // More than the socket of the first peer holds, and no more than that of the other one does.
    const BYTES: usize = 50_000;
    let scene = Scene::new();
    for (is_v4, first) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        filter(&scene);
        let [first_net, last_net] = [peers(&scene)[first], peers(&scene)[1 - first]];
        let (connected, _front) = connect(&scene, is_v4);
        let to_first = [&connected.a, &connected.b][first];
        sockopt::set_socket_send_buffer_size(to_first, 4096).expect("set");
        let joined = spliced(&scene.lab, &scene.splicer, connected);
        netlab::until("it is translated", || scene.translated(&joined).is_some());
        ping(&joined.0, &joined.1);
        let (client, server, handle) = joined;
        let mut ends = [Some(client), Some(server)];
        let last = ends[1 - first].take().expect("its socket");
        let mut stream = ends[first].take().expect("its socket");
        let port = last.local_addr().expect("an address").port();
        drops(last_net, "output", "(rst | ack) == ack");
        stream.write_all(b"ahead").expect("write");
        stream.shutdown(Shutdown::Write).expect("shutdown");
        (&last).read_to_end(&mut Vec::new()).expect("read");
        let joined = match first {
            0 => (stream, last, handle),
            _ => (last, stream, handle),
        };
        // It sends nothing once more, and gets nothing, until the other one is gone.
        drops(first_net, "output", "(rst | ack) == ack");
        drops(first_net, "input", "(rst | ack) == ack");
        let frame = scene.next(&joined, first).expect("it is translated");
        assert_eq!(scene.feed(first, &Form::Fragment.of(&frame)), 2);
        wait_for_return(&joined);
        let (client, server, handle) = joined;
        let (mut stream, last) = match first {
            0 => (client, server),
            _ => (server, client),
        };
        let_pass(last_net);
        let sent = write_all(&last, BYTES, seed());
        drop(last);
        netlab::until("it is gone", || !has_socket(last_net, "sport", port));
        run(first_net, "nft", "flush chain inet t output");
        netlab::until("the relay has sent it everything", || {
            !has_socket(scene.lab.relay(), "dport", port)
        });
        let_pass(first_net);
        let (received, hash, _) = read_all(&stream);
        assert_eq!((received, hash), (BYTES, sent));
        let _ = stream.flush();
        let outcome = ended(&handle);
        assert_eq!(outcome.reason, Reason::EndOfStream, "{outcome:?}");
        netlab::until("nothing is left of it", || scene.datapath.entries() == 0);
    }
}
