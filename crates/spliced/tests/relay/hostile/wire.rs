//! Who puts packets of any form on the cable to the relay's host: a packet socket beside an end of the connection, which
//! the kernel changes nothing of.

use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

use netlab::{Lab, Namespace, Process, Scratch};

use super::connection::Side;
use super::hops::ip;
use super::stage::Stage;
use crate::patience::until;
use crate::programs::installed;

const ETHERTYPES: [[u8; 2]; 2] = [[0x08, 0x00], [0x86, 0xdd]];

pub(super) struct Wire<'a> {
    stage: &'a Stage,
    device: &'static str,
    header: [u8; 12],
    to_socat: UnixDatagram,
    _socat: Process,
    _scratch: Scratch,
}

impl<'a> Wire<'a> {
    /// `None` without socat, which opens the socket.
    pub(super) fn beside(stage: &'a Stage, side: Side) -> Option<Self> {
        installed("socat", "socat")?;
        let (namespace, device) = match side {
            Side::Client => (stage.lab().client(), Lab::TO_CLIENT),
            Side::Server => (stage.lab().server(), Lab::TO_SERVER),
        };
        let scratch = Scratch::new("wire").expect("a directory");
        let path = scratch.path().join("frames");
        let mut command = namespace.command("socat");
        command
            .arg("-u")
            .arg(format!("UNIX-RECV:{}", path.display()))
            .arg(format!("INTERFACE:{}", Lab::TO_RELAY))
            .stdin(Stdio::null());
        let socat = Process::spawn(&mut command).expect("socat runs");
        let to_socat = UnixDatagram::unbound().expect("a socket");
        until("socat takes frames", || to_socat.connect(&path).is_ok());
        let [to, from] = [
            hardware_address(stage.lab().relay(), device),
            hardware_address(namespace, Lab::TO_RELAY),
        ];
        Some(Self {
            stage,
            device,
            header: [to, from].concat().try_into().expect("two addresses"),
            to_socat,
            _socat: socat,
            _scratch: scratch,
        })
    }

    /// Returns when the relay's host has got it.
    pub(super) fn send(&self, packet: &[u8]) {
        let is_v6 = packet[0] >> 4 == 6;
        let frame = [&self.header, &ETHERTYPES[usize::from(is_v6)][..], packet].concat();
        let before = self.arrived();
        let sent = self.to_socat.send(&frame).expect("socat runs");
        assert_eq!(sent, frame.len());
        until("the packet has arrived", || self.arrived() > before);
    }

    fn arrived(&self) -> u64 {
        let relay = self.stage.lab().relay();
        relay.packets(self.device).expect("counted")
    }
}

fn hardware_address(namespace: &Namespace, device: &str) -> [u8; 6] {
    let shown = ip(namespace, &format!("-o link show dev {device}"));
    let (_, address) = shown.split_once("link/ether ").expect("an Ethernet device");
    let bytes = address.split([':', ' ']).take(6);
    let bytes = bytes.map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
    bytes.collect::<Vec<_>>().try_into().expect("six bytes")
}
