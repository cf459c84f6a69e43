//! Receivers with a closed window, at the change-over and after it.

use std::os::fd::AsFd;

use rustix::net::{SendFlags, send};

use super::window_scale::{MIDDLE, NONE, connect_scaled};
use super::*;

const BYTES: usize = 1 << 20;

/// How many window probes a sender makes before the receiver reads: after 0.2, 0.6 and 1.4 s.
const QUESTIONS: u64 = 3;
/// What a receiver of the scale [`NONE`] has no room for, in bytes.
const MORE_THAN_NONE: u64 = 64 << 10;

/// Waits until window probes, or retransmissions of what found no room, have arrived, and their answers, too.
fn wait_for_questions(sender: &Namespace, receiver: &Namespace) {
    let asked = || count(sender, &["TCPWinProbe", "RetransSegs"]);
    let heard = |namespace| count(namespace, &["InSegs"]);
    let counts = || [asked(), heard(receiver), heard(sender)];
    let start = counts();
    netlab::until("probes and answers have arrived", || {
        let both = counts().into_iter().zip(start);
        both.into_iter()
            .all(|(now, start)| now >= start + QUESTIONS)
    });
}

/// Writes to the peer of one of the relay's ends until its window is closed and it has acknowledged
/// everything. Returns how many bytes that took.
fn fill(lab: &Lab, ends: [&Endpoint; 2], side: Side) -> usize {
    let room = || {
        let socket = &sockets_across(lab, ends)[side.index()];
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

/// Reads what [`fill`] has sent.
fn empty(mut reader: &TcpStream, bytes: usize) {
    let mut filled = vec![0; bytes];
    reader.read_exact(&mut filled).expect("read");
    assert!(filled.iter().all(|byte| *byte == 9));
}

/// The second is the one that has no room.
fn sender_and_receiver<T>(without_room: Side, client: T, server: T) -> (T, T) {
    match without_room {
        Side::A => (server, client),
        Side::B => (client, server),
    }
}

/// Sends both ways without the sockets, to the ends: first to the receiver with a closed window, which reads
/// only after window probes, and begins with what was `filled`.
fn write_against_no_room(
    lab: &Lab,
    splicer: &Splicer,
    (client, server, handle): &Joined,
    without_room: Side,
    filled: usize,
) {
    let proof = Proof::begin(lab, splicer, handle);
    let (sender, receiver) = sender_and_receiver(without_room, client, server);
    let (sender_in, receiver_in) = sender_and_receiver(without_room, lab.client(), lab.server());
    thread::scope(|scope| {
        let sent = scope.spawn(|| write_all(sender, BYTES, seed()));
        wait_for_questions(sender_in, receiver_in);
        assert!(!sent.is_finished());
        empty(receiver, filled);
        let (length, hash, _) = read_all(receiver);
        assert_eq!((length, hash), (BYTES, sent.join().expect("sent")));
    });
    // The other direction, whose receiver has room.
    one_way(receiver, sender, BYTES, seed());
    ended(handle);
    proof.end(2 * BYTES as u64);
}

/// The window is zero at the moment of the change-over, and nothing is under way.
#[test]
fn a_receiver_without_room_at_the_change_over() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    for without_room in Side::BOTH {
        let connected = connect_scaled(&lab, NONE, MIDDLE);
        let filled = fill(&lab, [&connected.a, &connected.b], without_room);
        let pair = connected.join(&splicer, &by_name());
        write_against_no_room(&lab, &splicer, &pair, without_room, filled);
    }
}

/// The window closes after the change-over.
#[test]
fn a_receiver_that_runs_out_of_room() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    for runs_out in Side::BOTH {
        let connected = connect_scaled(&lab, NONE, MIDDLE);
        let pair = connected.join(&splicer, &by_name());
        ping(&pair.0, &pair.1);
        write_against_no_room(&lab, &splicer, &pair, runs_out, 0);
    }
}

/// The window is zero when the change-over begins, and the relay's own sockets are full.
#[test]
fn a_change_over_waits_for_a_receiver_without_room() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    for without_room in Side::BOTH {
        let connected = connect_scaled(&lab, NONE, MIDDLE);
        let (client, server, handle) = connected.join(&splicer, &by_volume(MORE_THAN_NONE));
        let (sender, receiver) = sender_and_receiver(without_room, &client, &server);
        let (_, receiver_in) = sender_and_receiver(without_room, lab.client(), lab.server());
        thread::scope(|scope| {
            let bytes = 8 * BYTES;
            let sent = scope.spawn(move || write_some(sender, bytes, seed()));
            // The relay's socket sends window probes itself.
            wait_for_questions(lab.relay(), receiver_in);
            assert!(!sent.is_finished());
            let hash = read_some(receiver, bytes);
            assert_eq!(hash, sent.join().expect("sent"));
        });
        let proof = Proof::begin(&lab, &splicer, &handle);
        one_way(sender, receiver, BYTES, seed());
        one_way(receiver, sender, BYTES, seed());
        ended(&handle);
        proof.end(2 * BYTES as u64);
    }
}

/// The window may stay closed for hours, and that of thousands of other pairs with it.
#[test]
fn a_change_over_that_waits_is_looked_at_seldom() {
    /// Every 64 ms, 200 such pairs cost a loop 4 % of its time (debug build).
    const SELDOM: Duration = Duration::from_millis(500);
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    let seldom = Arc::new(AtomicBool::new(false));
    let (told, mut looked_at) = (Arc::clone(&seldom), Instant::now());
    watch(&splicer, move |step| {
        if step == "emptying" && looked_at.elapsed() > SELDOM {
            told.store(true, Relaxed);
        }
        looked_at = Instant::now();
    });
    let (client, server, handle) =
        connect_scaled(&lab, NONE, MIDDLE).join(&splicer, &by_volume(MORE_THAN_NONE));
    client.set_write_timeout(Some(PATIENCE)).expect("a limit");
    let bytes = 8 * BYTES;
    thread::scope(|scope| {
        let sent = scope.spawn(|| write_some(&client, bytes, seed()));
        netlab::until("it is looked at seldom", || seldom.load(Relaxed));
        assert!(!sent.is_finished());
        assert_eq!(read_some(&server, bytes), sent.join().expect("sent"));
    });
    netlab::until("it is taken", || handle.is_taken());
    drop((client, server));
    ended(&handle);
}
