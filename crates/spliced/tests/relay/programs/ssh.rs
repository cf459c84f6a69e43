//! OpenSSH: a server with keys and a configuration of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use netlab::{Process, Scratch};

use super::{Host, installed, run};
use crate::payload::Payload;
use crate::server::free_port;

const FILE_BYTES: usize = 64 << 20;

pub(super) struct Sshd {
    pub(super) address: String,
    directory: PathBuf,
    // In this order: the process ends before its directory is removed.
    _process: Process,
    _scratch: Scratch,
}

impl Sshd {
    pub(super) fn start(host: &Host<'_>) -> Option<Self> {
        let sshd = installed("sshd", "openssh-server")?;
        let keygen = installed("ssh-keygen", "openssh-client")?;
        let scratch = Scratch::new("sshd").expect("a directory");
        let directory = scratch.path().to_owned();
        for key in ["host", "user"] {
            run(Process::command(&keygen)
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(directory.join(key)));
        }
        let port = free_port();
        let path = directory.display();
        let configuration = format!(
            "Port {port}
             ListenAddress {}
             HostKey {path}/host
             AuthorizedKeysFile {path}/user.pub
             PidFile none
             StrictModes no
             UsePAM no
             PasswordAuthentication no
             PermitRootLogin prohibit-password
             Subsystem sftp internal-sftp
",
            host.ip
        );
        let configuration = scratch.write("config", &configuration).expect("a file");
        // sshd needs an empty directory at a fixed path, which this creates in a mount namespace of its own.
        let script = r#"mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec "$@""#;
        let mut server = host.command("unshare");
        server
            .args(["--mount", "sh", "-c", script, "sshd"])
            .arg(&sshd)
            .args(["-D", "-e", "-f"])
            .arg(configuration)
            .stderr(Stdio::from(
                fs::File::create(directory.join("log")).expect("a file"),
            ));
        let process = Process::spawn(&mut server).expect("sshd");
        let address = format!("{}:{port}", host.ip);
        host.wait_listening(&address);
        Some(Self {
            address,
            directory,
            _process: process,
            _scratch: scratch,
        })
    }

    /// Copies a file to the server and back, each time over a connection of its own to `address`, and compares
    /// it.
    pub(super) fn copy(
        &self,
        scp: &Path,
        host: &Host<'_>,
        address: &str,
        over: impl Fn(&(dyn Fn() + Sync)),
    ) {
        let (ip, port) = address.rsplit_once(':').expect("a port");
        let file = |name: &str| self.directory.join(name).display().to_string();
        let remote = |name: &str| format!("root@{ip}:{}", file(name));
        let whole = Payload::new(70).bytes(FILE_BYTES);
        fs::write(file("first"), &whole).expect("a file");
        for (from, to) in [
            (file("first"), remote("second")),
            (remote("second"), file("third")),
        ] {
            over(&|| {
                let mut copy = host.command(scp);
                copy.args(["-q", "-F", "none", "-P", port, "-i", &file("user")])
                    .args(["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"])
                    .args(["-o", "UserKnownHostsFile=/dev/null"])
                    .args([&from, &to]);
                run(&mut copy);
            });
        }
        assert!(fs::read(file("third")).expect("a file") == whole);
        for name in ["second", "third"] {
            fs::remove_file(file(name)).expect("removed");
        }
    }
}
