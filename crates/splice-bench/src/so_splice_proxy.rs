//! The proxy of the post on `SO_SPLICE`: one program in C that either reads and writes or splices.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::site::Site;

const SOURCE: &str = include_str!("../proxy/so_splice_proxy.c");

/// The system whose `SO_SPLICE` the post measured.
const PERSONALITY: &str = "SO_SPLICE_PERSONALITY=freebsd";

/// How the proxy moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SoSpliceProxy {
    /// With read(2) and write(2), without any library.
    Copying,
    /// With `SO_SPLICE` from this library, which is preloaded.
    Splicing(&'static Path),
}

impl SoSpliceProxy {
    /// The command that runs it from `address` to the server, or what is missing.
    pub(crate) fn command(
        self,
        site: &Site,
        address: SocketAddr,
    ) -> Result<Result<Command, String>> {
        if let Self::Splicing(library) = self
            && !library.is_file()
        {
            return Ok(Err(format!(
                "there is no {}: build it with `cargo build --release -p so-splice-preload`",
                library.display()
            )));
        }
        let program = match built(site)? {
            Ok(program) => program,
            Err(missing) => return Ok(Err(missing)),
        };
        // The variables are set behind the programs that enter the namespace: they need no library.
        let mut command = site.lab.relay().command("env");
        if let Self::Splicing(library) = self {
            let mut preload = OsString::from("LD_PRELOAD=");
            preload.push(library);
            command.arg(preload).arg(PERSONALITY);
        }
        command.arg(program).arg(match self {
            Self::Copying => "copy",
            Self::Splicing(_) => "splice",
        });
        for end in [address, Site::server()] {
            command.args([end.ip().to_string(), end.port().to_string()]);
        }
        Ok(Ok(command))
    }
}

/// The program, built at the first call; or why it cannot be built.
fn built(site: &Site) -> Result<Result<PathBuf, String>> {
    let program = site.scratch.path().join("so_splice_proxy");
    if program.exists() {
        return Ok(Ok(program));
    }
    let Some(compiler) = netlab::program("cc") else {
        return Ok(Err("no C compiler: apt install build-essential".into()));
    };
    let source = site.scratch.write("so_splice_proxy.c", SOURCE)?;
    let output = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra", "-o"])
        .args([&program, &source])
        .stdin(Stdio::null())
        .output()
        .context("cannot run cc")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| line.contains("error"));
    Ok(if output.status.success() {
        Ok(program)
    } else {
        let why = first.unwrap_or("it does not say why");
        Err(format!("cc cannot compile so_splice_proxy.c: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use netlab::{Scratch, present, program};

    use super::SOURCE;

    #[test]
    fn the_source_compiles_without_a_warning() {
        let missing = program("cc").is_none();
        let why = missing.then(|| "no cc (apt install build-essential)".into());
        if !present("cc", why) {
            return;
        }
        let scratch = Scratch::new("compiled").expect("a directory");
        let source = scratch.write("so_splice_proxy.c", SOURCE);
        let output = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(scratch.path().join("so_splice_proxy"))
            .arg(source.expect("it is writable"))
            .output()
            .expect("cc starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}
