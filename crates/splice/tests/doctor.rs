//! The doctor, called by a program that embeds the library.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use netlab::{Need, available, until};
use splice::EngineName;
use splice::doctor::{Report, Verdict, examine};
use splice::sockmap::{MapType as SocketMap, Redirect, Redirections};

/// Only one test at a time may open and close descriptors.
static ALONE: Mutex<()> = Mutex::new(());

fn finding(report: &Report, engine: EngineName) -> (Verdict, &str) {
    let mut engines = report.engines.iter();
    let finding = engines.find(|finding| finding.engine == engine).unwrap();
    (finding.verdict, &finding.reason)
}

/// How many descriptors this process has, and how many BPF mappings.
fn open() -> (usize, usize) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    (
        fs::read_dir("/proc/self/fd").unwrap().count(),
        maps.lines().filter(|line| line.contains("bpf-map")).count(),
    )
}

#[test]
fn nothing_is_left_behind() {
    let _alone = ALONE.lock();
    let before = open();
    for _ in 0..3 {
        let report = examine();
        for engine in [EngineName::Copy, EngineName::Pipe] {
            let (verdict, reason) = finding(&report, engine);
            assert_eq!(verdict, Verdict::Yes, "{reason}");
        }
        if available(Need::Bpf) {
            let (verdict, reason) = finding(&report, EngineName::Sockmap);
            assert_eq!(verdict, Verdict::Yes, "{reason}");
        }
        assert_eq!(open(), before);
    }
    assert_eq!(before.1, 0);
}

#[test]
fn the_doctor_finds_the_fionread_defect_that_a_map_shows() {
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

    let redirections = Redirections::new(Redirect::SendToLocal, SocketMap::Hash, 1).unwrap();
    let link = redirections.link(&near, &far).unwrap();
    near.write_all(b"1234567").unwrap();
    assert_eq!(link.counters().messages, 1);
    let told_redirected = rustix::io::ioctl_fionread(&far).unwrap();
    far.read_exact(&mut [0; 7]).unwrap();

    let report = examine();
    let mut defects = report.defects.iter();
    let defect = defects.find(|defect| defect.name == "fionread").unwrap();
    let is_wrong = (told, told_redirected) != (5, 7);
    assert_eq!(
        defect.present,
        Some(is_wrong),
        "{told} {told_redirected}: {}",
        defect.reason
    );
}
