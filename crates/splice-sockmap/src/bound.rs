//! How much may be outstanding at each target.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use splice_base::error::{Error, Result};
use splice_bpf::Map;
use splice_bpf::types::RedirectionBound;

use crate::socket_kind::SocketKind;

/// How many targets of UNIX sources fit, whose links have maps of their own and are not counted with the others.
pub(crate) const OF_UNIX_SOURCES: u32 = 1024;

/// The bounds of all that redirects to the same targets.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    map: Arc<Map>,
    /// How many links each target has, by its cookie.
    links: Arc<Mutex<HashMap<u64, u32>>>,
    /// 0 for none.
    most_bytes: Arc<AtomicU64>,
}

impl Bounds {
    pub(crate) fn of(map: Map) -> Self {
        Self {
            map: Arc::new(map),
            links: Arc::default(),
            most_bytes: Arc::default(),
        }
    }

    /// Whether they are the same.
    pub(crate) fn are_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.map, &other.map)
    }

    pub(crate) fn map(&self) -> &Map {
        &self.map
    }

    /// Bounds what is outstanding at each target that gets its first link from now on.
    pub(crate) fn set(&self, most_bytes: u64) {
        self.most_bytes.store(most_bytes, Ordering::Relaxed);
    }

    pub(crate) fn are_set(&self) -> bool {
        self.most_bytes.load(Ordering::Relaxed) != 0
    }

    /// Whether no further target can be bounded.
    pub(crate) fn are_full(&self) -> bool {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.len() >= self.map.entries() as usize
    }

    /// Bounds what is outstanding at a target that gets a link. All links of a target have the bound of the first.
    pub(crate) fn add(&self, target: u64, kind: SocketKind) -> Result<()> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if !links.contains_key(&target) {
            let bound = RedirectionBound {
                most_bytes: self.most_bytes.load(Ordering::Relaxed),
                is_tcp: (kind == SocketKind::Tcp).into(),
                ..RedirectionBound::default()
            };
            self.map
                .update(&target, &bound)
                .map_err(|errno| match errno {
                    Errno::TOOBIG => Error::system(
                        format!("there are {} bounded targets already", self.map.entries()),
                        Errno::NOSPC,
                    ),
                    errno => Error::system("cannot bound a target", errno),
                })?;
        }
        *links.entry(target).or_default() += 1;
        Ok(())
    }

    /// A link of a target is gone.
    pub(crate) fn remove(&self, target: u64) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = links.get_mut(&target) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            links.remove(&target);
            self.map.remove(&target);
        }
    }
}
