//! Where a trial has its connections: on loopback, or between network namespaces of its own.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sched::{CloneFlags, setns, unshare};

use super::bypassed::Group;

/// The two networks of a demonstration, each with 24 bits: from RFC 5737, so that nobody takes them for real ones.
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const RELAY_TO_CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const RELAY_TO_SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// Where the client, the relay and the server are.
#[derive(Debug)]
pub(super) enum Stage {
    Loopback,
    /// Each in a network namespace, with a veth pair from one to the next. They go with this process.
    Namespaces {
        client: Namespace,
        relay: Namespace,
        server: Namespace,
    },
}

/// A network namespace, as long as this is open.
#[derive(Debug)]
pub(super) struct Namespace(File);

impl Stage {
    /// Three network namespaces, and a network from one to the next.
    ///
    /// # Errors
    /// Without the right to have them, or without ip(8).
    pub(super) fn namespaces() -> Result<Self> {
        let [client, relay, server] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        relay.connect("to-client", RELAY_TO_CLIENT, &client, CLIENT)?;
        relay.connect("to-server", RELAY_TO_SERVER, &server, SERVER)?;
        Ok(Self::Namespaces {
            client,
            relay,
            server,
        })
    }

    /// A connection from the client to the relay.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn to_relay(&self) -> Result<(TcpStream, TcpStream)> {
        self.to_relay_in(None)
    }

    /// The same, of sockets in a control group.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn to_relay_in(&self, group: Option<&Group>) -> Result<(TcpStream, TcpStream)> {
        match self {
            Self::Loopback => connection(Ipv4Addr::LOCALHOST, [None, None], group),
            Self::Namespaces { client, relay, .. } => {
                connection(RELAY_TO_CLIENT, [Some(client), Some(relay)], group)
            }
        }
    }

    /// A connection from the relay to the server.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn to_server(&self) -> Result<(TcpStream, TcpStream)> {
        match self {
            Self::Loopback => connection(Ipv4Addr::LOCALHOST, [None, None], None),
            Self::Namespaces { relay, server, .. } => {
                connection(SERVER, [Some(relay), Some(server)], None)
            }
        }
    }

    /// Has this thread be in the client's network.
    ///
    /// # Errors
    /// Of setns(2).
    pub(super) fn enter_client(&self) -> Result<()> {
        match self {
            Self::Loopback => Ok(()),
            Self::Namespaces { client, .. } => client.enter(),
        }
    }

    /// Has this thread be in the relay's network.
    ///
    /// # Errors
    /// Of setns(2).
    pub(super) fn enter_relay(&self) -> Result<()> {
        match self {
            Self::Loopback => Ok(()),
            Self::Namespaces { relay, .. } => relay.enter(),
        }
    }
}

impl Namespace {
    fn new() -> Result<Self> {
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

    fn enter(&self) -> Result<()> {
        setns(&self.0, CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace")
    }

    /// A veth pair with an address at each end, whose name there is `name` and `eth0`.
    fn connect(
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

/// Two ends of a connection to `host`: the one that connects, and the one that accepts, each in its namespace.
fn connection(
    host: Ipv4Addr,
    [from, to]: [Option<&Namespace>; 2],
    group: Option<&Group>,
) -> Result<(TcpStream, TcpStream)> {
    const CANNOT: &str = "cannot make a TCP connection; set the interface lo up";
    let listener = at(to, group, || TcpListener::bind((host, 0)).context(CANNOT))?;
    let address: SocketAddr = listener.local_addr().context(CANNOT)?;
    let one = at(from, group, || TcpStream::connect(address).context(CANNOT))?;
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

fn at<T: Send>(
    namespace: Option<&Namespace>,
    group: Option<&Group>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    within(|| {
        if let Some(group) = group {
            group.enter()?;
        }
        if let Some(namespace) = namespace {
            namespace.enter()?;
        }
        work()
    })
}
