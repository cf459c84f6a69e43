//! The `ip` command of iproute2.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `ip` with these arguments. On failure its output becomes the error.
pub(crate) fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new(crate::program("ip").unwrap_or_else(|| "ip".into()))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("cannot run `ip`: install the package iproute2")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`ip {}` failed ({}): {}; namespaces need root",
            arguments.join(" "),
            output.status,
            said.trim()
        );
    }
    Ok(())
}
