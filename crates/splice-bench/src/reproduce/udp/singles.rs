//! Datagrams one at a time, from a BPF program in place of sockets: they arrive at the relay's device as from
//! a network card, and at the server's device another program counts them. So neither end limits the relay.
//!
//! ```text
//! frames that the program sends ──▶ relay's device ──▶ relay ──▶ server's device: counted and dropped
//!                                                                               or, to be compared: socket
//! ```

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netlab::Lab;

use super::load::{Delays, Load, QUIET, Step};
use super::receiver::{Receiver, payload};
use crate::bpf_object::BpfObject;
use crate::site::{PATIENCE, Site};

const PROGRAMS: &[u8] = include_bytes!("../../../bpf/prebuilt/datagrams.bpf.o");

/// The clients' ports: this one and those above.
const FIRST_PORT: u16 = 20_000;

/// What a run of the program takes at least, and at first is thought to take. Most runs send nothing.
const RUN: Duration = Duration::from_nanos(50);

/// What is sent to compare the contents, in datagrams a second: any relay passes that on, and a socket
/// receives it.
const COMPARED_RATE: f64 = 5_000.0;

/// As in the program: so many slots for delays, of which each power of two has 2^5.
const DELAY_SLOTS: usize = 1024;
const DELAY_SUB_BITS: usize = 5;

/// The protocol's number in an IP header.
const UDP: u8 = 17;

pub(super) struct Singles {
    programs: BpfObject,
    receiver: Receiver,
    clients: u16,
    bytes: usize,
    frame: Vec<u8>,
    /// The relay's device towards the clients.
    device: Device,
    /// The number of the step, which its datagrams carry.
    number: u32,
    /// What a run of the program took in the last step.
    run: Duration,
}

struct Device {
    index: u32,
    address: [u8; 6],
}

impl Singles {
    pub(super) fn new(site: &Site, clients: u16, bytes: usize) -> Result<Self> {
        let mut programs = BpfObject::load(PROGRAMS)?;
        let sink = Device::find(site.lab.server(), Lab::TO_RELAY)?.index;
        site.lab
            .server()
            .enter(|| programs.attach_to_ingress("count", sink))??;
        Ok(Self {
            programs,
            receiver: Receiver::new(site, bytes)?,
            clients,
            bytes,
            frame: Vec::new(),
            device: Device::find(site.lab.relay(), Lab::TO_CLIENT)?,
            number: 0,
            run: RUN,
        })
    }

    /// Sends at `rate` for about `window`. Returns how many, and how long it took.
    ///
    /// It is one call, because each begins and ends with a wait of milliseconds for other CPUs
    /// (`bpf_dispatcher_change_prog`, Linux 6.18). The call has a number of runs and no duration, so the
    /// duration of the last step's runs tells how many are needed.
    fn send(&mut self, site: &Site, rate: f64, window: Duration) -> Result<(u64, Duration)> {
        let Self {
            programs,
            frame,
            device,
            ..
        } = self;
        let window_ns = window.as_nanos() as u64;
        let plan = [
            rate as u64,
            window_ns,
            self.number.into(),
            self.clients.into(),
            FIRST_PORT.into(),
            0,
            0,
            0,
            0,
        ];
        programs.write("plan", &plan)?;
        let runs = (window.as_secs_f64() / self.run.as_secs_f64()).max(1.0) as u32;
        let began = Instant::now();
        site.lab
            .relay()
            .enter(|| programs.receive_frames("send", device.index, frame, runs))??;
        self.run = (began.elapsed() / runs).max(RUN);
        let plan = programs.read("plan")?;
        let [.., took_ns, sent, _skipped] = plan[..] else {
            bail!("the plan has another shape");
        };
        Ok((sent, Duration::from_nanos(took_ns.max(1))))
    }

    /// Has the datagrams of this step counted, or none.
    fn count(&self, step: u32) -> Result<()> {
        let sink = [step.into(), 0, self.bytes as u64, 0];
        self.programs.write("sink", &sink)
    }

    fn counted(&self) -> Result<u64> {
        let sink = self.programs.read("sink")?;
        let [_, counted, _, changed] = sink[..] else {
            bail!("the sink has another shape");
        };
        ensure!(
            changed == 0,
            "{changed} datagrams arrived with another length"
        );
        Ok(counted)
    }
}

impl Load for Singles {
    fn direct(&mut self, _site: &Site, relay: SocketAddr) -> Result<()> {
        while self.receiver.receive(&mut |_, _| ())? > 0 {}
        let SocketAddr::V4(relay) = relay else {
            bail!("the relay has no IPv4 address");
        };
        let to = (*relay.ip(), relay.port());
        self.frame = frame(self.device.address, to, &payload(self.bytes));
        Ok(())
    }

    /// The datagrams that do it are received by a socket and compared.
    fn open_sessions(&mut self, site: &Site) -> Result<()> {
        self.count(0)?;
        let clients = u32::from(self.clients);
        let deadline = Instant::now() + PATIENCE;
        let mut arrived = HashSet::new();
        while arrived.len() < clients as usize {
            ensure!(
                Instant::now() < deadline,
                "the relay passes on only {} of {clients} clients",
                arrived.len(),
            );
            self.number += 1;
            // Three of each.
            let window = Duration::from_secs_f64(f64::from(clients) * 3.0 / COMPARED_RATE);
            self.send(site, COMPARED_RATE, window)?;
            thread::sleep(QUIET);
            while self.receiver.receive(&mut |_, sequence| {
                arrived.insert(sequence % clients);
            })? > 0
            {}
        }
        Ok(())
    }

    fn offer(&mut self, site: &Site, rate: f64, window: Duration) -> Result<Step> {
        self.number += 1;
        self.count(self.number)?;
        self.programs.write("delays", &[0; DELAY_SLOTS])?;
        let (sent, took) = self.send(site, rate, window)?;
        let mut received = self.counted()?;
        loop {
            thread::sleep(QUIET);
            let now = self.counted()?;
            if now == received {
                break;
            }
            received = now;
        }
        Ok(Step {
            sent,
            received,
            took,
            delays: delays(&self.programs.read("delays")?),
        })
    }
}

/// What the program has noted: how many datagrams took as long as each slot says. `None`: none.
fn delays(slots: &[u64]) -> Option<Delays> {
    let count: u64 = slots.iter().sum();
    let at = |quantile: f64| {
        let mut left = (count as f64 * quantile) as u64;
        let slot = slots.iter().position(|in_slot| {
            let is_here = left < *in_slot;
            left = left.saturating_sub(*in_slot);
            is_here
        });
        slot.map(|slot| ns_of(slot) / 1e3)
    };
    Some(Delays {
        median: at(0.5)?,
        p99: at(0.99)?,
    })
}

/// The middle of a slot, in ns (`slot_of`).
fn ns_of(slot: usize) -> f64 {
    let (power, part) = (slot >> DELAY_SUB_BITS, slot & ((1 << DELAY_SUB_BITS) - 1));
    match power.checked_sub(1) {
        None => part as f64,
        Some(exponent) => {
            let least = ((1 << DELAY_SUB_BITS) + part) << exponent;
            least as f64 + (1u64 << exponent) as f64 / 2.0
        }
    }
}

impl Device {
    fn find(namespace: &netlab::Namespace, name: &str) -> Result<Self> {
        let output = namespace
            .command("ip")
            .args(["-o", "link", "show", "dev", name])
            .output()
            .context("cannot run ip(8)")?;
        let line = String::from_utf8_lossy(&output.stdout);
        Self::read(&line).with_context(|| format!("ip(8) describes no device {name}: {line}"))
    }

    /// `7: NAME@if6: <...> ... link/ether 12:34:56:78:9a:bc brd ...`
    fn read(line: &str) -> Option<Self> {
        let (index, rest) = line.split_once(':')?;
        let (_, rest) = rest.split_once("link/ether ")?;
        let mut bytes = rest.get(..17)?.split(':');
        let mut address = [0; 6];
        for byte in &mut address {
            *byte = u8::from_str_radix(bytes.next()?, 16).ok()?;
        }
        Some(Self {
            index: index.trim().parse().ok()?,
            address,
        })
    }
}

/// A frame of the client to the relay; the source port is still to be written. UDP over IPv4 may go without
/// a checksum (RFC 768).
fn frame(device: [u8; 6], to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let udp_bytes = (8 + payload.len()) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_bytes).to_be_bytes());
    // No identification, not to be fragmented, 64 hops.
    ip.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
    ip.extend(Lab::CLIENT_V4.octets());
    ip.extend(to.0.octets());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = device.to_vec();
    // Any sender that is not a group, and IPv4.
    frame.extend([2, 0, 0, 0, 0, 1, 8, 0]);
    frame.extend(ip);
    frame.extend([0, 0]);
    frame.extend(to.1.to_be_bytes());
    frame.extend(udp_bytes.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// The checksum of an IP header of an even length (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::{DELAY_SLOTS, Device, checksum, delays};

    #[test]
    fn the_checksum_is_that_of_a_known_header() {
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(checksum(&header), 0xb861);
    }

    #[test]
    fn delays_are_those_of_their_slots() {
        let mut slots = [0; DELAY_SLOTS];
        assert!(delays(&slots).is_none());
        // 1024 and 2048 ns, with a slot of 32 and of 64 ns.
        slots[6 << 5] = 98;
        slots[7 << 5] = 2;
        let delays = delays(&slots).expect("some");
        assert_eq!((delays.median, delays.p99), (1.040, 2.080));
    }

    #[test]
    fn a_device_is_read() {
        let line = "3: to-client@if2: <UP> mtu 1500 qdisc noqueue state UP \\    link/ether 0a:1b:2c:3d:4e:5f brd ff:ff:ff:ff:ff:ff link-netns x";
        let device = Device::read(line).expect("it is complete");
        assert_eq!(
            (device.index, device.address),
            (3, [0x0a, 0x1b, 0x2c, 0x3d, 0x4e, 0x5f])
        );
    }
}
