//! What a run must not leave behind.

use std::fs;
use std::path::PathBuf;

/// The namespaces and directories that the process `pid`, and nobody else, would have left.
pub(crate) fn left_behind_by(pid: u32) -> Vec<String> {
    let own = format!("spl-{pid}-");
    [PathBuf::from("/run/netns"), std::env::temp_dir()]
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flat_map(|entries| entries.flatten())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(&own))
        .collect()
}
