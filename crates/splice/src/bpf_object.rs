//! Loading BPF objects and reaching their maps and programs: the only module that names libbpf.
//!
//! An engine embeds its object with [`include_bytes!`], opens it, sizes its maps, loads it, and
//! takes the [`Map`]s and [`Program`]s that it needs; each owns a descriptor of its own, so the
//! object itself is dropped after that.
#![allow(
    unsafe_code,
    reason = "shared memory and bpf(2); see the SAFETY comments"
)]

mod claim;
pub(crate) mod device;
mod map;
mod plain;
mod shared_memory;
pub(crate) mod statistics;
#[cfg(test)]
mod verified;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{
    MapCore as _, MapHandle, ObjectBuilder, OpenObject, PrintCallback, PrintLevel, get_print,
    libbpf_sys, set_print,
};
use rustix::io::Errno;

pub(crate) use self::map::Map;
pub(crate) use self::plain::Plain;
pub(crate) use self::shared_memory::{Ring, SharedArray};
use crate::error::{Error, ErrorKind, Result};

/// CPUs may read later what a program reads first (bpf/lib/atomics.h).
const WEAKLY_ORDERED: bool = cfg!(not(any(
    target_arch = "x86_64",
    target_arch = "x86",
    target_arch = "s390x"
)));

/// The section of `weakly_ordered` in bpf/lib/atomics.h.
const ORDER_SECTION: &str = ".rodata.order";

/// Has programs load as for other CPUs, in the tests.
#[cfg(test)]
pub(crate) const FORCE_FENCES: &str = "SPLICE_TEST_FENCES";

#[cfg(test)]
fn is_forced() -> bool {
    std::env::var_os(FORCE_FENCES).is_some()
}

#[cfg(not(test))]
const fn is_forced() -> bool {
    false
}

/// What libbpf has printed since a load began. libbpf has one print function per process.
static PRINTED: Mutex<String> = Mutex::new(String::new());

/// One load at a time, since they share `PRINTED`.
static LOADING: Mutex<()> = Mutex::new(());

/// The most of libbpf's words that an error carries, in bytes: its last lines name the cause,
/// the log of a verifier before them can be megabytes.
const REASON_BYTES: usize = 600;

fn keep_print(_level: PrintLevel, text: String) {
    PRINTED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push_str(&text);
}

/// Puts the program's own print function back, whatever happens.
struct Quiet {
    before: Option<(PrintLevel, PrintCallback)>,
}

impl Quiet {
    fn begin() -> Self {
        PRINTED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let before = get_print();
        set_print(Some((PrintLevel::Warn, keep_print)));
        Self { before }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        set_print(self.before);
    }
}

/// An object that has been parsed; its maps can still be sized.
pub(crate) struct Opened(OpenObject);

/// A loaded object.
pub(crate) struct Object(libbpf_rs::Object);

/// Opens, adjusts and loads an object.
///
/// # Errors
/// [`ErrorKind::BpfRefused`] with libbpf's own last words as the reason; what it prints goes
/// nowhere else.
pub(crate) fn load(
    name: &'static str,
    bytes: &[u8],
    adjust: impl FnOnce(&mut Opened) -> Result<()>,
) -> Result<Object> {
    load_for(WEAKLY_ORDERED || is_forced(), name, bytes, adjust)
}

/// The same for CPUs that keep less order than those of this machine, or no less.
fn load_for(
    weakly_ordered: bool,
    name: &'static str,
    bytes: &[u8],
    adjust: impl FnOnce(&mut Opened) -> Result<()>,
) -> Result<Object> {
    let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let _quiet = Quiet::begin();
    let open = ObjectBuilder::default()
        .open_memory(bytes)
        .map_err(|error| refused(format!("the BPF object {name} cannot be read"), &error))?;
    let mut opened = Opened(open);
    opened.set_order(weakly_ordered);
    adjust(&mut opened)?;
    opened
        .0
        .load()
        .map(Object)
        .map_err(|error| refused(format!("the BPF object {name} cannot be loaded"), &error))
}

impl Opened {
    /// How many entries a map (for a ring: bytes) shall have.
    pub(crate) fn resize(&mut self, map: &str, entries: u32) -> Result<()> {
        self.map(map)?
            .set_max_entries(entries)
            .map_err(|error| refused(format!("the BPF map {map} cannot be sized"), &error))
    }

    /// Uses a map that another object made in place of an own one.
    pub(crate) fn share(&mut self, map: &str, with: &Map) -> Result<()> {
        self.map(map)?
            .reuse_fd(with.fd.as_fd())
            .map_err(|error| refused(format!("the BPF map {map} cannot be shared"), &error))
    }

    /// Whether the object's programs have to keep order themselves. One without fences does not ask.
    fn set_order(&mut self, weakly_ordered: bool) {
        let mut section = self.map(ORDER_SECTION).ok();
        if let Some(value) = section.as_mut().and_then(|map| map.initial_value_mut()) {
            value.fill(weakly_ordered.into());
        }
    }

    fn map(&mut self, name: &str) -> Result<libbpf_rs::OpenMapMut<'_>> {
        self.0
            .maps_mut()
            .find(|map| map.name() == name)
            .ok_or_else(|| absent(name))
    }
}

impl Object {
    /// A descriptor of one of the object's maps.
    pub(crate) fn map(&self, name: &'static str) -> Result<Map> {
        let map = self
            .0
            .maps()
            .find(|map| map.name() == name)
            .ok_or_else(|| absent(name))?;
        let key_bytes = map.key_size() as usize;
        let value_bytes = map.value_size() as usize;
        let entries = map.max_entries();
        let fd = MapHandle::try_from(&map)
            .map_err(|error| refused(format!("the BPF map {name} cannot be kept"), &error))?;
        Ok(Map {
            name,
            fd,
            key_bytes,
            value_bytes,
            entries,
        })
    }

    /// A descriptor of one of the object's programs.
    pub(crate) fn program(&self, name: &'static str) -> Result<Program> {
        let program = self
            .0
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or_else(|| absent(name))?;
        let fd = program
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Error::system(format!("the BPF program {name} is lost"), error))?;
        Ok(Program { name, fd })
    }

    /// Makes a program the one that runs for the members of a map of sockets. A member keeps the
    /// program that was attached when it came in.
    pub(crate) fn attach_to_map(&self, program: &'static str, map: &Map) -> Result<()> {
        self.0
            .progs_mut()
            .find(|candidate| candidate.name() == program)
            .ok_or_else(|| absent(program))?
            .attach_sockmap(map.fd.as_fd().as_raw_fd())
            .map_err(|error| {
                refused(
                    format!("the BPF program {program} cannot be attached to its map"),
                    &error,
                )
            })
    }
}

/// One BPF program.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    fd: OwnedFd,
}

impl Program {
    /// Runs a tc program once, with `packet` as the packet's first bytes; it may write there.
    pub(crate) fn run<T: Plain + Copy>(&self, packet: &T) -> std::result::Result<T, Errno> {
        // The kernel refuses a packet shorter than an Ethernet header (`bpf_test_init`).
        const { assert!(size_of::<T>() >= 14) };
        let mut output = *packet;
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: std::ptr::from_ref(packet).cast(),
            data_size_in: size_of::<T>() as u32,
            data_out: std::ptr::from_mut(&mut output).cast(),
            data_size_out: size_of::<T>() as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: both packets outlive the call and have the sizes that are given with them;
        // whatever the program writes there is a valid `T`, which is `Plain`.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &raw mut options) };
        checked(result)?;
        Ok(output)
    }

    /// What the kernel calls it.
    fn id(&self) -> std::result::Result<u32, Errno> {
        Ok(self.info()?.id)
    }

    fn info(&self) -> std::result::Result<libbpf_sys::bpf_prog_info, Errno> {
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut length = size_of_val(&info) as u32;
        // SAFETY: `info` and `length` outlive the call, and `length` is the size of `info`, whose
        // pointers are null.
        let result = unsafe {
            libbpf_sys::bpf_prog_get_info_by_fd(self.fd.as_raw_fd(), &raw mut info, &raw mut length)
        };
        checked(result)?;
        Ok(info)
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
impl Program {
    /// What the kernel has made of it: how many instructions the verifier went through, and how many
    /// bytes it has left.
    fn made(&self) -> std::result::Result<[u32; 2], Errno> {
        let info = self.info()?;
        Ok([info.verified_insns, info.xlated_prog_len])
    }

    /// Runs a tc program once on a packet of any length, as if it came in on a device; tells what
    /// it returned and what it made of the packet. When the device shall have summed it up, the kernel
    /// does so itself, and answers `EBADMSG` when the sum is no longer that of the packet, or `EINVAL`
    /// where it cannot do that.
    pub(crate) fn run_on(
        &self,
        packet: &[u8],
        device: u32,
        summed_up: bool,
    ) -> std::result::Result<(i32, Vec<u8>), Errno> {
        let mut output = packet.to_vec();
        // The beginning of `struct __sk_buff` up to its `ifindex`, as 32-bit words.
        let mut context = [0u32; 11];
        context[10] = device;
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: packet.as_ptr().cast(),
            data_size_in: packet.len() as u32,
            data_out: output.as_mut_ptr().cast(),
            data_size_out: output.len() as u32,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of_val(&context) as u32,
            flags: if summed_up {
                libbpf_sys::BPF_F_TEST_SKB_CHECKSUM_COMPLETE
            } else {
                0
            },
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: both packets and the context outlive the call, their lengths are given with them, and
        // any bytes may be written to the second packet.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &raw mut options) };
        checked(result)?;
        output.truncate(options.data_size_out as usize);
        Ok((options.retval as i32, output))
    }
}

#[cfg(test)]
impl Object {
    /// Has a program called at one of netfilter's hooks for IPv4 in this thread's namespace, until the
    /// link is dropped.
    pub(crate) fn attach_to_netfilter(
        &self,
        program: &str,
        hook: i32,
        priority: i32,
    ) -> libbpf_rs::Link {
        let options = libbpf_rs::NetfilterOpts {
            protocol_family: libbpf_rs::NFPROTO_IPV4,
            hooknum: hook,
            priority,
            ..Default::default()
        };
        let found = self.0.progs_mut().find(|one| one.name() == program);
        let link = found
            .expect("a program")
            .attach_netfilter_with_opts(options);
        link.expect("attached")
    }

    /// Has a program called for the sockets of a control group, until the link is dropped.
    pub(crate) fn attach_to_cgroup(
        &self,
        program: &str,
        cgroup: BorrowedFd<'_>,
    ) -> libbpf_rs::Link {
        let found = self.0.progs_mut().find(|one| one.name() == program);
        let link = found.expect("a program").attach_cgroup(cgroup.as_raw_fd());
        link.expect("attached")
    }
}

fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` has no padding, so all `size_of` bytes are initialised, and they live as
    // long as the reference.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// libbpf's calls return a negative error number.
fn checked(result: i32) -> std::result::Result<(), Errno> {
    match result {
        0.. => Ok(()),
        number => Err(Errno::from_raw_os_error(-number)),
    }
}

fn refused(context: String, error: &libbpf_rs::Error) -> Error {
    let printed = std::mem::take(&mut *PRINTED.lock().unwrap_or_else(PoisonError::into_inner));
    let mut reason = printed.trim();
    if reason.len() > REASON_BYTES {
        let mut start = reason.len() - REASON_BYTES;
        while !reason.is_char_boundary(start) {
            start += 1;
        }
        reason = &reason[start..];
    }
    let reason = reason.replace('\n', "; ");
    let separator = if reason.is_empty() { "" } else { " (" };
    let closing = if reason.is_empty() { "" } else { ")" };
    Error::new(
        ErrorKind::BpfRefused,
        format!("{context}: {error:#}{separator}{reason}{closing}"),
    )
}

fn absent(name: &str) -> Error {
    Error::new(
        ErrorKind::BpfRefused,
        format!("the embedded BPF object has no {name}"),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::bpf_types::{DirectionEntry, Inspection};

    static REDIRECT: &[u8] = include_bytes!("../bpf/prebuilt/redirect.bpf.o");
    static INSPECT: &[u8] = include_bytes!("../bpf/prebuilt/inspect.bpf.o");

    #[test]
    fn the_objects_load_and_their_maps_are_reached() -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let object = load("redirect", REDIRECT, |opened| {
            opened.resize("directions", 64)?;
            opened.resize("targets", 64)
        })?;
        let targets = object.map("targets")?;
        object.attach_to_map("redirect", &object.map("sources")?)?;
        let inspect = load("inspect", INSPECT, |opened| {
            opened.resize("targets", 64)?;
            opened.share("targets", &targets)
        })?;
        let answer = inspect.program("inspect")?.run(&Inspection {
            cookie: 1,
            ..Inspection::default()
        });
        assert_eq!(
            answer.map(|answer| (answer.cookie, answer.found)),
            Ok((1, 0))
        );
        let entries = object.map("directions")?.share_values::<DirectionEntry>()?;
        assert_eq!(entries.len(), 64);
        assert_eq!(entries.at(63).redirected.load(Ordering::Relaxed), 0);
        let mut ring = object.map("calls")?.consume()?;
        ring.take(|_| unreachable!("nobody has called"));
        Ok(())
    }

    /// Where CPUs keep order the verifier takes the fences away, but for the look at the flag.
    #[test]
    fn fences_are_there_where_they_are_needed() -> Result<()> {
        /// `cmpxchg` with what it is given, and more.
        const FENCE_BYTES: u32 = 4 * 8;
        static SEGMENT: &[u8] = include_bytes!("../bpf/prebuilt/segment.bpf.o");
        if !netlab::available(netlab::Need::Root) {
            return Ok(());
        }
        let [ordered, weakly_ordered] =
            [false, true].map(|weakly| load_for(weakly, "segment", SEGMENT, |_| Ok(())));
        let (ordered, weakly_ordered) = (ordered?, weakly_ordered?);
        for (name, fences) in [("segment_ingress", 2), ("segment_egress", 2)] {
            let [before, after] = [&ordered, &weakly_ordered].map(|object| {
                let made = object.program(name).map(|program| program.made());
                made.expect("a program").expect("told")
            });
            println!("{name}: {before:?}, with fences {after:?}");
            assert!(after[1] >= before[1] + fences * FENCE_BYTES, "{name}");
        }
        Ok(())
    }

    #[test]
    fn a_refusal_carries_the_reason_and_prints_nothing() {
        let error = load("nothing", b"not an object", |_| Ok(())).map(drop);
        let error = error.expect_err("it is no object");
        assert_eq!(error.kind(), ErrorKind::BpfRefused);
        assert!(error.to_string().contains("nothing"), "{error}");
    }
}
