//! How many descriptors this process has open, and how many more it may open.

use std::fs;

use rustix::process::{Resource, getrlimit};

const ALL: &str = "/proc/self/fd";

/// How many are open; `None` without /proc.
pub fn open_now() -> Option<u64> {
    // From Linux 6.2 on the directory says how many it has (`proc_fd_getattr`), which opens nothing and looks at none.
    match fs::metadata(ALL).ok()?.len() {
        // The one that reads them is among them.
        0 => Some((fs::read_dir(ALL).ok()?.count() as u64).saturating_sub(1)),
        count => Some(count),
    }
}

/// How many more may be opened; `None` if that is unknown, or without a limit. To open and close as many would tell as much,
/// and meanwhile no other thread could accept a client.
pub fn free() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile).current?;
    Some(limit.saturating_sub(open_now()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_descriptors_are_counted() {
        let listed = fs::read_dir(ALL).expect("a directory").count() as u64;
        let counted = open_now().expect("a count");
        // Other tests open and close some meanwhile.
        assert!(
            counted > 2 && counted.abs_diff(listed) < 1000,
            "{counted} {listed}"
        );
        let limit = getrlimit(Resource::Nofile).current;
        let free = free().zip(limit);
        assert!(free.is_none_or(|(free, limit)| free < limit));
    }
}
