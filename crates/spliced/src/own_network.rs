//! Network namespaces of this process, which go with it.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace, as long as this is open.
#[derive(Debug)]
pub(crate) struct Namespace(File);

impl Namespace {
    /// Makes one, with its loopback device up.
    ///
    /// # Errors
    /// Without the right to have one, or without ip(8).
    pub(crate) fn new() -> Result<Self> {
        within(|| {
            unshare(CloneFlags::CLONE_NEWNET).context(
                "cannot make a network namespace; run it as root, or give it CAP_SYS_ADMIN",
            )?;
            ip("link set lo up")?;
            let file = File::open("/proc/thread-self/ns/net");
            file.map(Self)
                .context("cannot open a network namespace; mount /proc")
        })
    }

    /// Has this thread be in it.
    ///
    /// # Errors
    /// Of setns(2).
    pub(crate) fn enter(&self) -> Result<()> {
        setns(&self.0, CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace")
    }

    /// A thread that stays in it, as the processes of a container do, so that the namespace can be found.
    ///
    /// # Errors
    /// If there can be none.
    pub(crate) fn inhabit(&self) -> Result<Inhabitant> {
        let namespace = self.0.try_clone().map(Self);
        let namespace = namespace.context("cannot duplicate a descriptor")?;
        let (leave, left) = channel::<()>();
        let (tell, told) = channel();
        let thread = thread::Builder::new().name("inhabitant".into());
        let thread = thread.spawn(move || {
            let entered = namespace.enter();
            let is_there = entered.is_ok();
            let _ = tell.send(entered);
            if is_there {
                // Until the other end is gone.
                let _ = left.recv();
            }
        });
        let thread = thread.context("cannot start a thread")?;
        told.recv().context("a thread has ended")??;
        Ok(Inhabitant {
            leave: Some(leave),
            thread: Some(thread),
        })
    }

    /// A veth pair with an address at each end, whose name there is `name` and `eth0`.
    ///
    /// # Errors
    /// Without ip(8), or where there is no veth.
    pub(crate) fn connect(
        &self,
        name: &str,
        address: Ipv4Addr,
        other: &Self,
        other_address: Ipv4Addr,
    ) -> Result<()> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), other.0.as_raw_fd());
        within(|| {
            self.enter()?;
            ip(&format!(
                "link add {name} type veth peer name eth0 netns {path}"
            ))?;
            up(name, address)
        })?;
        within(|| {
            other.enter()?;
            up("eth0", other_address)
        })
    }
}

/// A thread in a namespace.
#[derive(Debug)]
pub(crate) struct Inhabitant {
    leave: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Inhabitant {
    fn drop(&mut self) {
        self.leave = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn up(device: &str, address: Ipv4Addr) -> Result<()> {
    ip(&format!("address add {address}/24 dev {device}"))?;
    ip(&format!("link set {device} up"))
}

/// Runs ip(8) in the namespace of this thread.
fn ip(arguments: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let output = command.output();
    let output = output.context("cannot run ip(8); install iproute2")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("ip {arguments}: {}", why.trim());
    }
    Ok(())
}

/// Runs `work` in a thread of its own, which may be in another namespace than the others.
fn within<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let ended = scope.spawn(work).join();
        ended.unwrap_or_else(|_| Err(anyhow!("a thread has failed")))
    })
}

/// Two ends of a connection to `host`: the one that connects, and the one that accepts, each in its namespace. `first` is what
/// a thread does before it makes its socket, such as to enter a control group.
///
/// # Errors
/// If it cannot be made.
pub(crate) fn connection(
    host: Ipv4Addr,
    [from, to]: [Option<&Namespace>; 2],
    first: &(dyn Fn() -> Result<()> + Sync),
) -> Result<(TcpStream, TcpStream)> {
    const CANNOT: &str = "cannot make a TCP connection; set the interface lo up";
    let listener = in_namespace(to, first, || TcpListener::bind((host, 0)).context(CANNOT))?;
    let address: SocketAddr = listener.local_addr().context(CANNOT)?;
    let one = in_namespace(from, first, || TcpStream::connect(address).context(CANNOT))?;
    let own = one.local_addr().context(CANNOT)?;
    let other = loop {
        let (other, peer) = listener.accept().context(CANNOT)?;
        // Anybody may connect, as a port scan does.
        if peer == own {
            break other;
        }
    };
    // A message that waits for an ACK would be another way.
    one.set_nodelay(true).context(CANNOT)?;
    other.set_nodelay(true).context(CANNOT)?;
    Ok((one, other))
}

fn in_namespace<T: Send>(
    namespace: Option<&Namespace>,
    first: &(dyn Fn() -> Result<()> + Sync),
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    within(|| {
        first()?;
        if let Some(namespace) = namespace {
            namespace.enter()?;
        }
        work()
    })
}
