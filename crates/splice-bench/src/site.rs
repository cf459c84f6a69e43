//! The place of all measurements: three namespaces, the CPUs, one server.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netlab::{Lab, Scratch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cpus::{Cpus, Placement};

/// Where the server listens. Below the ephemeral ports that [`SYSCTLS`] leaves.
const SERVER_PORT: u16 = 9000;

/// The ports that the kernel gives to nobody: a relay that forwards takes them. [`SYSCTLS`] leaves them.
pub(crate) const OWN_PORTS: Range<u16> = 1_024..10_000;

/// How long anything on an idle local path may take before it counts as broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What the server sends to whoever asks whether it is reached.
const ANSWER: u8 = b'!';

/// Settings of the namespaces that differ from the kernel's defaults.
const SYSCTLS: [(&str, &str); 2] = [
    // Thousands of short connections per second: more ports to choose from, and those in TIME_WAIT
    // may be taken again after a second. For every contestant alike.
    ("net.ipv4.ip_local_port_range", "10000 65535"),
    ("net.ipv4.tcp_tw_reuse", "1"),
];

/// What the namespaces control congestion with: the first that they may. Pacing (bbr) would spread
/// out what this bench wants to push through; cubic is what most machines run, but a namespace may
/// choose it only if `net.ipv4.tcp_allowed_congestion_control` of the machine lists it; reno always.
const CONGESTION_CONTROLS: [&str; 2] = ["cubic", "reno"];

/// The lab, pinned and awake. Everything is measured from a thread in the client's namespace, which
/// [`Site::enter`] provides.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) lab: Lab,
    pub(crate) scratch: Scratch,
    pub(crate) congestion_control: &'static str,
    pub(crate) cpus: Cpus,
    listener: TcpListener,
}

/// Both ends of one connection from client to server, with or without a relay in between.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
}

impl Connection {
    /// Of two ends that nothing has passed yet.
    pub(crate) fn of(client: TcpStream, server: TcpStream) -> Result<Self> {
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
        }
        Ok(Self { client, server })
    }
}

impl Site {
    /// Takes the CPUs for this thread and everything that it starts, and builds the rest.
    pub(crate) fn build(placement: Placement) -> Result<Self> {
        // Now, before anything is started that is to be pinned as well.
        let cpus = Cpus::take(placement)?;
        raise_open_files()?;
        let lab = Lab::new()?;
        for (name, value) in SYSCTLS {
            lab.set_sysctl(name, value)?;
        }
        let congestion_control = choose_congestion_control(&lab)?;
        let address = Self::server();
        let listener = lab
            .server()
            .enter(|| TcpListener::bind(address))?
            .with_context(|| format!("the server cannot listen on {address}"))?;
        let scratch = Scratch::new("bench")?;
        Ok(Self {
            lab,
            scratch,
            congestion_control,
            cpus,
            listener,
        })
    }

    /// The server's address.
    pub(crate) fn server() -> SocketAddr {
        (Lab::SERVER_V4, SERVER_PORT).into()
    }

    /// Where relay number `index` listens, on the client's side of the relay's namespace.
    pub(crate) fn relay(index: u16) -> SocketAddr {
        (Lab::RELAY_V4, SERVER_PORT + 1 + index).into()
    }

    /// Runs `work` where the client is.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.lab.client().enter(work)?
    }

    /// The server's listening socket.
    pub(crate) fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Connects to `address` and waits for what then arrives at the server.
    pub(crate) fn connect(&self, address: SocketAddr) -> Result<Connection> {
        self.connect_with(address, &[])
    }

    /// The same with `first_bytes` of the client, which both ends are past then.
    pub(crate) fn connect_with(
        &self,
        address: SocketAddr,
        first_bytes: &[u8],
    ) -> Result<Connection> {
        let mut client = TcpStream::connect_timeout(&address, PATIENCE)
            .with_context(|| format!("cannot connect to {address}"))?;
        client.write_all(first_bytes)?;
        loop {
            let server = self.accept(PATIENCE)?.with_context(|| {
                format!("{address} took a connection but did not pass it on to the server")
            })?;
            if has_brought(&server, first_bytes)? {
                return Connection::of(client, server);
            }
        }
    }

    /// The next connection at the server, if one comes in time.
    pub(crate) fn accept(&self, patience: Duration) -> Result<Option<TcpStream>> {
        if !ready(&self.listener, PollFlags::IN, patience)? {
            return Ok(None);
        }
        let (stream, _) = self.listener.accept().context("the server cannot accept")?;
        Ok(Some(stream))
    }

    /// Whether `client` reaches the server in time.
    ///
    /// The server answers every connection that comes. Only the client's own gets an answer to the client, so that one
    /// that an earlier attempt gave up is not taken for it.
    pub(crate) fn answers(&self, client: &TcpStream, patience: Duration) -> Result<bool> {
        let deadline = Instant::now() + patience;
        let mut came = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).context("a wait that long has no timespec")?;
            let mut fds = [
                PollFd::new(client, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            if poll(&mut fds, Some(&left)).context("cannot poll")? == 0 {
                return Ok(false);
            }
            let [is_told, has_come] = fds.map(|fd| !fd.revents().is_empty());
            if is_told {
                // Otherwise the relay has ended the connection.
                let mut answer = [0];
                return Ok((&mut &*client).read_exact(&mut answer).is_ok() && answer == [ANSWER]);
            }
            if has_come {
                let (mut server, _) = self.listener.accept().context("the server cannot accept")?;
                // One that was given up may be reset already.
                let _ = server.write_all(&[ANSWER]);
                came.push(server);
            }
        }
    }

    /// Drops connections that a failed measurement may have left.
    pub(crate) fn drain(&self) -> Result<()> {
        while self.accept(Duration::ZERO)?.is_some() {}
        Ok(())
    }
}

/// Whether `first_bytes` arrive at `server`. Otherwise this is a connection that an earlier measurement
/// gave up, and that has come late.
fn has_brought(mut server: &TcpStream, first_bytes: &[u8]) -> Result<bool> {
    if first_bytes.is_empty() {
        // What can be read is the end of that connection.
        return Ok(!ready(server, PollFlags::IN, Duration::ZERO)?);
    }
    server.set_read_timeout(Some(PATIENCE))?;
    let mut read = vec![0; first_bytes.len()];
    match server.read_exact(&mut read) {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
            ) =>
        {
            Ok(false)
        }
        outcome => {
            outcome.context("the first bytes did not arrive")?;
            ensure!(
                read == first_bytes,
                "other first bytes arrived than were sent"
            );
            Ok(true)
        }
    }
}

fn choose_congestion_control(lab: &Lab) -> Result<&'static str> {
    let mut refused = None;
    for name in CONGESTION_CONTROLS {
        match lab.set_sysctl("net.ipv4.tcp_congestion_control", name) {
            Ok(()) => return Ok(name),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.expect("the list of congestion controls is not empty"))
}

/// Whether `fd` becomes ready for `events` within `patience`.
pub(crate) fn ready(fd: impl AsFd, events: PollFlags, patience: Duration) -> Result<bool> {
    let patience = Timespec::try_from(patience).context("a wait that long has no timespec")?;
    let count = poll(&mut [PollFd::new(&fd, events)], Some(&patience)).context("cannot poll")?;
    Ok(count > 0)
}

/// Idle pairs have both their ends in this process, and relays inherit its limit.
fn raise_open_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .context("cannot raise the limit of open files to its maximum")
}

/// Fails unless this many files may be open at once.
pub(crate) fn require_open_files(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    ensure!(
        limit >= wanted,
        "{wanted} open files are needed but only {limit} allowed: raise `ulimit -Hn` or measure \
         fewer idle pairs"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use netlab::{Need, available};

    use super::{PATIENCE, Site};
    use crate::cpus::Placement;

    #[test]
    fn a_connection_that_was_given_up_is_not_taken_for_the_next_one() {
        if !available(Need::Netns) {
            return;
        }
        let site = Site::build(Placement::Spread).expect("root may");
        site.enter(|| {
            drop(TcpStream::connect(Site::server())?);
            let pair = site.connect(Site::server())?;
            assert_eq!(pair.server.peer_addr()?, pair.client.local_addr()?);
            Ok(())
        })
        .expect("the direct path works");
    }

    #[test]
    fn a_relay_is_not_ready_because_a_connection_of_another_one_comes_late() {
        if !available(Need::Netns) {
            return;
        }
        let site = Site::build(Placement::Spread).expect("root may");
        site.enter(|| {
            let silent = TcpListener::bind("127.0.0.1:0")?;
            let _late = TcpStream::connect(Site::server())?;
            let client = TcpStream::connect(silent.local_addr()?)?;
            assert!(!site.answers(&client, Duration::from_millis(50))?);

            let _late = TcpStream::connect(Site::server())?;
            let client = TcpStream::connect(Site::server())?;
            assert!(site.answers(&client, PATIENCE)?);
            Ok(())
        })
        .expect("both listen");
    }
}
