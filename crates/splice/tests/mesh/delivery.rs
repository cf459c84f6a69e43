//! What is sent comes whole to its destination.

use splice::EngineName;
use splice::mesh::{Bounds, Code, Event, Refusal};

use crate::stage::{Stage, framing};

by_each_engine!(
    a_frame_comes_to_the_member_that_it_names,
    an_unknown_destination_is_answered,
);

fn a_frame_comes_to_the_member_that_it_names(engine: EngineName) {
    let stage = Stage::new(engine, framing(), Bounds::default());
    let (mut a, mut b, mut c) = (stage.member(), stage.member(), stage.member());
    a.send(b.id, b"to b");
    assert_eq!(b.receive(), (b.id, b"to b".to_vec()));
    b.send(c.id, b"to c");
    c.send(a.id, b"");
    assert_eq!(c.receive(), (c.id, b"to c".to_vec()));
    assert_eq!(a.receive(), (a.id, Vec::new()));
    a.send(a.id, b"to itself");
    assert_eq!(a.receive().1, b"to itself");
}

fn an_unknown_destination_is_answered(engine: EngineName) {
    let stage = Stage::new(engine, framing(), Bounds::default());
    let mut a = stage.member();
    a.send(77, b"to nobody");
    let notice = a.notice();
    assert_eq!(
        (notice.code, notice.destination, notice.frames),
        (Code::Unknown, 77, 1)
    );
    assert_eq!(
        stage.event(),
        Event::Refused {
            sender: a.id,
            destination: 77,
            reason: Refusal::Unknown
        }
    );
}
