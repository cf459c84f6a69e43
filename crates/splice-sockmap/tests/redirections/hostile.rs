//! What a careless or hostile caller does: each gets a sentence, and loses nothing that others have.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, libbpf_sys};
use netlab::{BpfFileSystem, Need, Scratch, available, until};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount_remount};
use rustix::net::{AddressFamily, Shutdown, SocketType, shutdown, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use splice_bpf::objects;
use splice_sockmap::{
    Cookie, ErrorKind, Lease, MapType, Redirect, Redirections, SockHash, SockMap, SocketKind,
};

use crate::conversation::{Pair, put, take};

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// No test lasts so long.
const FOR_LONG: Duration = Duration::from_secs(3600);

#[test]
fn maps_of_odd_sizes_work_or_are_refused_with_a_sentence() {
    if !available(Need::Root) {
        return;
    }
    let pair = Pair::of(SocketKind::Tcp);
    let socket = &pair.member;
    let cookie = Cookie::of(socket).expect("a cookie");
    // The longest key of the kernel is its stack (`sock_hash_alloc`).
    let longest = SockHash::<[u8; 512]>::create(1).expect("a map");
    let shortest = SockHash::<u8>::create(1).expect("a map");
    let one = SockMap::create(1).expect("a map");
    for byte in [0, 1, 0x7f, 0xff] {
        longest.insert([byte; 512], socket).expect("inserted");
        let second = longest.insert([byte ^ 1; 512], socket);
        let second = second.expect_err("there is room for one");
        assert!(second.to_string().contains("no room"), "{second}");
        assert!(longest.iter().eq([([byte; 512], cookie)]));
        assert!(longest.remove([byte; 512]).expect("removed"));
        assert!(!longest.remove([byte; 512]).expect("it was removed"));
        shortest.insert(byte, socket).expect("inserted");
        assert_eq!(shortest.cookie(byte).expect("read"), Some(cookie));
        assert!(shortest.remove(byte).expect("removed"));
        for beyond in [1, u32::from(byte) + 1, u32::MAX] {
            assert!(one.insert(beyond, socket).is_err(), "{beyond}");
            assert!(!one.remove(beyond).expect("nothing is there"));
            assert_eq!(one.cookie(beyond).expect("nothing is there"), None);
        }
    }
    let refused = [
        SockHash::<[u8; 513]>::create(1).map(drop),
        SockHash::<[u8; 0]>::create(1).map(drop),
        SockHash::<u64>::create(0).map(drop),
        SockMap::create(0).map(drop),
        SockHash::<u64>::create(u32::MAX).map(drop),
        SockMap::create(u32::MAX).map(drop),
        Redirections::new(Redirect::SendToLocal, MapType::Map, 0).map(drop),
        Redirections::new(Redirect::SendToLocal, MapType::Hash, u32::MAX).map(drop),
    ];
    for (index, refused) in refused.into_iter().enumerate() {
        let error = refused.expect_err("the kernel has none of it");
        assert_eq!(error.kind(), ErrorKind::BpfRefused, "{index}: {error}");
        let said = error.to_string();
        assert!(
            said.starts_with("maps of sockets cannot be used: "),
            "{index}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{index}: {said}");
    }
}

/// A map of sockets as other programs make them, whose values are descriptors on the way in only.
fn pinned_by_others(of: MapType, key_bytes: u32, path: &Path) -> MapHandle {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let of = match of {
        MapType::Map => libbpf_rs::MapType::Sockmap,
        MapType::Hash => libbpf_rs::MapType::Sockhash,
    };
    let made = MapHandle::create(of, Some("others"), key_bytes, 4, 4, &options);
    let mut map = made.expect("a map");
    map.pin(path).expect("pinned");
    map
}

/// Under the name of a pin there may be anything. Whatever it is, it stays as it is.
#[test]
fn what_is_pinned_and_no_map_of_this_type_is_refused_with_a_sentence() {
    if !available(Need::Root) {
        return;
    }
    let pins = BpfFileSystem::new("forged").expect("a BPF file system");
    let scratch = Scratch::new("forged").expect("a directory");
    let at = |name: &str| pins.path().join(name);
    let others = [
        pinned_by_others(MapType::Map, 4, &at("map of others")),
        pinned_by_others(MapType::Hash, 4, &at("hash of others")),
        pinned_by_others(MapType::Hash, 3, &at("short keys of others")),
    ];
    let member = Pair::of(SocketKind::Tcp);
    let descriptor = member.member.as_raw_fd().to_ne_bytes();
    for map in &others[..2] {
        let inserted = map.update(&0u32.to_ne_bytes(), &descriptor, MapFlags::ANY);
        inserted.expect("inserted");
    }
    let mut object = splice_bpf::load("redirections", objects::REDIRECTIONS, |opened| {
        opened.retype("sources", MapType::Map)?;
        opened.retype("targets", MapType::Map)
    })
    .expect("loaded");
    object.pin_program("look", &at("program")).expect("pinned");
    object.pin_map("unknown", &at("array")).expect("pinned");
    let mut long = SockHash::<u64>::create(1).expect("a map");
    long.pin(at("long keys")).expect("pinned");
    fs::create_dir(at("directory")).expect("made");
    std::os::unix::fs::symlink("nowhere", at("link to nothing")).expect("made");
    let file = scratch.path().join("file");
    fs::write(&file, "no pin").expect("written");

    let names = fs::read_dir(pins.path()).expect("a directory").flatten();
    let mut paths: Vec<_> = names.map(|entry| entry.path()).collect();
    // Some kernels make two more (CONFIG_BPF_PRELOAD).
    assert!([8, 10].contains(&paths.len()), "{paths:?}");
    paths.extend([file, scratch.path().into(), "".into(), "/".into()]);
    for path in &paths {
        let refused = [
            SockMap::open_pinned(path).map(drop),
            SockHash::<u32>::open_pinned(path).map(drop),
        ];
        for refused in refused {
            let error = refused.expect_err("it is no such map");
            assert_eq!(error.kind(), ErrorKind::System, "{error}");
            let said = error.to_string();
            assert_eq!(said.lines().count(), 1, "{said}");
            let begin = format!("cannot open the pinned map {}: ", path.display());
            assert!(said.starts_with(&begin), "{said}");
        }
    }
    let said = SockMap::open_pinned(at("map of others")).expect_err("it tells no cookies");
    assert!(
        said.to_string().contains("its values have 4 bytes"),
        "{said}"
    );
    // The member is where it was.
    for map in &others[..2] {
        map.delete(&0u32.to_ne_bytes()).expect("it was there");
    }
}

/// Descriptors that are no sockets, and sockets that cannot be linked now.
fn unfit() -> Vec<(&'static str, OwnedFd)> {
    let tcp = || Pair::of(SocketKind::Tcp);
    let scratch = Scratch::new("hostile").expect("a directory");
    let [ended, half_closed, reset] = [tcp(), tcp(), tcp()];
    drop(ended.peer);
    shutdown(&half_closed.peer, Shutdown::Write).expect("ended");
    rustix::net::sockopt::set_socket_linger(&reset.peer, Some(Duration::ZERO)).expect("set");
    drop(reset.peer);
    for of in [&ended.member, &half_closed.member, &reset.member] {
        until("its end has come", || {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let mut polled = [PollFd::new(of, PollFlags::RDHUP)];
            poll(&mut polled, Some(&Timespec::default())).expect("polled") == 1
        });
    }
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let udp = socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
    let unix = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    let (pipe, _) = rustix::pipe::pipe().expect("a pipe");
    let path = rustix::fs::open("/", OFlags::PATH, Mode::empty()).expect("a path");
    let unix_listener = UnixListener::bind(scratch.path().join("socket")).expect("bound");
    vec![
        (
            "a file",
            File::open("/proc/self/stat").expect("a file").into(),
        ),
        ("a path", path),
        ("a pipe", pipe),
        (
            "an epoll instance",
            rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("made"),
        ),
        ("a TCP socket that was never connected", stream),
        (
            "a TCP listener",
            TcpListener::bind("127.0.0.1:0").expect("bound").into(),
        ),
        ("a UDP socket that is not bound", udp),
        ("a UNIX socket that was never connected", unix),
        ("a UNIX listener", unix_listener.into()),
        ("a TCP socket whose peer is closed", ended.member),
        (
            "a TCP socket whose peer has ended its stream",
            half_closed.member,
        ),
        ("a TCP socket that was reset", reset.member),
    ]
}

#[test]
fn what_cannot_be_linked_is_refused_and_takes_no_room() {
    if !available(Need::Root) {
        return;
    }
    let unfit = unfit();
    for redirect in Redirect::ALL {
        for map_type in MapType::ALL {
            let redirections = Redirections::new(redirect, map_type, 1).expect("loaded");
            let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
            for (name, socket) in &unfit {
                let as_source = redirections.link(socket, &target.member).map(drop);
                let as_target = redirections.link(&source.member, socket).map(drop);
                for (role, refused) in [("source", as_source), ("target", as_target)] {
                    let what = format!("{redirect}: {name} as a {role}");
                    let Err(error) = refused else {
                        panic!("{what} is linked")
                    };
                    assert_eq!(error.to_string().lines().count(), 1, "{what}: {error}");
                }
            }
            // All room is there, and the sockets are as they were.
            put(&source.peer, b"before");
            assert_eq!(take(&source.member), b"before", "{redirect}");
            let link = redirections.link(&source.member, &target.member);
            link.unwrap_or_else(|error| panic!("{redirect}: {error}"));
        }
    }
}

/// The kernel redirects nothing to it, so a link would pass every message.
#[test]
fn a_target_without_a_peer_is_refused() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("hostile").expect("a directory");
    let unconnected = |kind| -> OwnedFd {
        match kind {
            SocketKind::Udp => UdpSocket::bind("127.0.0.1:0").expect("bound").into(),
            _ => {
                let name = format!("{}", scratch.path().join("target").display());
                let _ = fs::remove_file(&name);
                UnixDatagram::bind(name).expect("bound").into()
            }
        }
    };
    for source_kind in [SocketKind::Tcp, SocketKind::Udp, SocketKind::UnixStream] {
        for kind in [SocketKind::Udp, SocketKind::UnixDatagram] {
            let what = format!("{source_kind} to {kind}");
            let source = Pair::of(source_kind);
            let target = unconnected(kind);
            for redirect in [Redirect::IngressToEgress, Redirect::IngressToLocal] {
                let loaded = Redirections::new(redirect, MapType::Hash, 2).expect("loaded");
                let refused = loaded
                    .link(&source.member, &target)
                    .expect_err("nothing is redirected to it");
                assert_eq!(refused.kind(), ErrorKind::UnsupportedSocket, "{what}");
                assert!(
                    refused.to_string().contains("has no peer"),
                    "{what}: {refused}"
                );
                put(&source.peer, b"to its own reader");
                assert_eq!(take(&source.member), b"to its own reader", "{what}");
            }
        }
    }
}

/// As many as a process may have descriptors for, up to two thousand.
#[test]
fn thousands_of_links_share_one_set_of_maps() {
    if !available(Need::Root) {
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).expect("raised");
    let links = limit.maximum.map_or(2000, |most| (most / 4).min(2000)) as u32;
    let redirections = Redirections::new(Redirect::IngressToLocal, MapType::Map, links);
    let redirections = redirections.expect("loaded");
    let target = Pair::of(SocketKind::Udp);
    let sender = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let mut all: Vec<_> = (0..links)
        .map(|_| {
            let source = UdpSocket::bind("127.0.0.1:0").expect("bound");
            let link = redirections.link(&source, &target.member).expect("linked");
            (source, link)
        })
        .collect();
    for (index, (source, _)) in all.iter().enumerate() {
        let address = source.local_addr().expect("bound");
        let message = (index as u32).to_ne_bytes();
        sender.send_to(&message, address).expect("sent");
        assert_eq!(take(&target.member), message);
    }
    for (source, link) in all.iter_mut().step_by(2) {
        link.leave(&*source, PATIENCE).expect("it leaves");
    }
    all.retain(|(_, link)| link.counters().messages == 1);
    let source = UdpSocket::bind("127.0.0.1:0").expect("bound");
    redirections
        .link(&source, &target.member)
        .expect("there is room again");
}

#[test]
fn a_lease_says_what_is_wrong_with_its_directory() {
    if !available(Need::Root) {
        return;
    }
    let file_system = BpfFileSystem::new("lease").expect("a BPF file system");
    let directory = file_system.path().join("lease");
    let read_only = |is: bool| {
        let flags = if is {
            MountFlags::RDONLY
        } else {
            MountFlags::empty()
        };
        mount_remount(file_system.path(), flags, "").expect("mounted again");
    };
    let load = |lease: &Lease| Redirections::leased(lease, Redirect::SendToLocal, MapType::Hash, 4);
    read_only(true);
    let refused = Lease::take(&directory, FOR_LONG).expect_err("nothing can be written");
    assert!(refused.to_string().contains("Read-only"), "{refused}");
    read_only(false);
    let lease = Lease::take(&directory, FOR_LONG).expect("taken");
    read_only(true);
    let refused = load(&lease).expect_err("nothing can be pinned");
    assert!(refused.to_string().contains("Read-only"), "{refused}");
    read_only(false);
    let loaded = load(&lease).expect("loaded");
    let (source, target) = (Pair::of(SocketKind::Tcp), Pair::of(SocketKind::Tcp));
    let mut link = loaded.link(&source.member, &target.member).expect("linked");
    link.leave(&source.member, PATIENCE).expect("it leaves");
    drop((loaded, link));
    read_only(true);
    let refused = Lease::take(&directory, FOR_LONG).expect_err("it is taken");
    assert!(
        refused.to_string().contains("another process has"),
        "{refused}"
    );
    let refused = lease.release(PATIENCE).expect_err("the pins stay");
    assert!(refused.to_string().contains("Read-only"), "{refused}");
    read_only(false);
    // Names that are no sets of this library.
    fs::create_dir(directory.join("set-")).expect("made");
    fs::create_dir(directory.join("set-99999999999")).expect("made");
    let mut other = SockMap::create(1).expect("a map");
    other.pin(directory.join("set-7")).expect("pinned");
    let last = directory.join(format!("set-{}", u32::MAX));
    fs::create_dir(&last).expect("made");
    let mut look = SockMap::create(1).expect("a map");
    look.pin(last.join("of-others")).expect("pinned");
    let lease = Lease::take(&directory, FOR_LONG).expect("taken");
    assert_eq!(lease.left_behind(), 0);
    drop(load(&lease).expect("loaded"));
    // Somebody has cleared everything.
    fs::remove_file(directory.join("set-7")).expect("removed");
    remove_all(&directory);
    assert!(lease.beat());
    lease.release(PATIENCE).expect("nothing is left");
}

fn remove_all(directory: &Path) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        match entry.file_type().expect("known").is_dir() {
            true => remove_all(&entry.path()),
            false => fs::remove_file(entry.path()).expect("removed"),
        }
    }
    fs::remove_dir(directory).expect("removed");
}

/// A target that is a source, too, and whose own target is the first source.
#[test]
fn two_sockets_that_redirect_to_one_another_go_and_come_in_any_order() {
    if !available(Need::Root) {
        return;
    }
    for turn in 0..100 {
        let redirections = Redirections::new(Redirect::IngressToEgress, MapType::ALL[turn % 2], 2);
        let redirections = redirections.expect("loaded");
        let [one, other] = [(); 2].map(|()| Pair::of(SocketKind::Tcp));
        let mut there = redirections
            .link(&one.member, &other.member)
            .expect("linked");
        let mut back = redirections
            .link(&other.member, &one.member)
            .expect("linked");
        put(&one.peer, b"there");
        assert_eq!(take(&other.peer), b"there");
        put(&other.peer, b"back");
        assert_eq!(take(&one.peer), b"back");
        match turn % 5 {
            0 => drop((there, one, redirections, other, back)),
            1 => drop((one, other, there, back, redirections)),
            2 => {
                back.leave(&other.member, PATIENCE).expect("it leaves");
                drop((redirections, other, one, there));
            }
            3 => {
                there.disconnect(&one.member, PATIENCE).expect("it leaves");
                drop((redirections, back, other));
            }
            _ => {
                there.leave(&one.member, PATIENCE).expect("it leaves");
                back.leave(&other.member, PATIENCE).expect("it leaves");
                put(&one.peer, b"plain");
                assert_eq!(take(&one.member), b"plain");
            }
        }
    }
}

/// A descriptor of a connection that is gone may be another's by then.
#[test]
fn a_link_is_of_its_source_and_not_of_a_number() {
    if !available(Need::Root) {
        return;
    }
    let redirections = Redirections::new(Redirect::IngressToEgress, MapType::Hash, 2);
    let redirections = redirections.expect("loaded");
    let [source, target, other] = [(); 3].map(|()| Pair::of(SocketKind::Tcp));
    let mut link = redirections
        .link(&source.member, &target.member)
        .expect("linked");
    let wrong: TcpStream = other.member.try_clone().expect("duplicated").into();
    let refused = link.leave(&wrong, PATIENCE).expect_err("it is another");
    assert_eq!(refused.to_string().lines().count(), 1, "{refused}");
    let (unix, _) = UnixStream::pair().expect("a pair");
    link.leave(unix.as_fd(), PATIENCE)
        .expect_err("it is another");
    put(&source.peer, b"still redirected");
    assert_eq!(take(&target.peer), b"still redirected");
    link.leave(&source.member, PATIENCE).expect("it leaves");
    link.leave(&source.member, PATIENCE).expect("it has left");
}
