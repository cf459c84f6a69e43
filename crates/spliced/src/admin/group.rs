//! The groups to which a process gives its control sockets.

use anyhow::{Context as _, Result};
use rustix::fs::fchown;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Gid;

use crate::control_args::ControlArgs;
use crate::refusal::WrongUsage;
use crate::resource_limit::words;

/// Refuses a start whose control sockets nobody of the groups could ask.
///
/// # Errors
/// If this process may not give a file to one of them.
pub(crate) fn check(control: &ControlArgs) -> Result<()> {
    for (group, option) in [
        (control.control_group, "control_group"),
        (control.control_read_group, "control_read_group"),
    ] {
        let Some(group) = group else { continue };
        // Of every file, the kernel asks the same (`setattr_prepare`, Linux 6.18). A pipe leaves nothing behind.
        let (pipe, _) = pipe_with(PipeFlags::CLOEXEC).context("cannot create a pipe")?;
        if let Err(errno) = fchown(&pipe, None, Some(Gid::from_raw(group))) {
            return Err(WrongUsage::new(format!(
                "cannot give the control socket to group {group}: {}; put the user of the process into this group, give it \
                 CAP_CHOWN, or leave out {option} (--{})",
                words(errno),
                option.replace('_', "-")
            ))
            .into());
        }
    }
    Ok(())
}
