//! Receivers that have no room, at the change-over and after it.

use std::os::fd::AsFd;

use rustix::net::{SendFlags, send};

use super::window_scale::{MIDDLE, NONE, connect_scaled};
use super::*;
use crate::engine::segment::{address_pair, tuple_of};

const BYTES: usize = 1 << 20;

/// So often a sender has to ask before the receiver reads, at 0.2, 0.6 and 1.4 s.
const QUESTIONS: u64 = 3;

/// Once the first pair has the program stand where the others are seen from the start.
fn begun() -> (Lab, Splicer, (TcpStream, TcpStream, Handle)) {
    let lab = Lab::new().expect("a lab");
    let splicer = lab.relay().enter(|| Splicer::new(1).expect("a splicer"));
    let splicer = splicer.expect("entered");
    let first = spliced_across(&lab, &splicer);
    (lab, splicer, first)
}

fn by_name() -> Options {
    Options {
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    }
}

fn count(namespace: &Namespace, names: &[&str]) -> u64 {
    let counters = counters_in(namespace);
    let found = counters
        .iter()
        .filter(|(name, _)| names.contains(&name.as_str()));
    found.map(|(_, value)| value).sum()
}

/// The sender asks for room, by a probe or by repeating what found none; the questions arrive, and
/// so do the answers.
fn wait_for_questions(sender: &Namespace, receiver: &Namespace) {
    let asked = || count(sender, &["TCPWinProbe", "RetransSegs"]);
    let heard = |namespace| count(namespace, &["InSegs"]);
    let start = (asked(), heard(receiver), heard(sender));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = (asked(), heard(receiver), heard(sender));
        if now.0 >= start.0 + QUESTIONS
            && now.1 >= start.1 + QUESTIONS
            && now.2 >= start.2 + QUESTIONS
        {
            return;
        }
        assert!(Instant::now() < deadline, "{start:?}, {now:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Writes to the peer of one of the relay's ends, until that has no room and has acknowledged all of
/// it; tells how many bytes that took.
fn fill(lab: &Lab, ends: [&Endpoint; 2], side: Side) -> usize {
    let tuples = ends.map(|end| {
        let (local, peer) = address_pair(end).expect("connected");
        tuple_of(local, peer)
    });
    let ground = lab.relay().enter(Ground::here).expect("entered");
    let ground = ground.expect("a ground");
    let room = || {
        let found = lab.relay().enter(|| ground.inspect(&tuples));
        let found = found.expect("entered").expect("found");
        let socket = &found.socket[side.index()];
        (socket.snd_una == socket.write_seq).then_some(socket.snd_wnd as usize)
    };
    let end = ends[side.index()];
    let mut filled = 0;
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "{filled} bytes");
        match room() {
            Some(0) => return filled,
            Some(bytes) => {
                let chunk = vec![9; bytes.min(1000)];
                filled += send(end.as_fd(), &chunk, SendFlags::NOSIGNAL).expect("send");
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Takes what [`fill`] has sent.
fn empty(mut reader: &TcpStream, bytes: usize) {
    let mut filled = vec![0; bytes];
    reader.read_exact(&mut filled).expect("read");
    assert!(filled.iter().all(|byte| *byte == 9));
}

/// `sender` writes to `receiver`, which reads only when it has been asked for room.
fn write_against_no_room(
    (sender, sender_in): (&TcpStream, &Namespace),
    (receiver, receiver_in): (&TcpStream, &Namespace),
    filled: usize,
) {
    thread::scope(|scope| {
        let sent = scope.spawn(|| write_all(sender, BYTES, seed()));
        wait_for_questions(sender_in, receiver_in);
        assert!(!sent.is_finished());
        empty(receiver, filled);
        let (length, hash, _) = read_all(receiver);
        assert_eq!((length, hash), (BYTES, sent.join().expect("sent")));
    });
}

/// The other direction, whose receiver has room.
fn answer(sender: &TcpStream, receiver: &TcpStream) {
    thread::scope(|scope| {
        let sent = scope.spawn(|| write_all(sender, BYTES, seed()));
        let (length, hash, _) = read_all(receiver);
        assert_eq!((length, hash), (BYTES, sent.join().expect("sent")));
    });
}

/// The window is zero at the moment of the change-over, and nothing is under way.
#[test]
fn a_receiver_without_room_at_the_change_over() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = begun();
    for without_room in Side::BOTH {
        let Joined {
            client,
            server,
            a,
            b,
        } = connect_scaled(&lab, NONE, MIDDLE);
        let filled = fill(&lab, [&a, &b], without_room);
        let handle = splicer.join(a, b, &by_name()).expect("joined");
        let proof = Proof::begin(&lab, &splicer, &handle);
        let [client_end, server_end] = [(&client, lab.client()), (&server, lab.server())];
        let (sender, receiver) = match without_room {
            Side::A => (server_end, client_end),
            Side::B => (client_end, server_end),
        };
        write_against_no_room(sender, receiver, filled);
        answer(receiver.0, sender.0);
        let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
        assert_eq!(outcome.reason, Reason::EndOfStream, "{outcome:?}");
        proof.end(2 * BYTES as u64);
    }
}

/// The window closes behind the change-over.
#[test]
fn a_receiver_that_runs_out_of_room() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = begun();
    for runs_out in Side::BOTH {
        let Joined {
            client,
            server,
            a,
            b,
        } = connect_scaled(&lab, NONE, MIDDLE);
        let handle = splicer.join(a, b, &by_name()).expect("joined");
        ping(&client, &server);
        let proof = Proof::begin(&lab, &splicer, &handle);
        let [client_end, server_end] = [(&client, lab.client()), (&server, lab.server())];
        let (sender, receiver) = match runs_out {
            Side::A => (server_end, client_end),
            Side::B => (client_end, server_end),
        };
        write_against_no_room(sender, receiver, 0);
        answer(receiver.0, sender.0);
        let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
        assert_eq!(outcome.reason, Reason::EndOfStream, "{outcome:?}");
        proof.end(2 * BYTES as u64);
    }
}

/// The window is zero when the change-over begins, and the relay's own sockets are full.
#[test]
fn a_change_over_waits_for_a_receiver_without_room() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = begun();
    for without_room in Side::BOTH {
        let Joined {
            client,
            server,
            a,
            b,
        } = connect_scaled(&lab, NONE, MIDDLE);
        let options = Options {
            engine: EngineChoice::Auto,
            ..Options::default()
        };
        let handle = splicer.join(a, b, &options).expect("joined");
        let (sender, receiver) = match without_room {
            Side::A => (&server, &client),
            Side::B => (&client, &server),
        };
        let in_relay = lab.relay();
        let receiver_in = match without_room {
            Side::A => lab.client(),
            Side::B => lab.server(),
        };
        thread::scope(|scope| {
            let bytes = 8 * BYTES;
            let sent = scope.spawn(move || write_some(sender, bytes, seed()));
            // The relay's socket asks by itself.
            wait_for_questions(in_relay, receiver_in);
            assert!(!sent.is_finished());
            let hash = read_some(receiver, bytes);
            assert_eq!(hash, sent.join().expect("sent"));
        });
        let proof = Proof::begin(&lab, &splicer, &handle);
        answer(sender, receiver);
        answer(receiver, sender);
        let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
        assert_eq!(outcome.reason, Reason::EndOfStream, "{outcome:?}");
        proof.end(2 * BYTES as u64);
    }
}
