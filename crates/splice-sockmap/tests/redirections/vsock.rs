//! Links of VSOCK sockets, over the loopback that some kernels have.

use netlab::{until, until_found};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use splice_base::release::Release;
use splice_sockmap::{ErrorKind, MapType, Redirect, Redirections, SocketKind, defects};
use std::time::Duration;

use crate::bounding::keeps_up_without_an_end;
use crate::conversation::{Pair, put, take};
use crate::linking::{converse, ends};
use crate::maps::goes_in_and_out;
use crate::pins::Pins;

const VSOCK: [SocketKind; 2] = [SocketKind::VsockStream, SocketKind::VsockSeqpacket];

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maps take VSOCK sockets since 6.4 (`vsock_bpf.c`).
fn maps_take_vsock() -> bool {
    Release::here().is_none_or(|release| release.series() >= (6, 4))
}

#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn links_of_vsock_carry_every_message_and_leave() {
    for redirect in Redirect::ALL {
        for map_type in [MapType::Map, MapType::Hash] {
            let redirections = Redirections::new(redirect, map_type, 64).expect("loaded");
            for (source_kind, target_kind) in SocketKind::ALL
                .into_iter()
                .flat_map(|source| SocketKind::ALL.map(|target| (source, target)))
                .filter(|(source, target)| VSOCK.contains(source) || VSOCK.contains(target))
            {
                link_and_leave(&redirections, redirect, source_kind, target_kind);
            }
        }
    }
}

#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn sockets_of_vsock_go_into_maps_of_both_types_and_out() {
    if !maps_take_vsock() {
        return;
    }
    let pins = Pins::new();
    for kind in VSOCK {
        goes_in_and_out(kind, &Pair::of(kind), &pins);
    }
}

#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn what_is_outstanding_is_told_of_vsock_too() {
    if !maps_take_vsock() {
        return;
    }
    for redirect in [Redirect::IngressToEgress, Redirect::IngressToLocal] {
        for vsock in VSOCK {
            keeps_up_without_an_end(redirect, vsock, SocketKind::UnixStream);
        }
    }
    // The backlog of a target whose peer has no credit left. With a seqpacket the kernel sends the beginning of a message twice
    // then.
    let target = SocketKind::VsockStream;
    keeps_up_without_an_end(Redirect::IngressToEgress, SocketKind::Tcp, target);
}

/// The doctor tries it without a map.
#[test]
#[ignore = "kernel: needs the loopback of VSOCK; make test-kernels runs it"]
fn a_seqpacket_whose_peer_does_not_read_does_what_the_doctor_says() {
    const MESSAGE_BYTES: usize = 30 << 10;
    /// Twice what a peer's credit of 256 KiB has room for.
    const MESSAGES: usize = 16;
    let mut defects = defects().into_iter();
    let defect = defects.find(|defect| defect.name == "seqpacket");
    let says_twice = defect.expect("known").present.expect("tried");
    if !maps_take_vsock() {
        return;
    }
    let loaded = Redirections::new(Redirect::IngressToEgress, MapType::Hash, 1).expect("loaded");
    let redirections = loaded.bounded(u64::MAX);
    // What waits is charged to no sender.
    let source = Pair::of(SocketKind::Udp);
    let target = Pair::of(SocketKind::VsockSeqpacket);
    let link = redirections.link(&source.member, &target.member);
    let link = link.expect("linked");
    let mut buffer = vec![0; 2 * MESSAGES * MESSAGE_BYTES];
    let mut sent = 0;
    // The worker may not have come to the message for which there is no credit before that is renewed.
    let mut round = || {
        for _ in 0..MESSAGES {
            put(&source.peer, &[7; MESSAGE_BYTES]);
            sent += 1;
            until("it is redirected", || link.counters().messages == sent);
        }
        until("the credit is used", || {
            let outstanding = link.outstanding().expect("looked").expect("bounded");
            (1..MESSAGES as u64 * MESSAGE_BYTES as u64 * 3 / 4).contains(&outstanding)
        });
        let mut most = 0;
        for _ in 0..MESSAGES {
            let read = || recv(&target.peer, &mut buffer[..], RecvFlags::DONTWAIT);
            let (bytes, _) = until_found("a message comes", retry(read));
            assert!(bytes >= MESSAGE_BYTES, "{bytes}");
            most = most.max(bytes);
        }
        most > MESSAGE_BYTES
    };
    if says_twice {
        until("a message has its beginning twice", round);
    } else {
        assert!(
            (0..20).all(|_| !round()),
            "a message has its beginning twice"
        );
    }
}

/// Nothing, as long as there is nothing to read.
fn retry(
    mut read: impl FnMut() -> Result<(usize, usize), Errno>,
) -> impl FnMut() -> Option<(usize, usize)> {
    move || match read() {
        Err(Errno::AGAIN) => None,
        read => Some(read.expect("received")),
    }
}

fn link_and_leave(
    redirections: &Redirections,
    redirect: Redirect,
    source_kind: SocketKind,
    target_kind: SocketKind,
) {
    let what = format!("{redirect}: {source_kind} to {target_kind}");
    let (source, target) = (Pair::of(source_kind), Pair::of(target_kind));
    let linked = redirections.link(&source.member, &target.member);
    if redirect.supports(source_kind, target_kind).is_err() || !maps_take_vsock() {
        let error = linked.expect_err("it is not supported");
        assert_eq!(
            error.kind(),
            ErrorKind::UnsupportedSocket,
            "{what}: {error}"
        );
        // Nothing is lost: the source works as before.
        converse(&source.peer, &source.member, false, &what);
        return;
    }
    let mut link = linked.unwrap_or_else(|error| panic!("{what}: {error}"));
    let (from, to) = ends(redirect, &source, &target);
    converse(
        from,
        to,
        !source_kind.is_stream() && !target_kind.is_stream(),
        &what,
    );
    let must_end = matches!(
        source_kind,
        SocketKind::UnixStream | SocketKind::VsockStream
    );
    if must_end {
        let open = link
            .leave(&source.member, PATIENCE)
            .expect_err("it may send");
        assert!(open.to_string().contains("end the stream first"), "{open}");
        shutdown(&source.peer, Shutdown::Write).expect("ended");
    }
    // The end takes its time over VSOCK.
    until(&format!("{what}: the source leaves"), || {
        match link.leave(&source.member, PATIENCE) {
            Ok(()) => true,
            Err(error) if must_end && error.to_string().contains("end the stream first") => false,
            Err(error) => panic!("{what}: {error}"),
        }
    });
    if !must_end {
        put(&source.peer, b"to the reader");
        assert_eq!(take(&source.member), b"to the reader", "{what}");
    }
    put(&target.member, b"a plain socket");
    assert_eq!(take(&target.peer), b"a plain socket", "{what}");
}
