//! What the mesh refuses, and whom it ends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use netlab::{PATIENCE, until};
use splice::mesh::{Bounds, Code, Departure, Event, Mesh};
use splice::{EngineChoice, EngineName};

use splice_base::socket_option::acknowledged_bytes;

use crate::stage::{Stage, framing};

by_each_engine!(
    a_member_that_does_not_read_stops_nobody_and_holds_a_bounded_memory,
    a_length_out_of_bounds_ends_the_member_with_a_reason,
    a_length_that_counts_the_header_cannot_be_less_than_it,
    a_frame_that_never_completes_ends_its_member,
    who_leaves_is_reported_with_the_reason_and_unknown_from_then_on,
    what_is_on_its_way_to_a_member_that_ends_its_stream_still_arrives,
    a_reset_within_a_frame_harms_nobody_else,
    what_a_member_that_fails_has_not_got_is_counted,
    what_a_member_that_leaves_gets_in_time_is_not_lost,
    what_a_member_has_sent_before_it_is_reset_arrives,
    a_full_mesh_and_a_socket_that_is_not_tcp_are_refused,
    a_socket_joins_once_and_stays_a_member,
    members_are_not_judged_by_what_a_process_that_stood_still_has_not_seen,
);

/// How much may be on its way to a member here, in bytes.
const MEMBER_BYTES: u32 = 256 << 10;

fn a_member_that_does_not_read_stops_nobody_and_holds_a_bounded_memory(engine: EngineName) {
    const BODY_BYTES: usize = 1000;
    /// Many times the bound.
    const FRAMES: u64 = 20_000;
    let bounds = Bounds {
        member_bytes: MEMBER_BYTES,
        ..Bounds::default()
    };
    let stage = Stage::new(engine, framing(), bounds);
    let (mut a, mut b, idle) = (stage.member(), stage.member(), stage.member());
    let mut most_bytes = 0;
    let body = [7; BODY_BYTES];
    for _ in 0..FRAMES / 100 {
        for _ in 0..100 {
            a.send(idle.id, &body);
        }
        // The others go on, and the sender itself.
        a.send(b.id, &body);
        assert_eq!(b.receive().1, body);
        let mesh = stage.mesh.lock().expect("whole");
        most_bytes = most_bytes.max(mesh.on_the_way_bytes(idle.id).expect("a member"));
    }
    let bound = u64::from(MEMBER_BYTES) + (64 << 10);
    assert!(most_bytes <= bound, "{most_bytes} bytes on the way");
    assert!(
        most_bytes > bound / 4,
        "only {most_bytes} bytes, so the bound shows nothing"
    );

    // Each refusal is told, and what was not refused is there to be read.
    let counters = |id| {
        stage
            .mesh
            .lock()
            .expect("whole")
            .counters(id)
            .expect("a member")
    };
    until("all frames had their verdict", || {
        let a = counters(a.id);
        a.sent_frames + a.full_frames == FRAMES + FRAMES / 100
    });
    let refused = counters(a.id).full_frames;
    assert!(refused > FRAMES / 2, "{refused}");
    let mut told = 0;
    while told < refused {
        let notice = a.notice();
        // More at once than there is room for reports are told without the destination.
        let expected = [(Code::Full, idle.id), (Code::Refused, 0)];
        assert!(
            expected.contains(&(notice.code, notice.destination)),
            "{notice:?}"
        );
        told += u64::from(notice.frames);
    }
    assert_eq!(told, refused);
    let mut idle = idle;
    for _ in 0..FRAMES - refused {
        assert_eq!(idle.receive(), (idle.id, body.to_vec()));
    }
    // It is a destination like any other again.
    a.send(idle.id, b"again");
    assert_eq!(idle.receive().1, b"again");
}

/// Reads up to the end of the stream, and returns the codes of the notices.
fn last_words(client: &mut crate::stage::Client) -> Vec<Code> {
    let framing = client.framing;
    let notices = std::iter::from_fn(|| client.frame());
    let of_frame = |frame: Vec<u8>| splice::mesh::Notice::of_frame(&framing, &frame);
    notices
        .map(|frame| of_frame(frame).expect("a notice").code)
        .collect()
}

fn a_length_out_of_bounds_ends_the_member_with_a_reason(engine: EngineName) {
    let stage = Stage::new(engine, framing(), Bounds::default());
    let mut other = stage.member();
    for (length, code, why) in [
        (59_993u32, Code::TooLong, Departure::TooLong),
        (u32::MAX, Code::TooLong, Departure::TooLong),
    ] {
        let mut a = stage.member();
        a.send(other.id, b"before");
        assert_eq!(other.receive().1, b"before");
        a.stream.write_all(&length.to_be_bytes()).expect("sent");
        a.stream.write_all(&[0, 0, 0, 1]).expect("sent");
        a.stream.write_all(&[9; 100]).expect("sent");
        assert_eq!(last_words(&mut a), [code], "{length}");
        a.stream.shutdown(Shutdown::Write).expect("shut down");
        match stage.event() {
            Event::Left {
                member,
                why: told,
                counters,
            } => {
                assert_eq!((member, told, counters.sent_frames), (a.id, why, 1));
            }
            event @ Event::Refused { .. } => panic!("{event:?}"),
            event => panic!("{event:?}"),
        }
    }
}

fn a_length_that_counts_the_header_cannot_be_less_than_it(engine: EngineName) {
    let stage = Stage::new(
        engine,
        crate::stage::of("u16le@4+0", "u32le@0"),
        Bounds::default(),
    );
    let mut a = stage.member();
    a.stream.write_all(&[1, 0, 0, 0, 5, 0]).expect("sent");
    assert_eq!(last_words(&mut a), [Code::TooShort]);
}

fn a_frame_that_never_completes_ends_its_member(engine: EngineName) {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let bounds = Bounds {
        frame_timeout: TIMEOUT,
        ..Bounds::default()
    };
    let stage = Stage::new(engine, framing(), bounds);
    // Within the header, and within the body.
    for bytes in [&[0, 0][..], &[0, 0, 0, 9, 0, 0, 0, 1, 7]] {
        let (mut a, idle) = (stage.member(), stage.member());
        let start = Instant::now();
        a.stream.write_all(bytes).expect("sent");
        assert_eq!(last_words(&mut a), [Code::Incomplete]);
        assert!(start.elapsed() >= TIMEOUT);
        // A member that sends nothing stays.
        assert!(
            stage
                .mesh
                .lock()
                .expect("whole")
                .members()
                .any(|id| id == idle.id)
        );
        drop(a);
        drop(idle);
    }
}

fn who_leaves_is_reported_with_the_reason_and_unknown_from_then_on(engine: EngineName) {
    let stage = Stage::new(engine, framing(), Bounds::default());
    let mut other = stage.member();
    for (rest, expected) in [
        (&[][..], Departure::EndOfStream),
        (&[0, 0, 0, 9, 0, 0, 0, 1, 7], Departure::WithinFrame),
    ] {
        let mut a = stage.member();
        a.send(other.id, b"last");
        a.stream.write_all(rest).expect("sent");
        a.stream.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(other.receive().1, b"last");
        match stage.event() {
            Event::Left { member, why, .. } => assert_eq!((member, why), (a.id, expected)),
            event => panic!("{event:?}"),
        }
        assert_eq!(a.frame(), None, "the mesh closes it");
        other.send(a.id, b"too late");
        let notice = other.notice();
        assert_eq!((notice.code, notice.destination), (Code::Unknown, a.id));
        assert!(matches!(stage.event(), Event::Refused { .. }));
    }
}

fn what_is_on_its_way_to_a_member_that_ends_its_stream_still_arrives(engine: EngineName) {
    static BODY: [u8; 20_000] = [5; 20_000];
    let stage = Stage::new(engine, framing(), Bounds::default());
    let (mut a, mut b) = (stage.member(), stage.member());
    for _ in 0..20 {
        a.send(b.id, &BODY);
    }
    until("they are on their way", || {
        let mesh = stage.mesh.lock().expect("whole");
        mesh.counters(b.id).is_some_and(|b| b.received_frames == 20)
    });
    b.stream.shutdown(Shutdown::Write).expect("shut down");
    for _ in 0..20 {
        assert_eq!(b.receive().1, BODY);
    }
    assert_eq!(b.frame(), None);
}

fn a_reset_within_a_frame_harms_nobody_else(engine: EngineName) {
    let stage = Stage::new(engine, framing(), Bounds::default());
    let (mut other, mut third) = (stage.member(), stage.member());
    for round in 0..20u8 {
        let mut a = stage.member();
        a.send(other.id, &[round; 500]);
        // The header promises more than comes.
        a.stream.write_all(&[0, 0, 0, 99, 0, 0, 0]).expect("sent");
        third.send(other.id, &[round; 700]);
        let mut came = [other.receive().1.len(), other.receive().1.len()];
        came.sort_unstable();
        assert_eq!(came, [500, 700]);
        // Unread frames make its end a reset.
        third.send(a.id, b"never read");
        until("it has a frame", || {
            let mut byte = [0; 1];
            matches!(a.stream.peek(&mut byte), Ok(1))
        });
        let id = a.id;
        drop(a);
        match stage.event() {
            Event::Left { member, why, .. } => {
                assert_eq!(member, id);
                assert!(
                    matches!(why, Departure::Reset | Departure::WithinFrame),
                    "{why:?}"
                );
            }
            event => panic!("{event:?}"),
        }
    }
}

fn what_a_member_that_fails_has_not_got_is_counted(engine: EngineName) {
    static BODY: [u8; 20_000] = [5; 20_000];
    const FRAMES: u64 = 40;
    let stage = Stage::new(engine, framing(), Bounds::default());
    let mut a = stage.member();
    // Some in its queues, or everything.
    for frames in [1, FRAMES] {
        let (b, socket) = stage.member_with_duplicate();
        let before = acknowledged_bytes(&socket).expect("known");
        for _ in 0..frames {
            a.send(b.id, &BODY);
        }
        let all = || {
            let mesh = stage.mesh.lock().expect("whole");
            mesh.counters(b.id).expect("a member")
        };
        until("they are on their way", || all().received_frames == frames);
        until("its host has got something, or all", || {
            acknowledged_bytes(&socket).expect("known") - before >= BODY.len() as u64
        });
        assert_eq!(all().lost_bytes, 0);
        let id = b.id;
        // Something is unread, so this is a reset.
        drop(b);
        let Event::Left {
            member,
            why,
            counters,
        } = stage.event()
        else {
            panic!("no member has left");
        };
        assert_eq!((member, why), (id, Departure::Reset));
        // The rest has come before the reset, or is lost. The welcome was acknowledged before or after the look.
        let acknowledged = acknowledged_bytes(&socket).expect("known") - before;
        let welcome = u64::from(framing().header_bytes()) + 24;
        let frames_bytes = counters.received_bytes - welcome;
        let left = frames_bytes.saturating_sub(acknowledged);
        assert!(
            (left..=left + welcome).contains(&counters.lost_bytes),
            "{counters:?}, {acknowledged} acknowledged"
        );
        if frames == FRAMES {
            // More than a receive buffer holds.
            assert!(counters.lost_bytes > 100_000, "{counters:?}");
        }
    }
}

fn what_a_member_has_sent_before_it_is_reset_arrives(engine: EngineName) {
    let stage = Stage::new(engine, framing(), Bounds::default());
    let (mut b, mut c) = (stage.member(), stage.member());
    for round in 0..50u8 {
        let mut a = stage.member();
        for _ in 0..20 {
            c.send(a.id, &[1; 1000]);
        }
        let frames: Vec<u8> = (0..50)
            .flat_map(|_| framing().frame(b.id, &[round; 1000]).expect("a frame"))
            .collect();
        a.stream.write_all(&frames).expect("sent");
        let id = a.id;
        until("it has something unread", || {
            matches!(a.stream.peek(&mut [0]), Ok(1))
        });
        // A reset, while the mesh still writes to it.
        drop(a);
        for _ in 0..50 {
            assert_eq!(b.receive().1, [round; 1000]);
        }
        loop {
            match stage.event() {
                Event::Left { member, why, .. } => {
                    assert_eq!((member, why), (id, Departure::Reset));
                    break;
                }
                Event::Refused { sender, .. } => assert_eq!(sender, c.id),
                event => panic!("{event:?}"),
            }
        }
    }
}

fn what_a_member_that_leaves_gets_in_time_is_not_lost(engine: EngineName) {
    let stage = Stage::new(engine, framing(), Bounds::default());
    let (mut a, mut b) = (stage.member(), stage.member());
    for _ in 0..20 {
        a.send(b.id, &[5; 20_000]);
    }
    until("they are on their way", || {
        let mesh = stage.mesh.lock().expect("whole");
        mesh.counters(b.id).is_some_and(|b| b.received_frames == 20)
    });
    b.stream.shutdown(Shutdown::Write).expect("shut down");
    for _ in 0..20 {
        b.receive();
    }
    assert_eq!(b.frame(), None);
    match stage.event() {
        Event::Left { why, counters, .. } => {
            assert_eq!((why, counters.lost_bytes), (Departure::EndOfStream, 0));
        }
        event => panic!("{event:?}"),
    }
}

fn a_full_mesh_and_a_socket_that_is_not_tcp_are_refused(engine: EngineName) {
    let bounds = Bounds {
        members: 2,
        ..Bounds::default()
    };
    let stage = Stage::new(engine, framing(), bounds);
    let mut mesh = stage.mesh.lock().expect("whole");
    let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let error = mesh.join(unix).expect_err("no TCP");
    assert!(
        error.to_string().contains("give it a TCP connection"),
        "{error}"
    );
    let narrow = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let narrow = narrow.expect("a socket");
    narrow.set_recv_buffer_size(10_000).expect("set");
    let error = mesh.join(narrow).expect_err("a narrow buffer");
    assert!(error.to_string().contains("raise SO_RCVBUF"), "{error}");
    drop(mesh);
    let _members = [stage.member(), stage.member()];
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    let third = TcpStream::connect(address).expect("connected");
    let mut mesh = stage.mesh.lock().expect("whole");
    let error = mesh.join(third).expect_err("no room");
    assert!(error.to_string().contains("allow more"), "{error}");
}

fn a_socket_joins_once_and_stays_a_member(engine: EngineName) {
    let bounds = Bounds::default();
    let mut mesh = Mesh::create_by(EngineChoice::Only(engine), framing(), bounds).expect("a mesh");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    let join = |mesh: &mut Mesh| {
        let client = TcpStream::connect(address).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        let second = server.try_clone().expect("a duplicate");
        let id = mesh.join(server).expect("joined");
        (client, second, id)
    };
    let (mut client, second, id) = join(&mut mesh);
    let (mut other, _other, _) = join(&mut mesh);
    let error = mesh.join(second).expect_err("a member").to_string();
    assert!(error.contains("a member of the mesh already"), "{error}");
    assert_eq!(mesh.members().count(), 2);
    let frame = framing().frame(id, b"it is there").expect("a frame");
    other.write_all(&frame).expect("sent");
    client.write_all(&frame).expect("sent");
    until("both frames had their verdict", || {
        mesh.turn(Duration::from_millis(1)).expect("a turn");
        mesh.counters(id)
            .is_some_and(|all| all.received_frames == 2)
    });
    let welcome = framing().header_bytes() as usize + 24;
    let mut come = vec![0; welcome + 2 * frame.len()];
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    client.read_exact(&mut come).expect("both frames");
    assert_eq!(come[welcome..], [&frame[..], &frame[..]].concat());
}

#[test]
fn bounds_that_no_mesh_can_keep_are_refused_in_words() {
    let usual = Bounds::default();
    for (bounds, part) in [
        (
            Bounds {
                members: 0,
                ..usual
            },
            "allow 1 to 65535",
        ),
        (
            Bounds {
                members: u32::MAX,
                ..usual
            },
            "allow 1 to 65535",
        ),
        (
            Bounds {
                member_bytes: 60_000,
                ..usual
            },
            "allow 61536",
        ),
    ] {
        let error = Mesh::create(framing(), bounds)
            .expect_err("impossible")
            .to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// As after SIGSTOP, or in a virtual machine that was paused.
fn members_are_not_judged_by_what_a_process_that_stood_still_has_not_seen(engine: EngineName) {
    /// More than one turn takes from epoll(7).
    const MEMBERS: usize = 200;
    const FRAME_TIMEOUT: Duration = Duration::from_millis(200);
    let bounds = Bounds {
        frame_timeout: FRAME_TIMEOUT,
        ..Bounds::default()
    };
    let mut mesh = Mesh::create_by(EngineChoice::Only(engine), framing(), bounds).expect("a mesh");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    let frame = framing().frame(1, b"a body").expect("a frame");
    let (head, rest) = frame.split_at(9);
    let mut clients = Vec::new();
    for _ in 0..MEMBERS {
        let mut client = TcpStream::connect(address).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        mesh.join(server).expect("joined");
        client.write_all(head).expect("sent");
        clients.push(client);
    }
    let mut turn = |times: usize| {
        let turns = (0..times).flat_map(|_| mesh.turn(Duration::ZERO).expect("a turn"));
        turns
            .filter(|event| matches!(event, Event::Left { .. }))
            .collect::<Vec<_>>()
    };
    assert!(turn(20).is_empty());
    for client in &mut clients {
        client.write_all(rest).expect("sent");
    }
    std::thread::sleep(2 * FRAME_TIMEOUT);
    let left = turn(50);
    assert!(left.is_empty(), "{left:?}");
    let received = mesh.counters(1).expect("a member").received_frames;
    assert_eq!(received, MEMBERS as u64);
}

/// A read stops in front of the urgent byte. That is not in the stream.
#[test]
fn frames_behind_an_urgent_byte_are_read_in_user_space() {
    let stage = Stage::new(EngineName::Copy, framing(), Bounds::default());
    let (mut a, mut b) = (stage.member(), stage.member());
    for round in 0..20u8 {
        a.send(b.id, &[round; 10]);
        let socket = socket2::SockRef::from(&a.stream);
        socket.send_out_of_band(b"!").expect("sent");
        a.send(b.id, &[round; 20]);
        for bytes in [10, 20] {
            assert_eq!(b.receive().1, vec![round; bytes]);
        }
    }
}
