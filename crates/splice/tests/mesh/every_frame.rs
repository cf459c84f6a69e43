//! Many members, many frames, each checked: one member does not read, one sends garbage, ten come and go.

use std::collections::HashSet;
use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use netlab::until;
use splice::EngineName;
use splice::mesh::{Bounds, Code, MemberCounters, Notice};

use crate::random::Random;
use crate::stage::{Client, Stage};
use crate::traffic::{MOST_BODY_BYTES, Numbers, framing};

by_each_engine!(sixty_four_members_get_every_frame_once_and_whole);

const MEMBERS: usize = 64;
/// Members that come and go.
const GUESTS: usize = 10;
/// All but them, the one that does not read and the one that sends garbage.
const ACTIVE: usize = MEMBERS - GUESTS - 2;

/// The frames of one sender that may be on their way: it waits for as many before it sends more.
const ROUND: usize = 50;

/// The frames of a round for the member that does not read: all of a run are several times its bound.
const TO_STALLED: usize = 5;

/// The most frames of a round for guests, which may have left.
const TO_GUESTS: u64 = 4;

/// The most bytes of a body that a guest sends or gets, and that the member that does not read gets.
const GUEST_BODY_BYTES: usize = 2000;
const STALLED_BODY_BYTES: usize = MOST_BODY_BYTES;

/// What may be on its way to a member, in bytes: more than a round of the longest frames.
const MEMBER_BYTES: u32 = 6 << 20;

/// What notices may take beyond the bound of a member, in bytes, and a frame of each CPU that decides at the
/// same time.
const BEYOND_BOUND: u64 = 1 << 20;

/// What all members know.
struct Load<'a> {
    stage: &'a Stage,
    /// Those that read, in the order in which they send.
    active: Vec<u64>,
    stalled: u64,
    guests: Vec<AtomicU64>,
    barrier: Barrier,
    is_over: AtomicBool,
    most_on_the_way: AtomicU64,
    /// What guests have sent, got, and were told to be refused.
    guests_sent: AtomicU64,
    guests_come: AtomicU64,
    guests_told: AtomicU64,
    guests_left: AtomicU64,
    garbage: AtomicU64,
}

/// One member that sends and reads.
struct Active {
    client: Client,
    numbers: Numbers,
    is_active: HashSet<u64>,
}

impl Load<'_> {
    fn counters(&self, id: u64) -> MemberCounters {
        let mesh = self.stage.mesh.lock().expect("whole");
        mesh.counters(id).expect("a member")
    }

    fn look_at_stalled(&self) {
        let mesh = self.stage.mesh.lock().expect("whole");
        let bytes = mesh.on_the_way_bytes(self.stalled).expect("a member");
        self.most_on_the_way.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Comes, sends a few frames, gets some, and leaves, again and again.
    fn be_guest(&self, place: usize) {
        let mut random = Random::seeded(place as u64);
        while !self.is_over.load(Ordering::Relaxed) {
            let mut client = self.stage.member();
            let mut numbers = Numbers::new(client.id);
            self.guests[place].store(client.id, Ordering::Release);
            for _ in 0..3 {
                let to = self.active[random.below(ACTIVE as u64) as usize];
                let frame = numbers.frame(to, GUEST_BODY_BYTES);
                client.stream.write_all(&frame).expect("sent");
            }
            let to_itself = numbers.frame(client.id, GUEST_BODY_BYTES);
            client.stream.write_all(&to_itself).expect("sent");
            let mut has_ended = false;
            while let Some(frame) = client.frame() {
                if let Some(notice) = Notice::of_frame(&client.framing, &frame) {
                    numbers.told_frames += u64::from(notice.frames);
                } else if numbers.check(&frame, GUEST_BODY_BYTES).0 == client.id && !has_ended {
                    client.stream.shutdown(Shutdown::Write).expect("shut down");
                    has_ended = true;
                }
            }
            for (sum, frames) in [
                (&self.guests_sent, numbers.sent_frames),
                (&self.guests_come, numbers.come_frames),
                (&self.guests_told, numbers.told_frames),
                (&self.guests_left, 1),
            ] {
                sum.fetch_add(frames, Ordering::Relaxed);
            }
        }
    }

    /// Comes, sends what is no frame, or only a part of one, and is thrown out, again and again.
    fn send_garbage(&self) {
        let mut random = Random::seeded(77);
        while !self.is_over.load(Ordering::Relaxed) {
            self.look_at_stalled();
            let mut client = self.stage.member();
            let mut noise: Vec<u8> = (0..random.size(5000) + 24)
                .map(|_| random.next() as u8)
                .collect();
            if random.below(3) == 0 {
                // The beginning of a frame; its end is a reset if something is unread.
                noise[..4].copy_from_slice(&60_000u32.to_be_bytes());
                client.stream.write_all(&noise).expect("sent");
            } else {
                noise[0] = 0xff;
                client.stream.write_all(&noise).expect("sent");
                assert_eq!(client.notice().code, Code::TooLong);
                assert!(client.frame().is_none());
            }
            self.garbage.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Active {
    /// Sends so many frames to the others in turn, and checks what comes.
    fn exchange(&mut self, load: &Load<'_>, frames: usize) {
        let id = self.client.id;
        let at = load.active.iter().position(|other| *other == id);
        let at = at.expect("a member");
        let mut random = Random::seeded(id);
        let mut sent = 0;
        while sent < frames {
            let round = ROUND.min(frames - sent);
            let mut bytes = Vec::new();
            for _ in 0..TO_STALLED {
                bytes.extend(self.numbers.frame(load.stalled, STALLED_BODY_BYTES));
            }
            for step in sent..sent + round {
                // Each gets as many as each sends, in every round.
                let to = load.active[(at + step) % ACTIVE];
                bytes.extend(self.numbers.frame(to, MOST_BODY_BYTES));
            }
            for _ in 0..random.below(TO_GUESTS) {
                let guest = &load.guests[random.below(GUESTS as u64) as usize];
                let to = guest.load(Ordering::Acquire);
                if to > 0 {
                    bytes.extend(self.numbers.frame(to, GUEST_BODY_BYTES));
                }
            }
            self.client.stream.write_all(&bytes).expect("sent");
            let mut come = 0;
            while come < round {
                come += usize::from(self.take());
            }
            sent += round;
            load.barrier.wait();
        }
    }

    /// Takes what comes next. Returns whether it is a frame of another active member.
    fn take(&mut self) -> bool {
        let frame = self.client.frame().expect("a frame");
        if let Some(notice) = Notice::of_frame(&self.client.framing, &frame) {
            assert!(
                matches!(notice.code, Code::Full | Code::Refused | Code::Unknown),
                "{notice:?}"
            );
            // Those that read have room.
            assert!(!self.is_active.contains(&notice.destination), "{notice:?}");
            self.numbers.told_frames += u64::from(notice.frames);
            return false;
        }
        let sender = u64::from_be_bytes(frame[4..12].try_into().expect("eight bytes"));
        let is_active = self.is_active.contains(&sender);
        let most = if is_active {
            MOST_BODY_BYTES
        } else {
            GUEST_BODY_BYTES
        };
        let (_, gap) = self.numbers.check(&frame, most);
        assert_eq!(gap, 0, "frames of {sender} are missing");
        is_active
    }
}

/// Every active member sends `frames` frames to the others, and some to the one that does not read.
fn exchange(engine: EngineName, frames: usize) {
    let bounds = Bounds {
        member_bytes: MEMBER_BYTES,
        ..Bounds::default()
    };
    let stage = Stage::new(engine, framing(), bounds);
    let mut stalled = stage.member();
    let clients: Vec<Client> = (0..ACTIVE).map(|_| stage.member()).collect();
    let active: Vec<u64> = clients.iter().map(|client| client.id).collect();
    let load = Load {
        stage: &stage,
        stalled: stalled.id,
        guests: (0..GUESTS).map(|_| AtomicU64::new(0)).collect(),
        barrier: Barrier::new(ACTIVE),
        is_over: AtomicBool::new(false),
        most_on_the_way: AtomicU64::new(0),
        guests_sent: AtomicU64::new(0),
        guests_come: AtomicU64::new(0),
        guests_told: AtomicU64::new(0),
        guests_left: AtomicU64::new(0),
        garbage: AtomicU64::new(0),
        active,
    };
    let load = &load;
    let is_active: HashSet<u64> = load.active.iter().copied().collect();
    let began = std::time::Instant::now();
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let guests: Vec<_> = (0..GUESTS)
            .map(|place| scope.spawn(move || load.be_guest(place)))
            .collect();
        let garbage = scope.spawn(|| load.send_garbage());
        let threads: Vec<_> = (clients.into_iter())
            .map(|client| {
                let mut one = Active {
                    numbers: Numbers::new(client.id),
                    client,
                    is_active: is_active.clone(),
                };
                let done = &done;
                scope.spawn(move || {
                    one.exchange(load, frames);
                    done.lock().expect("whole").push(one);
                })
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        // Before anything that may fail, as they end only then.
        load.is_over.store(true, Ordering::Relaxed);
        let others: Vec<_> = guests
            .into_iter()
            .chain([garbage])
            .map(|thread| thread.join())
            .collect();
        assert!(
            ended.iter().chain(&others).all(Result::is_ok),
            "a member went wrong"
        );
    });
    let took = began.elapsed();
    let mut active = done.into_inner().expect("whole");

    // Each frame has its verdict, and each refusal is told to its sender.
    for one in &mut active {
        let (id, sent) = (one.client.id, one.numbers.sent_frames);
        until("every frame had its verdict", || {
            let all = load.counters(id);
            all.sent_frames + all.full_frames + all.unknown_frames == sent
        });
    }
    let (mut sent, mut come, mut told, mut full) = (0, 0, 0, 0);
    for one in &mut active {
        let all = load.counters(one.client.id);
        let refused = all.full_frames + all.unknown_frames;
        while one.numbers.told_frames < refused || one.numbers.come_frames < all.received_frames {
            one.take();
        }
        assert_eq!(one.numbers.told_frames, refused, "{}", one.client.id);
        assert_eq!(
            one.numbers.come_frames, all.received_frames,
            "{}",
            one.client.id
        );
        full += all.full_frames;
        sent += one.numbers.sent_frames;
        come += one.numbers.come_frames;
        told += one.numbers.told_frames;
    }
    // What was not refused to the member that did not read is whole, and nothing more has come.
    load.look_at_stalled();
    let waiting = load.counters(stalled.id).received_frames;
    let mut numbers = Numbers::new(stalled.id);
    for _ in 0..waiting {
        let frame = stalled.frame().expect("a frame");
        numbers.check(&frame, STALLED_BODY_BYTES);
    }
    let guests = [&load.guests_sent, &load.guests_come, &load.guests_told]
        .map(|sum| sum.load(Ordering::Relaxed));
    let [sent, come, told] = [
        sent + guests[0],
        come + guests[1] + waiting,
        told + guests[2],
    ];
    let [left, garbage, most] = [&load.guests_left, &load.garbage, &load.most_on_the_way]
        .map(|count| count.load(Ordering::Relaxed));
    println!(
        "{engine}: {sent} frames sent in {took:?}, {come} received, {told} refused with a notice ({full} for want of room); {left} guests, \
         {garbage} with garbage; at most {most} bytes on the way to the member that does not read"
    );
    assert_eq!(sent, come + told);
    // Else the run shows too little.
    assert!(full > 0 && waiting > 0, "{full} refused, {waiting} wait");
    assert!(
        left > GUESTS as u64 && garbage > 3,
        "{left} guests, {garbage} with garbage"
    );
    assert!(most > u64::from(MEMBER_BYTES) / 2, "{most}");
    assert!(most <= u64::from(MEMBER_BYTES) + BEYOND_BOUND, "{most}");
}

fn sixty_four_members_get_every_frame_once_and_whole(engine: EngineName) {
    exchange(engine, 25_000 / ACTIVE + 1);
}

#[test]
#[ignore = "soak: a million frames take minutes"]
fn the_kernel_delivers_a_million_frames() {
    if netlab::available(netlab::Need::Bpf) {
        exchange(EngineName::Sockmap, 1_000_000 / ACTIVE + 1);
    }
}

#[test]
#[ignore = "soak: a million frames take minutes"]
fn user_space_delivers_a_million_frames() {
    exchange(EngineName::Copy, 1_000_000 / ACTIVE + 1);
}
