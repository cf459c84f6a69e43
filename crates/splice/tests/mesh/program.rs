//! What the program hears from members and says to them.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;

use netlab::until;
use splice::EngineName;
use splice::mesh::{Bounds, Code, Departure, Event, Refusal};
use splice_base::error::ErrorKind;

use crate::stage::{Stage, framing};

by_each_engine!(
    the_program_hears_what_is_for_it_among_what_is_not,
    what_waits_for_the_program_is_bounded_even_if_its_sender_does_not_read,
    the_program_says_something_to_a_member_and_sends_it_frames,
    what_a_member_has_said_last_is_heard_before_it_has_left,
    an_id_of_the_programs_choice_is_given_once_at_a_time,
);

/// The first destination that is a group here.
const GROUPS: u64 = 1000;

fn stage(engine: EngineName, member_bytes: u32) -> Stage {
    let bounds = Bounds {
        member_bytes,
        ..Bounds::default()
    };
    let stage = Stage::new(engine, framing(), bounds);
    stage
        .mesh
        .lock()
        .expect("whole")
        .hear(Some(GROUPS))
        .expect("heard");
    stage
}

/// The next frame for the program: its sender, destination and body.
fn heard(stage: &Stage) -> (u64, u64, Vec<u8>) {
    let mut found = None;
    until("the program hears something", || {
        found = stage.mesh.lock().expect("whole").next_heard();
        found.is_some()
    });
    let (sender, frame) = found.expect("it was waited for");
    let destination = framing().destination_of(&frame).expect("a destination");
    (sender, destination, frame[8..].to_vec())
}

fn the_program_hears_what_is_for_it_among_what_is_not(engine: EngineName) {
    /// Frames of each kind.
    const FRAMES: u32 = 2000;
    /// Frames of each kind at a time: what may wait for the program.
    const AT_ONCE: u32 = 10;
    /// More than all frames: nobody waits until the other member has read.
    const MEMBER_BYTES: u32 = 64 << 20;
    let stage = stage(engine, MEMBER_BYTES);
    let (mut a, mut b) = (stage.member(), stage.member());
    let (a_id, b_id) = (a.id, b.id);
    let (go_on, turns) = channel();
    let sending = std::thread::spawn(move || {
        for number in 0..FRAMES {
            if number % AT_ONCE == 0 {
                turns.recv().expect("a turn");
            }
            // Of various lengths: short ones share a segment, long ones need several.
            let mut body = number.to_be_bytes().to_vec();
            body.resize(4 + (number as usize * 37) % 9000, number as u8);
            a.send(0, &body);
            a.send(b_id, &body);
            a.send(GROUPS + 7, &body);
        }
        a
    });
    let reading = std::thread::spawn(move || {
        for number in 0..FRAMES {
            let (_, body) = b.receive();
            assert_eq!(body[..4], number.to_be_bytes());
            assert!(body[4..].iter().all(|byte| *byte == number as u8));
        }
        b
    });
    for number in 0..FRAMES {
        if number % AT_ONCE == 0 {
            go_on.send(()).expect("it listens");
        }
        for expected in [0, GROUPS + 7] {
            let (sender, destination, body) = heard(&stage);
            assert_eq!((sender, destination), (a_id, expected), "{number}");
            assert_eq!(body[..4], number.to_be_bytes());
            assert_eq!(body.len(), 4 + (number as usize * 37) % 9000);
            assert!(body[4..].iter().all(|byte| *byte == number as u8));
        }
    }
    let a = sending.join().expect("sent");
    reading.join().expect("read");
    let counters = stage.mesh.lock().expect("whole").counters(a.id);
    let counters = counters.expect("a member");
    assert_eq!(counters.passed_frames, u64::from(2 * FRAMES));
    assert_eq!(counters.sent_frames, u64::from(FRAMES));
}

fn what_waits_for_the_program_is_bounded_even_if_its_sender_does_not_read(engine: EngineName) {
    /// Several times what may wait: a quarter of the ring, at 1 KiB each.
    const FRAMES: u64 = 1000;
    let stage = stage(engine, 256 << 10);
    let (mut a, mut b) = (stage.member(), stage.member());
    until("nothing more fits the way to it", || {
        b.send(a.id, &[1; 50_000]);
        let counters = stage.mesh.lock().expect("whole").counters(b.id);
        counters.expect("a member").full_frames > 0
    });
    for _ in 0..FRAMES {
        a.send(GROUPS, &[2; 100]);
    }
    let counters = || {
        let counters = stage.mesh.lock().expect("whole").counters(a.id);
        counters.expect("a member")
    };
    until("all had their verdict", || {
        let counters = counters();
        counters.passed_frames + counters.full_frames == FRAMES
    });
    let passed = counters().passed_frames;
    assert!((200..=258).contains(&passed), "{passed} wait");

    // Once it reads, all of them are heard; and the rest was refused with a notice.
    let mut refused = 0;
    while refused < FRAMES - passed {
        let frame = a.frame().expect("a frame");
        if let Some(notice) = splice::mesh::Notice::of_frame(&framing(), &frame) {
            assert!([Code::Full, Code::Refused].contains(&notice.code));
            refused += u64::from(notice.frames);
        }
    }
    for _ in 0..passed {
        assert_eq!(heard(&stage), (a.id, GROUPS, vec![2; 100]));
    }
    a.send(GROUPS, b"again");
    assert_eq!(heard(&stage), (a.id, GROUPS, b"again".to_vec()));
}

fn the_program_says_something_to_a_member_and_sends_it_frames(engine: EngineName) {
    let stage = stage(engine, 256 << 10);
    let mut a = stage.member();
    let mesh = || stage.mesh.lock().expect("whole");
    mesh().answer(a.id, Code::Found, 77, 5);
    let notice = a.notice();
    assert_eq!(
        (notice.code, notice.frames, notice.destination),
        (Code::Found, 77, 5)
    );
    let mut frame = framing().frame(GROUPS, b"to all").expect("a frame");
    assert_eq!(mesh().send(a.id, &mut frame).expect("sent"), None);
    assert_eq!(a.receive(), (a.id, b"to all".to_vec()));
    let unknown = mesh().send(a.id + 1, &mut frame).expect("sent");
    assert_eq!(unknown, Some(Refusal::Unknown));
    let mut long = framing().frame(GROUPS, &[3; 50_000]).expect("a frame");
    let mut sent = 0;
    while mesh().send(a.id, &mut long).expect("sent").is_none() {
        sent += 1;
        assert!(sent < 100, "there is no bound");
    }
    for _ in 0..sent {
        assert_eq!(a.receive(), (a.id, vec![3; 50_000]));
    }
    mesh().refuse(a.id, GROUPS, Refusal::Full);
    let notice = a.notice();
    assert_eq!((notice.code, notice.destination), (Code::Full, GROUPS));
}

fn what_a_member_has_said_last_is_heard_before_it_has_left(engine: EngineName) {
    let stage = stage(engine, 256 << 10);
    let mut a = stage.member();
    a.send(0, b"last words");
    a.stream.shutdown(Shutdown::Write).expect("shut down");
    // Until the end of the stream is known.
    until("it has said something", || {
        let counters = stage.mesh.lock().expect("whole").counters(a.id);
        counters.expect("a member").passed_frames == 1
    });
    assert_eq!(heard(&stage), (a.id, 0, b"last words".to_vec()));
    assert!(matches!(
        stage.event(),
        Event::Left {
            why: Departure::EndOfStream,
            ..
        }
    ));
}

fn an_id_of_the_programs_choice_is_given_once_at_a_time(engine: EngineName) {
    let stage = stage(engine, 256 << 10);
    let join = |id| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("an address");
        let stream = std::net::TcpStream::connect(address).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        let joined = stage
            .mesh
            .lock()
            .expect("whole")
            .join_as(OwnedFd::from(server), id);
        joined.map(|()| stream)
    };
    let stream = join(500).expect("joined");
    for id in [0, 500, GROUPS, GROUPS + 1] {
        let error = join(id).expect_err("not to be had");
        assert_eq!(error.kind(), ErrorKind::EngineRefused, "{id}");
    }
    // The others are counted from there.
    let (other, id) = stage.stranger();
    assert_eq!(id, 501);
    drop(stream);
    until("the id is free again", || {
        stage.mesh.lock().expect("whole").is_free(500)
    });
    let _stays = join(500).expect("joined again");
    drop(other);
    let error = stage.mesh.lock().expect("whole").hear(None);
    assert_eq!(
        error.expect_err("too late").kind(),
        ErrorKind::EngineRefused
    );
}
