//! The bench's own BPF programs: the only file of it that names libbpf. What an engine uses is
//! another matter and lives with the engines.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, set_print};

/// One load at a time: libbpf has one print function per process.
static LOADING: Mutex<()> = Mutex::new(());

/// A loaded object; its maps and programs go with it.
pub(crate) struct BpfObject(Object);

impl BpfObject {
    /// Loads a compiled object.
    pub(crate) fn load(bytes: &[u8]) -> Result<Self> {
        let _one = LOADING.lock();
        // What libbpf prints about a refusal is in the error as well.
        set_print(None::<(PrintLevel, fn(PrintLevel, String))>);
        ObjectBuilder::default()
            .open_memory(bytes)
            .and_then(libbpf_rs::OpenObject::load)
            .map(Self)
            .context("cannot load a BPF program of the bench (CAP_BPF and CAP_NET_ADMIN?)")
    }

    /// Makes `program` run for the sockets that come into `map` from now on.
    pub(crate) fn attach(&self, program: &str, map: &str) -> Result<()> {
        let map = self.map(map)?;
        self.0
            .progs_mut()
            .find(|candidate| candidate.name() == program)
            .with_context(|| format!("there is no BPF program {program}"))?
            .attach_sockmap(map.as_fd().as_raw_fd())
            .with_context(|| format!("cannot attach the BPF program {program} to its map"))
    }

    /// Puts a socket into a map of sockets; the caller keeps its descriptor.
    pub(crate) fn insert(&self, map: &str, key: u32, socket: impl AsFd) -> Result<()> {
        // Such maps take a descriptor as a u64 (`sock_map_update_elem`).
        let value = socket.as_fd().as_raw_fd() as u64;
        self.map(map)?
            .update(&key.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)
            .with_context(|| format!("cannot put a socket into the BPF map {map}"))
    }

    /// Reads the first number of an array.
    pub(crate) fn number(&self, map: &str) -> Result<u64> {
        let value = self
            .map(map)?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .with_context(|| format!("cannot read the BPF map {map}"))?;
        let bytes = value.and_then(|value| <[u8; 8]>::try_from(value).ok());
        bytes
            .map(u64::from_ne_bytes)
            .with_context(|| format!("the BPF map {map} holds no number"))
    }

    fn map(&self, name: &str) -> Result<MapHandle> {
        let map = self
            .0
            .maps()
            .find(|map| map.name() == name)
            .with_context(|| format!("there is no BPF map {name}"))?;
        MapHandle::try_from(&map).with_context(|| format!("cannot keep the BPF map {name}"))
    }
}
