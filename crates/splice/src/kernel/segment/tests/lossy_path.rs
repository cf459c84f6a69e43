//! Paths that lose, duplicate and reorder segments.

use super::bad_path::{BadPath, Disorder};
use super::*;
use crate::kernel::segment::forward::{Forward, ForwardEnd, ForwardEvent, ForwardOptions};

fn across(lab: &Lab, disorder: Disorder) -> BadPath {
    let all = [lab.client(), lab.relay(), lab.server()];
    BadPath::through(&all, disorder, seed())
}

fn through_disorder(bytes: usize, disorder: Disorder, place: u64) {
    let lab = Lab::new().expect("a lab");
    let path = across(&lab, disorder);
    let splicer = splicer_in(lab.relay());
    let mut random = Random::seeded(seed());
    let before = counters_across(&lab);
    // A closed socket answers a late or duplicate segment with a reset, with or without a relay. Both streams
    // were complete before.
    let connected = Connected::across(&lab);
    let (outcome, forwarded, pause) =
        both_ways(connected, &splicer, Some(place), bytes, random.next());
    let changes = changes(&before, &counters_across(&lab));
    let losses = path.losses();
    eprintln!("{outcome:?}, forwarded {forwarded}, losses {losses}, pause {pause:?}; {changes}");
    assert!(losses > 0);
}

#[test]
fn bytes_survive_a_path_that_loses_and_reorders() {
    if available(Need::Root) {
        let bytes = rounds(1) * (64 << 20);
        let disorder = Disorder {
            lost: 50,
            doubled: 50,
            late: 50,
        };
        through_disorder(bytes, disorder, 1 << 20);
    }
}

#[test]
fn bytes_survive_a_path_that_loses_a_tenth() {
    if available(Need::Root) {
        let disorder = Disorder {
            lost: 500,
            doubled: 50,
            late: 150,
        };
        through_disorder(32 << 20, disorder, 64 << 10);
    }
}

/// Connections that are forwarded, one after the other: handshakes and ends lose segments as well.
fn forwarded_through_disorder(connections: usize, bytes: usize, disorder: Disorder) {
    let lab = Lab::new().expect("a lab");
    let path = across(&lab, disorder);
    let (_socket, front) = listen_in(lab.relay(), (Lab::RELAY_V4, 0));
    let (server, back) = listen_in(lab.server(), (Lab::SERVER_V4, 0));
    let mut options = ForwardOptions::new(vec![front], back);
    // A SYN that is lost time and again is repeated after 1, 3, 7 and 15 s.
    options.connect_timeout = PATIENCE;
    let (sender, ended) = mpsc::channel();
    let tell = move |event| {
        if let ForwardEvent::Ended(one) = event {
            let _ = sender.send(one);
        }
    };
    let start = || Forward::start(options, tell);
    let forward = lab.relay().enter(start).expect("entered").expect("started");
    assert_eq!(forward.obstacle(), None);
    let mut random = Random::seeded(seed());
    for _ in 0..connections {
        let client = connect_in(lab.client(), front);
        let (server, _) = server.accept().expect("accepted");
        thread::scope(|scope| {
            let [up, down] = [random.next(), random.next()];
            let (from, to) = (&client, &server);
            scope.spawn(move || one_way(from, to, bytes, up));
            one_way(&server, &client, bytes, down);
        });
        drop((client, server));
        let ended = ended.recv_timeout(PATIENCE).expect("it has ended");
        assert_eq!(ended.end, ForwardEnd::EndOfStream, "{ended:?}");
        assert_eq!(ended.client_to_server_bytes, bytes as u64, "{ended:?}");
        assert_eq!(ended.server_to_client_bytes, bytes as u64, "{ended:?}");
    }
    let losses = path.losses();
    eprintln!("losses {losses}");
    assert!(losses > 0);
}

#[test]
fn forwarded_bytes_survive_a_path_that_loses() {
    if available(Need::Root) {
        let disorder = Disorder {
            lost: 100,
            doubled: 50,
            late: 50,
        };
        forwarded_through_disorder(1, rounds(1) * (16 << 20), disorder);
        forwarded_through_disorder(rounds(1) * 40, 10 << 10, disorder);
    }
}

#[test]
fn forwarded_bytes_survive_a_path_that_loses_a_tenth() {
    if available(Need::Root) {
        let disorder = Disorder {
            lost: 500,
            doubled: 50,
            late: 150,
        };
        forwarded_through_disorder(1, rounds(1) * (4 << 20), disorder);
        forwarded_through_disorder(rounds(1) * 15, 10 << 10, disorder);
    }
}
