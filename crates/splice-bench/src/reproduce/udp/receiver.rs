//! The server: receives datagrams and compares their contents with what was sent.

use std::io::{ErrorKind, IoSliceMut};
use std::net::UdpSocket;

use anyhow::{Context, Result, bail, ensure};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSockRef, UdpSocketState};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::site::Site;

/// Enough for what comes while the sender has its turn.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// A datagram begins with the number of its step and its own, of 4 bytes each, and when it was sent, of 8.
pub(super) const NUMBERS_BYTES: usize = 16;

pub(super) struct Receiver {
    socket: UdpSocket,
    pub(super) state: UdpSocketState,
    buffers: Vec<Vec<u8>>,
    /// What each datagram looks like, but for its numbers.
    expected: Vec<u8>,
}

impl Receiver {
    /// Of datagrams of so many bytes.
    pub(super) fn new(site: &Site, bytes: usize) -> Result<Self> {
        let address = Site::server();
        let socket = site.lab.server().enter(|| UdpSocket::bind(address))?;
        let socket = socket.with_context(|| format!("the server cannot bind {address}"))?;
        set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(Self {
            socket,
            state,
            buffers: vec![vec![0; 64 << 10]; BATCH_SIZE],
            expected: payload(bytes),
        })
    }

    /// Receives one batch of what is there, and reports the step and number of each datagram.
    pub(super) fn receive(&mut self, tell: &mut dyn FnMut(u32, u32)) -> Result<usize> {
        let mut meta = [RecvMeta::default(); BATCH_SIZE];
        let mut slices: Vec<_> = self
            .buffers
            .iter_mut()
            .map(|buffer| IoSliceMut::new(buffer))
            .collect();
        let socket = UdpSockRef::from(&self.socket);
        let count = match self.state.recv(socket, &mut slices, &mut meta) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => bail!("the server cannot receive: {error}"),
        };
        let expected = &self.expected;
        for (meta, buffer) in meta[..count].iter().zip(&self.buffers) {
            for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                ensure!(
                    datagram.len() == expected.len()
                        && datagram[NUMBERS_BYTES..] == expected[NUMBERS_BYTES..],
                    "a datagram of {} bytes arrived changed",
                    datagram.len()
                );
                let number = |at: usize| {
                    let bytes = datagram[at..at + 4].try_into();
                    bytes.map_or(0, u32::from_ne_bytes)
                };
                tell(number(0), number(4));
            }
        }
        Ok(count)
    }
}

/// The contents of a datagram, whose first [`NUMBERS_BYTES`] are still to be written.
pub(super) fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7) as u8).collect()
}
