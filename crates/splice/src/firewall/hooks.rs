//! The registered netfilter hooks, read from the kernel by a BPF program.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::types::{HooksCounts, HooksEntry, HooksList, hooks_limit, hooks_place};
use splice_bpf::{Program, load, objects};
use splice_firewall::{HookCounts, HookKind, HookPlace, RegisteredHook, Registry};

/// This process's program, which serves every namespace.
static LOADED: Mutex<Weak<Hooks>> = Mutex::new(Weak::new());

/// How often to list the hooks again if they change meanwhile. Loading a rule set changes them
/// once.
const TRIES: usize = 4;

const KIND_UNTOLD: u8 = hooks_limit::KIND_UNTOLD as u8;
const HOOKS_LISTED: usize = hooks_limit::LISTED as usize;
const HOOKS_NAME_BYTES: usize = hooks_limit::NAME_BYTES as usize;

/// Reads the hooks of the calling thread's network namespace.
#[derive(Debug)]
pub(crate) struct Hooks {
    count: Program,
    list: Program,
}

impl Hooks {
    /// The program, which the first caller loads. It stays loaded while somebody holds it.
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] if the kernel does not accept it.
    pub(crate) fn load() -> Result<Arc<Self>> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hooks) = loaded.upgrade() {
            return Ok(hooks);
        }
        let hooks = Arc::new(Self::new()?);
        *loaded = Arc::downgrade(&hooks);
        Ok(hooks)
    }

    fn new() -> Result<Self> {
        let object = load("hooks", objects::HOOKS, |_| Ok(()))?;
        Ok(Self {
            count: object.program("hooks_count")?,
            list: object.program("hooks_list")?,
        })
    }

    /// How many hooks there are in this thread's namespace and on one of its devices, by ifindex.
    /// It takes 1.1 µs without hooks, 2.5 µs with 24 (`the_cost_of_an_answer`, release build).
    ///
    /// # Errors
    /// [`ErrorKind::BpfRefused`] if the kernel does not run the program.
    pub(crate) fn counts(&self, device: u32) -> Result<HookCounts> {
        let question = HooksCounts {
            device,
            ..HooksCounts::default()
        };
        let answer = self.count.run(&question);
        counts_of(&answer.map_err(not_run)?)
    }

    /// The number of hooks, and the hooks themselves.
    ///
    /// # Errors
    /// As [`counts`](Self::counts), and if the hooks change all the time.
    pub(crate) fn list(&self, device: u32) -> Result<Registry> {
        for _ in 0..TRIES {
            if let Some(registry) = self.try_list(device)? {
                return Ok(registry);
            }
        }
        Err(Error::new(
            ErrorKind::BpfRefused,
            "the kernel's netfilter hooks change faster than they can be listed",
        ))
    }

    /// Lists the hooks in several answers; `None` if they change meanwhile.
    fn try_list(&self, device: u32) -> Result<Option<Registry>> {
        let mut registry = Registry::default();
        let mut skip = 0;
        loop {
            let question = HooksList {
                counts: HooksCounts {
                    device,
                    skip: skip as u32,
                    ..HooksCounts::default()
                },
                entry: [NO_ENTRY; HOOKS_LISTED],
            };
            let answer = self.list.run(&question).map_err(not_run)?;
            let counts = counts_of(&answer.counts)?;
            if skip > 0 && counts != registry.counts {
                return Ok(None);
            }
            registry.counts = counts;
            let hooks = answer.entry.iter().filter_map(hook_of);
            registry.hooks.extend(hooks);
            skip += HOOKS_LISTED;
            let total: usize = counts.count.iter().map(|count| usize::from(*count)).sum();
            if skip >= total {
                return Ok(Some(registry));
            }
        }
    }
}

const NO_ENTRY: HooksEntry = HooksEntry {
    function: [0; HOOKS_NAME_BYTES],
    priority: 0,
    place: 0,
    kind: 0,
    _reserved: [0; 2],
};

const _: () = assert!(HookPlace::ALL.len() == hooks_place::PLACES as usize);

fn not_run(errno: rustix::io::Errno) -> Error {
    let what = "the kernel's netfilter hooks cannot be read";
    Error::new(ErrorKind::BpfRefused, what).with_source(errno)
}

fn counts_of(answer: &HooksCounts) -> Result<HookCounts> {
    if answer.answered == 0 {
        return Err(Error::new(
            ErrorKind::BpfRefused,
            "the program that reads the kernel's netfilter hooks returned nothing",
        ));
    }
    Ok(HookCounts {
        count: answer.count,
        functions: answer.functions,
        device_known: answer.device_known != 0,
    })
}

/// `None` for an entry that the program has left empty.
fn hook_of(entry: &HooksEntry) -> Option<RegisteredHook> {
    if entry.function[0] == 0 {
        return None;
    }
    let place = *HookPlace::ALL.get(usize::from(entry.place))?;
    let length = entry.function.iter().position(|byte| *byte == 0);
    let function = &entry.function[..length.unwrap_or(HOOKS_NAME_BYTES)];
    Some(RegisteredHook {
        place,
        function: String::from_utf8_lossy(function).into_owned(),
        // `enum nf_hook_ops_type` in linux/netfilter.h.
        kind: match entry.kind {
            0 => HookKind::Module,
            1 => HookKind::NfTables,
            2 => HookKind::Bpf,
            3 => HookKind::FlowTable,
            KIND_UNTOLD => HookKind::Untold,
            other => HookKind::Other(other),
        },
        priority: entry.priority,
    })
}

#[cfg(test)]
mod tests;
