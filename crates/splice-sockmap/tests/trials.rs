//! What this kernel is tried for, called by a program that embeds the library.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use netlab::{Need, available, until};
use splice_base::release::Release;
use splice_sockmap::matrix::matrix;
use splice_sockmap::{MapType as SocketMapType, Redirect, Redirections, defects, time_line};

/// Only one test at a time may open and close descriptors.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn trials_leave_no_descriptor_behind() {
    let _alone = ALONE.lock();
    if !available(Need::Bpf) {
        return;
    }
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    assert!(!defects().is_empty());
    assert!(!time_line().is_empty());
    matrix(&Redirect::ALL, &SocketMapType::ALL).expect("tried");
    assert_eq!(open(), before);
}

/// Each redirect and each kind of socket has its own step, which is tried wherever there is such a socket.
#[test]
fn the_time_line_has_each_redirect_and_each_kind() {
    let _alone = ALONE.lock();
    if !available(Need::Bpf) {
        return;
    }
    let line = time_line();
    let step = |what: &str| {
        let mut found = line.iter().filter(|step| step.what == what);
        let step = found.next().unwrap_or_else(|| panic!("no {what}"));
        assert!(found.next().is_none(), "{what} twice");
        step
    };
    for redirect in Redirect::ALL {
        assert_eq!(step(redirect.name()).works, Some(true), "{redirect}");
    }
    for what in [
        "SOCKMAP",
        "SOCKHASH",
        "UDP in maps",
        "TCP listeners in maps",
        "UDP redirects",
        "UNIX streams",
        "UNIX datagrams",
        "maps tell their program",
    ] {
        assert_eq!(
            step(what).works,
            Some(true),
            "{what}: {}",
            step(what).reason
        );
    }
    for what in ["VSOCK streams", "VSOCK seqpackets"] {
        let vsock = step(what);
        let has_none = vsock.reason.contains("no loopback of VSOCK");
        let is_taken = Release::here().is_none_or(|release| release.series() >= (6, 4));
        assert_eq!(vsock.works, (!has_none).then_some(is_taken), "{vsock:?}");
    }
    let numbers = line.iter().map(|step| {
        let (series, patch) = step.since.split_once('.').expect("a release");
        [series, patch].map(|number| number.parse::<u32>().expect("a number"))
    });
    assert!(numbers.is_sorted(), "{line:?}");
}

#[test]
fn the_fionread_defect_is_found_where_a_map_shows_it() {
    let _alone = ALONE.lock();
    if !available(Need::Bpf) {
        return;
    }
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::Sockmap, Some("probe"), 4, 4, 1, &options).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let fd = far.as_raw_fd().to_ne_bytes();
    map.update(&0u32.to_ne_bytes(), &fd, MapFlags::ANY).unwrap();
    near.write_all(b"12345").unwrap();
    until("all bytes are there", || {
        far.peek(&mut [0; 8]).unwrap() == 5
    });
    let told = rustix::io::ioctl_fionread(&far).unwrap();
    far.read_exact(&mut [0; 5]).unwrap();
    map.delete(&0u32.to_ne_bytes()).unwrap();

    let redirections = Redirections::new(Redirect::SendToLocal, SocketMapType::Hash, 1).unwrap();
    let link = redirections.link(&near, &far).unwrap();
    near.write_all(b"1234567").unwrap();
    assert_eq!(link.counters().messages, 1);
    let told_redirected = rustix::io::ioctl_fionread(&far).unwrap();
    far.read_exact(&mut [0; 7]).unwrap();

    let defects = defects();
    let mut defects = defects.iter();
    let defect = defects.find(|defect| defect.name == "fionread").unwrap();
    let is_wrong = (told, told_redirected) != (5, 7);
    assert_eq!(
        defect.present,
        Some(is_wrong),
        "{told} {told_redirected}: {}",
        defect.reason
    );
}
