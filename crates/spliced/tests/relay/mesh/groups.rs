//! Frames to groups and to everybody.

use splice::mesh::Code;

use super::client::{Client, mesh, usual};

by_each_engine!(
    a_frame_to_a_group_goes_to_its_members_but_the_sender,
    a_member_of_a_group_that_does_not_read_stops_nobody_and_its_sender_is_told,
    frames_to_groups_and_to_members_are_not_mixed_under_load,
);

const JOIN: u32 = 3;
const LEAVE: u32 = 4;
const EVERYONE: u64 = u32::MAX as u64;
/// With four groups.
const GROUP: u64 = EVERYONE - 4;

fn join(client: &mut Client, group: u64) {
    client.ask(JOIN, 1, &group.to_be_bytes());
    assert_eq!(client.told(), (Code::Done, 1, group));
}

/// The destination and the body of the next frame.
fn next(client: &mut Client) -> (u64, Vec<u8>) {
    let frame = client.frame();
    let destination = client
        .framing
        .destination_of(&frame)
        .expect("a destination");
    (destination, frame[8..].to_vec())
}

fn a_frame_to_a_group_goes_to_its_members_but_the_sender(engine: &str) {
    let mesh = mesh(engine, &["--groups", "4"]);
    let [mut a, mut b, mut c, mut d] = [(); 4].map(|()| Client::new(&mesh, usual()));
    for client in [&mut a, &mut b, &mut c] {
        join(client, GROUP);
    }
    a.send(GROUP, b"to the group");
    a.send(EVERYONE, b"to all");
    for client in [&mut b, &mut c] {
        assert_eq!(next(client), (client.id, b"to the group".to_vec()));
        assert_eq!(next(client), (client.id, b"to all".to_vec()));
    }
    assert_eq!(next(&mut d), (d.id, b"to all".to_vec()));
    // Also from who is not in it.
    d.send(GROUP, b"from outside");
    for client in [&mut a, &mut b, &mut c] {
        assert_eq!(next(client).1, b"from outside");
    }
    c.ask(LEAVE, 2, &GROUP.to_be_bytes());
    assert_eq!(c.told(), (Code::Done, 2, GROUP));
    drop(b);
    mesh.wait_logged("member 2 has left");
    d.send(GROUP, b"to one");
    assert_eq!(next(&mut a).1, b"to one");
    // Nobody is in it but the sender, or nobody at all.
    a.send(GROUP, b"to nobody");
    assert_eq!(a.told(), (Code::Unknown, 1, GROUP));
    a.send(GROUP + 1, b"to nobody");
    assert_eq!(a.told(), (Code::Unknown, 1, GROUP + 1));
    for group in [0, 1, GROUP - 1] {
        a.ask(JOIN, 3, &group.to_be_bytes());
        assert_eq!(a.told(), (Code::BadRequest, 3, group));
    }
    a.ask(LEAVE, 4, &EVERYONE.to_be_bytes());
    assert_eq!(a.told(), (Code::BadRequest, 4, EVERYONE));
}

fn a_member_of_a_group_that_does_not_read_stops_nobody_and_its_sender_is_told(engine: &str) {
    const BODY_BYTES: usize = 10_000;
    /// Several times what fits the way to a member.
    const FRAMES: u32 = 400;
    let mesh = mesh(engine, &["--groups", "4", "--member-bytes", "262144"]);
    let [mut a, mut b, mut stuck] = [(); 3].map(|()| Client::new(&mesh, usual()));
    for client in [&mut b, &mut stuck] {
        join(client, GROUP);
    }
    let body = |number: u32| {
        let mut body = number.to_be_bytes().to_vec();
        body.resize(BODY_BYTES, number as u8);
        body
    };
    for number in 0..FRAMES {
        a.send(GROUP, &body(number));
        assert_eq!(next(&mut b).1, body(number));
    }
    // The answer comes when all frames are handed out, and behind the notices about them.
    a.ask(2, 1, b"nobody");
    let mut refused = 0;
    loop {
        match a.told() {
            (Code::Full, frames, destination) if destination == stuck.id => refused += frames,
            told => {
                assert_eq!(told, (Code::NoSuchName, 1, 0));
                break;
            }
        }
    }
    assert!(refused > FRAMES / 4, "{refused}");
    let got = {
        // It reads now: in order, without holes but for what was refused.
        b.send(stuck.id, b"last");
        let mut numbers = Vec::new();
        loop {
            let (_, body_got) = next(&mut stuck);
            if body_got == b"last" {
                break numbers;
            }
            let number = u32::from_be_bytes(body_got[..4].try_into().expect("four bytes"));
            assert_eq!(body_got, body(number));
            numbers.push(number);
        }
    };
    assert!(
        got.is_sorted() && got.len() as u32 + refused == FRAMES,
        "{} {refused}",
        got.len()
    );
}

fn frames_to_groups_and_to_members_are_not_mixed_under_load(engine: &str) {
    const FRAMES: u32 = 1000;
    /// Frames to the group that may wait for user space.
    const AT_ONCE: u32 = 16;
    // Room for all, since nothing keeps the senders from being faster than those who read.
    let mesh = mesh(engine, &["--groups", "1", "--member-bytes", "67108864"]);
    let group = EVERYONE - 1;
    let mut receivers = [(); 3].map(|()| Client::new(&mesh, usual()));
    for client in &mut receivers {
        join(client, group);
    }
    let ids = receivers.each_ref().map(|client| client.id);
    let body = |sender: u8, kind: u8, number: u32| {
        let mut body = vec![sender, kind];
        body.extend(number.to_be_bytes());
        body.resize(6 + (number as usize * 31) % 3000, sender ^ kind);
        body
    };
    let senders: Vec<_> = (0..2u8)
        .map(|sender| {
            let mut client = Client::new(&mesh, usual());
            std::thread::spawn(move || {
                for number in 0..FRAMES {
                    client.send(group, &body(sender, 0, number));
                    for id in ids {
                        client.send(id, &body(sender, 1, number));
                    }
                    if number % AT_ONCE == AT_ONCE - 1 {
                        // Its answer comes when all before it is handed out.
                        client.ask(2, number, b"nobody");
                        assert_eq!(client.told(), (Code::NoSuchName, number, 0));
                    }
                }
                client
            })
        })
        .collect();
    let readers = receivers.map(|mut client| {
        std::thread::spawn(move || {
            let mut due = [[0u32; 2]; 2];
            for _ in 0..2 * 2 * FRAMES {
                let (destination, got) = next(&mut client);
                assert_eq!(destination, client.id);
                let number = u32::from_be_bytes(got[2..6].try_into().expect("four bytes"));
                let place = &mut due[usize::from(got[0])][usize::from(got[1])];
                assert_eq!((number, &got), (*place, &body(got[0], got[1], number)));
                *place += 1;
            }
            client
        })
    });
    // They stay members until all have read.
    let clients = senders.into_iter().map(|it| it.join().expect("sent"));
    let _clients: Vec<_> = clients.collect();
    for reader in readers {
        reader.join().expect("read");
    }
}
