//! What the programs of all processes have counted.
#![allow(unsafe_code, reason = "bpf(2); see the SAFETY comments")]

use std::collections::BTreeMap;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, libbpf_sys};
use rustix::io::Errno;

use splice_base::error::{Error, Result};

use crate::libbpf::{checked, refused};
use crate::map::Map;

/// The counters of every array per CPU with this name and so many counters, whoever has made it, by the array's
/// number.
///
/// # Errors
/// Where the process may not list the BPF maps of this machine.
pub fn counters(name: &str, count: usize) -> Result<BTreeMap<u32, Vec<u64>>> {
    let mut found = BTreeMap::new();
    let mut id = 0;
    while let Some(next) = map_after(id)? {
        id = next;
        // It may be gone by now, or be somebody else's that nobody may open.
        let Ok(map) = MapHandle::from_map_id(id) else {
            continue;
        };
        let is_meant = map.name() == name
            && map.map_type() == MapType::PercpuArray
            && map.value_size() as usize == size_of::<u64>()
            && map.max_entries() as usize == count;
        if !is_meant {
            continue;
        }
        let counters = sums(&map, name, count as u32)?;
        found.insert(id, counters);
    }
    Ok(found)
}

impl Map {
    /// The counters of an array per CPU, each the sum over all CPUs.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn counters(&self) -> Result<Vec<u64>> {
        sums(&self.fd, self.name, self.entries)
    }
}

fn sums(map: &MapHandle, name: &str, count: u32) -> Result<Vec<u64>> {
    let of_cpus = |index: u32| {
        let of_cpus = map
            .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| refused(format!("the BPF map {name} cannot be read"), &error))?;
        let counts = (of_cpus.iter().flatten())
            .filter_map(|bytes| Some(u64::from_ne_bytes(bytes.as_slice().try_into().ok()?)));
        Ok(counts.sum())
    };
    (0..count).map(of_cpus).collect()
}

/// The map with the next greater number.
fn map_after(id: u32) -> Result<Option<u32>> {
    let mut next = 0;
    // SAFETY: `next` outlives the call, which writes a number there.
    let result = unsafe { libbpf_sys::bpf_map_get_next_id(id, &raw mut next) };
    match checked(result) {
        Ok(()) => Ok(Some(next)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Error::system(
            "cannot list the BPF maps of this machine, which takes CAP_SYS_ADMIN",
            errno,
        )),
    }
}
