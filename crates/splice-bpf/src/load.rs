//! Loading the embedded BPF objects.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::PoisonError;

use libbpf_rs::{MapCore as _, MapHandle, ObjectBuilder, OpenObject};
use rustix::event::{EventfdFlags, eventfd};
use splice_base::error::{Error, ErrorKind, Result};

use crate::libbpf::{LOADING, Quiet, absent, refused};
use crate::map::Map;
use crate::plain::{Plain, bytes_of};
use crate::program::Program;
use crate::socket_map::{SocketMap, SocketMapType};

/// Whether this CPU may reorder reads (bpf/lib/atomics.h).
const WEAKLY_ORDERED: bool = cfg!(not(any(
    target_arch = "x86_64",
    target_arch = "x86",
    target_arch = "s390x"
)));

/// More descriptors than libbpf has for its own at a time: the types of the object, and a trial with a program and a map.
const TRIED: usize = 8;

/// The section of `weakly_ordered` in bpf/lib/atomics.h.
const ORDER_SECTION: &str = ".rodata.order";

/// An environment variable that makes tests load programs as for such CPUs.
#[cfg(feature = "test")]
pub const FORCE_FENCES: &str = "SPLICE_TEST_FENCES";

#[cfg(feature = "test")]
fn is_forced() -> bool {
    std::env::var_os(FORCE_FENCES).is_some()
}

#[cfg(not(feature = "test"))]
const fn is_forced() -> bool {
    false
}

/// A parsed object, whose maps can still be sized.
#[derive(Debug)]
pub struct Opened(pub(crate) OpenObject);

/// A loaded object.
#[derive(Debug)]
pub struct Object(pub(crate) libbpf_rs::Object);

/// A program that stays attached for as long as this lives.
#[derive(Debug)]
pub struct Link(pub(crate) libbpf_rs::Link);

/// Opens, adjusts and loads an object.
///
/// # Errors
/// [`ErrorKind::BpfRefused`] with libbpf's last output as the
/// log.
pub fn load(
    name: &'static str,
    bytes: &[u8],
    adjust: impl FnOnce(&mut Opened) -> Result<()>,
) -> Result<Object> {
    load_for(WEAKLY_ORDERED || is_forced(), name, bytes, adjust)
}

/// The same for a given memory order.
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
    opened.require_descriptors(name)?;
    opened
        .0
        .load()
        .map(Object)
        .map_err(|error| refused(format!("the BPF object {name} cannot be loaded"), &error))
}

impl Opened {
    /// Sets how many entries a map has (a ring buffer: bytes).
    pub fn resize(&mut self, map: &str, entries: u32) -> Result<()> {
        self.map(map)?
            .set_max_entries(entries)
            .map_err(|error| refused(format!("the BPF map {map} cannot be sized"), &error))
    }

    /// Sets the type of a map of sockets, and how long its keys are.
    pub fn retype(&mut self, map: &str, of: SocketMapType) -> Result<()> {
        let key_bytes = match of {
            SocketMapType::Map => size_of::<u32>(),
            SocketMapType::Hash => size_of::<u64>(),
        };
        let mut found = self.map(map)?;
        let set = found.set_type(of.of_kernel());
        set.and_then(|()| found.set_key_size(key_bytes as u32))
            .map_err(|error| refused(format!("the BPF map {map} cannot change its type"), &error))
    }

    /// Sets the constant that is alone in a section.
    pub fn set_constant<T: Plain>(&mut self, section: &str, constant: &T) -> Result<()> {
        let mut found = self.map(section)?;
        let value = found.initial_value_mut().ok_or_else(|| absent(section))?;
        let bytes = bytes_of(constant);
        assert_eq!(value.len(), bytes.len(), "{section}");
        value.copy_from_slice(bytes);
        Ok(())
    }

    /// Uses another object's map in place of its own.
    pub fn share(&mut self, map: &str, with: &impl AsFd) -> Result<()> {
        self.map(map)?
            .reuse_fd(with.as_fd())
            .map_err(|error| refused(format!("the BPF map {map} cannot be shared"), &error))
    }

    /// Says which function of the kernel a tracing program is for.
    pub(crate) fn aim(&mut self, program: &str, function: &str) -> Result<()> {
        let mut found = self.0.progs_mut().find(|one| one.name() == program);
        found
            .as_mut()
            .ok_or_else(|| absent(program))?
            .set_attach_target(0, Some(function.into()))
            .map_err(|error| {
                refused(
                    format!("the BPF program {program} cannot trace {function}"),
                    &error,
                )
            })
    }

    /// Whether it has a program of this name.
    pub(crate) fn has(&self, program: &str) -> bool {
        self.0.progs().any(|one| one.name() == program)
    }

    /// Leaves out a program, for which this kernel has no place.
    pub(crate) fn leave_out(&mut self, program: &str) -> Result<()> {
        let mut found = self.0.progs_mut().find(|one| one.name() == program);
        let found = found.as_mut().ok_or_else(|| absent(program))?;
        found.set_autoload(false);
        Ok(())
    }

    /// That there are descriptors for all maps and programs, and for what libbpf tries before. Where it has none for a trial,
    /// it takes the kernel for an older one: it has programs refused for no reason that anybody could find, and remembers
    /// that for the life of the process (`kernel_supports`).
    fn require_descriptors(&mut self, name: &str) -> Result<()> {
        let needed = self.0.maps_mut().count() + self.0.progs_mut().count() + TRIED;
        let taken: rustix::io::Result<Vec<OwnedFd>> = (0..needed)
            .map(|_| eventfd(0, EventfdFlags::CLOEXEC))
            .collect();
        taken.map(drop).map_err(|errno| {
            let what = format!("the BPF object {name} cannot be loaded");
            Error::new(ErrorKind::BpfRefused, what).with_source(errno)
        })
    }

    /// Tells the programs whether they need fences. An object without fences has no such section.
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
    /// One of the object's maps, with a descriptor of its own.
    pub fn map(&self, name: &'static str) -> Result<Map> {
        let map = self
            .0
            .maps()
            .find(|map| map.name() == name)
            .ok_or_else(|| absent(name))?;
        let key_bytes = map.key_size() as usize;
        let value_bytes = map.value_size() as usize;
        let entries = map.max_entries();
        let fd = MapHandle::try_from(&map).map_err(|error| {
            refused(
                format!("cannot duplicate the descriptor of the BPF map {name}"),
                &error,
            )
        })?;
        Ok(Map {
            name,
            fd,
            key_bytes,
            value_bytes,
            entries,
        })
    }

    /// One of the object's maps of sockets, with a descriptor of its own.
    pub fn socket_map(&self, name: &'static str) -> Result<SocketMap> {
        self.map(name).map(|map| SocketMap::new(map.fd))
    }

    /// One of the object's programs, with a descriptor of its own.
    pub fn program(&self, name: &'static str) -> Result<Program> {
        let program = self
            .0
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or_else(|| absent(name))?;
        let fd = program.as_fd().try_clone_to_owned().map_err(|error| {
            Error::system(
                format!("cannot duplicate the descriptor of the BPF program {name}"),
                error,
            )
        })?;
        Ok(Program::new(name, fd))
    }

    /// Whether it has a program of this name, be it loaded or left out.
    pub(crate) fn has(&self, program: &str) -> bool {
        self.0.progs().any(|one| one.name() == program)
    }

    /// Attaches a program to the tracepoint that it is for, until the link is dropped.
    pub(crate) fn attach_to_tracepoint(&self, program: &str) -> Result<libbpf_rs::Link> {
        let found = self.0.progs_mut().find(|one| one.name() == program);
        let found = found.ok_or_else(|| absent(program))?;
        found.attach_trace().map_err(|error| {
            refused(
                format!("the BPF program {program} cannot be attached to its tracepoint"),
                &error,
            )
        })
    }

    /// Attaches a program to the tracepoint that it is for, in a way that can be pinned.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn attach_to_its_tracepoint(&self, program: &'static str) -> Result<Link> {
        self.attach_to_tracepoint(program).map(Link)
    }

    /// Attaches a program to the sockets of a control group, until the link is dropped.
    pub fn attach_to_cgroup(&self, program: &'static str, cgroup: BorrowedFd<'_>) -> Result<Link> {
        self.0
            .progs_mut()
            .find(|candidate| candidate.name() == program)
            .ok_or_else(|| absent(program))?
            .attach_cgroup(cgroup.as_raw_fd())
            .map(Link)
            .map_err(|error| {
                refused(
                    format!("the BPF program {program} cannot be attached to the control group"),
                    &error,
                )
            })
    }

    /// Attaches a program to a map of sockets. A member keeps the program that was attached when it
    /// was added.
    pub fn attach_to_map(&self, program: &'static str, map: &impl AsFd) -> Result<()> {
        self.0
            .progs_mut()
            .find(|candidate| candidate.name() == program)
            .ok_or_else(|| absent(program))?
            .attach_sockmap(map.as_fd().as_raw_fd())
            .map_err(|error| {
                refused(
                    format!("the BPF program {program} cannot be attached to its map"),
                    &error,
                )
            })
    }
}

#[cfg(feature = "test")]
impl Object {
    /// Attaches a program to a netfilter hook for IPv4 in this thread's namespace, until the link
    /// is dropped.
    pub fn attach_to_netfilter(&self, program: &str, hook: i32, priority: i32) -> libbpf_rs::Link {
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
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use splice_base::error::ErrorKind;

    use super::*;
    use crate::objects;
    use crate::types::{DirectionEntry, Inspection};

    #[test]
    fn the_objects_load_and_their_maps_are_accessible() -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let object = load("redirect", objects::REDIRECT, |opened| {
            opened.resize("directions", 64)?;
            opened.resize("targets", 64)
        })?;
        let targets = object.map("targets")?;
        object.attach_to_map("redirect", &object.map("sources")?)?;
        let inspect = load("inspect", objects::INSPECT, |opened| {
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
        ring.take(|_| unreachable!("no program has called"));
        Ok(())
    }

    /// Where CPUs do not reorder, the verifier removes the fences, except for the test of the flag.
    #[test]
    fn weakly_ordered_cpus_get_fences() -> Result<()> {
        /// A `cmpxchg` with its operands.
        const FENCE_BYTES: u32 = 4 * 8;
        if !netlab::available(netlab::Need::Root) {
            return Ok(());
        }
        let [ordered, weakly_ordered] =
            [false, true].map(|weakly| load_for(weakly, "segment", objects::SEGMENT, |_| Ok(())));
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
