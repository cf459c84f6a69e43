//! The bench's own BPF programs: the only file of it that names libbpf. What an engine uses is
//! another matter and lives with the engines.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;

use anyhow::{Context, Result};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, ProgramInput, ProgramMut,
    TC_INGRESS, TcHookBuilder, set_print,
};

/// The program runs for frames that then go where it says (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18).
const LIVE_FRAMES: u32 = 1 << 1;

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
        self.program(program)?
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
        let numbers = self.read(map)?;
        let number = numbers.first().copied();
        number.with_context(|| format!("the BPF map {map} holds no number"))
    }

    /// Makes `program` see each packet that a device of this thread's namespace receives, for as long as the
    /// device is there.
    pub(crate) fn attach_to_ingress(&mut self, program: &str, device: u32) -> Result<()> {
        let attached = self.program(program).map(|program| {
            let mut hook = TcHookBuilder::new(program.as_fd())
                .ifindex(device as i32)
                .replace(true)
                .handle(1)
                .priority(1)
                .hook(TC_INGRESS);
            hook.create().and_then(|mut hook| hook.attach()).map(drop)
        })?;
        attached.with_context(|| format!("cannot attach the BPF program {program} to a device"))
    }

    /// Runs `program` for so many copies of `frame`; those that it passes are received by a device of this
    /// thread's namespace.
    pub(crate) fn receive_frames(
        &mut self,
        program: &str,
        device: u32,
        frame: &[u8],
        copies: u32,
    ) -> Result<()> {
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
        let context = [0, frame.len() as u32, 0, device, 0, 0];
        let mut context = context.map(u32::to_ne_bytes).concat();
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(frame),
            flags: LIVE_FRAMES,
            repeat: copies,
            ..ProgramInput::default()
        };
        self.program(program)?
            .test_run(input)
            .map(drop)
            .with_context(|| format!("cannot run the BPF program {program} (Linux 5.18?)"))
    }

    /// Writes the only value of an array, which consists of numbers.
    pub(crate) fn write(&self, map: &str, numbers: &[u64]) -> Result<()> {
        let bytes: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_ne_bytes())
            .collect();
        self.map(map)?
            .update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY)
            .with_context(|| format!("cannot write the BPF map {map}"))
    }

    /// Reads the first value of an array, which consists of numbers.
    pub(crate) fn read(&self, map: &str) -> Result<Vec<u64>> {
        let value = self
            .map(map)?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .with_context(|| format!("cannot read the BPF map {map}"))?
            .with_context(|| format!("the BPF map {map} is empty"))?;
        let numbers = value.chunks_exact(8).map(|bytes| {
            let bytes = <[u8; 8]>::try_from(bytes);
            // Each chunk has eight bytes.
            bytes.map_or(0, u64::from_ne_bytes)
        });
        Ok(numbers.collect())
    }

    fn program(&self, name: &str) -> Result<ProgramMut<'_>> {
        self.0
            .progs_mut()
            .find(|candidate| candidate.name() == name)
            .with_context(|| format!("there is no BPF program {name}"))
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
