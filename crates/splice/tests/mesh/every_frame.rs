//! Many members, many frames, each checked, and one member that does not read.

use std::io::Write;
use std::sync::Barrier;
use std::thread;

use netlab::{Need, available, until};
use splice::mesh::{Bounds, Code, Notice};

use crate::random::Random;
use crate::stage::{Client, Stage, framing};

const MEMBERS: usize = 64;

/// The longest body of the frames between members that read, in bytes: from a few bytes to several segments.
const MOST_BODY_BYTES: u64 = 3000;

/// The bodies for the member that does not read, in bytes: all of one round are three times its bound.
const STALLED_BODY_BYTES: usize = 50_000;

/// The frames of one sender that may be on their way: it waits for as many before it sends more.
const ROUND: usize = 50;

/// What notices may take beyond the bound of a member, in bytes, and a frame of each CPU that decides at the
/// same time.
const BEYOND_BOUND: u64 = 1 << 20;

/// The body of a frame: who sends it, its number among those to this member, and bytes that follow from both.
fn body(sender: u64, receiver: u64, number: u64, bytes: Option<usize>) -> Vec<u8> {
    let mut random = Random::seeded(sender << 40 ^ receiver << 20 ^ number);
    let bytes = bytes.unwrap_or_else(|| random.below(MOST_BODY_BYTES) as usize);
    let mut body = [sender, number].map(u64::to_be_bytes).concat();
    body.extend((0..bytes.div_ceil(8)).flat_map(|_| random.next().to_ne_bytes()));
    body.truncate(16 + bytes);
    body
}

fn number_at(body: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(body[at..at + 8].try_into().expect("eight bytes"))
}

/// One member that sends and reads.
struct Active<'a> {
    client: Client,
    /// Itself and all others.
    ids: &'a [u64],
    stalled: u64,
    /// Frames for the stalled member of which a notice has said that they were refused.
    told: u64,
}

impl Active<'_> {
    /// Sends so many frames to the members in turn, and checks what comes: each frame once, whole, and in
    /// order for each sender. Returns how many it has sent to the stalled member.
    fn exchange(&mut self, frames: usize, barrier: &Barrier) -> u64 {
        let (id, framing) = (self.client.id, self.client.framing);
        let at = self
            .ids
            .iter()
            .position(|other| *other == id)
            .expect("a member");
        let mut sent_to = vec![0u64; self.ids.len()];
        let mut come_from = vec![0u64; self.ids.len()];
        let (mut sent, mut rounds) = (0, 0);
        while sent < frames {
            let round = ROUND.min(frames - sent);
            let stalled = body(id, self.stalled, rounds, Some(STALLED_BODY_BYTES));
            let mut bytes = framing.frame(self.stalled, &stalled).expect("a frame");
            for step in sent..sent + round {
                // Each gets as many as each sends, in every round.
                let to = (at + step) % self.ids.len();
                let body = body(id, self.ids[to], sent_to[to], None);
                sent_to[to] += 1;
                bytes.extend(framing.frame(self.ids[to], &body).expect("a frame"));
            }
            // All of it fits into the buffers, since the kernel takes whatever is sent.
            self.client.stream.write_all(&bytes).expect("sent");
            for _ in 0..round {
                let frame = self.frame();
                let came = &frame[framing.header_bytes() as usize..];
                assert_eq!(framing.destination_of(&frame), Some(id));
                let from = number_at(came, 0);
                let place = self.ids.iter().position(|other| *other == from);
                let count = &mut come_from[place.expect("a sender")];
                let expected = body(from, id, *count, None);
                assert!(came == expected, "{from} to {id}, number {count}");
                *count += 1;
            }
            (sent, rounds) = (sent + round, rounds + 1);
            barrier.wait();
        }
        rounds
    }

    /// The next frame that is no notice.
    fn frame(&mut self) -> Vec<u8> {
        loop {
            let frame = self.client.frame().expect("a frame");
            match Notice::of_frame(&self.client.framing, &frame) {
                Some(notice) => self.note(notice),
                None => return frame,
            }
        }
    }

    fn note(&mut self, notice: Notice) {
        let expected = [(Code::Full, self.stalled), (Code::Refused, 0)];
        assert!(
            expected.contains(&(notice.code, notice.destination)),
            "{notice:?}"
        );
        self.told += u64::from(notice.frames);
    }
}

/// Every member but one sends `frames` frames to the others, and some to the one that does not read.
fn exchange(frames: usize) {
    let bounds = Bounds::default();
    let stage = Stage::new(framing(), bounds);
    let mut stalled = stage.member();
    let clients: Vec<Client> = (1..MEMBERS).map(|_| stage.member()).collect();
    let ids: Vec<u64> = clients.iter().map(|client| client.id).collect();
    let barrier = Barrier::new(clients.len());
    let (ids, barrier, stalled_id) = (&ids[..], &barrier, stalled.id);
    let (mut active, rounds): (Vec<Active<'_>>, Vec<u64>) = thread::scope(|scope| {
        let threads: Vec<_> = (clients.into_iter())
            .map(|client| {
                let mut one = Active {
                    client,
                    ids,
                    stalled: stalled_id,
                    told: 0,
                };
                scope.spawn(move || {
                    let rounds = one.exchange(frames, barrier);
                    (one, rounds)
                })
            })
            .collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().expect("no member went wrong"));
        ended.unzip()
    });

    let counters = |id| {
        stage
            .mesh
            .lock()
            .expect("whole")
            .counters(id)
            .expect("a member")
    };
    let to_stalled: u64 = rounds.iter().sum();
    let all = (frames * active.len()) as u64 + to_stalled;
    until("every frame had its verdict", || {
        let sent = ids.iter().map(|id| counters(*id));
        sent.map(|one| one.sent_frames + one.full_frames)
            .sum::<u64>()
            == all
    });
    // Only the stalled member had no room, its bound was kept, and each refusal is told to its sender.
    let got = counters(stalled_id).received_frames;
    let refused: u64 = ids.iter().map(|id| counters(*id).full_frames).sum();
    assert_eq!(got + refused, to_stalled);
    assert!(
        refused > 0,
        "all {got} frames fit, so the test shows nothing"
    );
    let on_the_way = stage
        .mesh
        .lock()
        .expect("whole")
        .on_the_way_bytes(stalled_id)
        .expect("a member");
    assert!(
        on_the_way <= u64::from(bounds.member_bytes) + BEYOND_BOUND,
        "{on_the_way}"
    );
    for one in &mut active {
        let refused = counters(one.client.id).full_frames;
        while one.told < refused {
            let notice = one.client.notice();
            one.note(notice);
        }
        assert_eq!(one.told, refused, "{}", one.client.id);
    }
    println!(
        "{all} frames sent, {refused} of {to_stalled} to the stalled member refused, {on_the_way} bytes on the way"
    );

    // What was not refused is whole.
    for _ in 0..got {
        let (_, came) = stalled.receive();
        let (from, number) = (number_at(&came, 0), number_at(&came, 8));
        assert!(
            came == body(from, stalled_id, number, Some(STALLED_BODY_BYTES)),
            "{from}, {number}"
        );
    }
}

#[test]
fn sixty_four_members_get_every_frame_once_and_whole() {
    if !available(Need::Bpf) {
        return;
    }
    exchange(20_000 / (MEMBERS - 1) + 1);
}

#[test]
#[ignore = "soak: a million frames take minutes"]
fn sixty_four_members_get_a_million_frames() {
    if !available(Need::Bpf) {
        return;
    }
    exchange(1_000_000 / (MEMBERS - 1) + 1);
}
