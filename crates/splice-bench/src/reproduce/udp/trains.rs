//! Datagrams in trains: several of a client in one call, from a socket of its own.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netlab::Lab;
use quinn_udp::{Transmit, UdpSockRef};

use super::load::{Load, QUIET, Step};
use super::receiver::{Receiver, payload};
use crate::site::{PATIENCE, Site};

/// How many trains are sent before the receiver has its turn: no receive buffer is full meanwhile.
const TURN: usize = 16;

/// The clients' sockets, and the server's.
pub(super) struct Trains {
    clients: Vec<UdpSocket>,
    next_client: usize,
    receiver: Receiver,
    datagram: Vec<u8>,
    /// The datagrams of one call.
    train: Vec<u8>,
    burst: usize,
    relay: SocketAddr,
    /// The number of the step, which its datagrams carry.
    number: u32,
}

impl Trains {
    /// `burst`: how many datagrams go out in one call.
    pub(super) fn new(site: &Site, clients: usize, bytes: usize, burst: usize) -> Result<Self> {
        let bind = || -> Result<Vec<_>> {
            let bind = |_| UdpSocket::bind((Lab::CLIENT_V4, 0)).context("a client cannot bind");
            (0..clients).map(bind).collect()
        };
        Ok(Self {
            clients: site.lab.client().enter(bind)??,
            next_client: 0,
            receiver: Receiver::new(site, bytes)?,
            datagram: payload(bytes),
            train: Vec::with_capacity(bytes * burst),
            burst,
            relay: Site::server(),
            number: 0,
        })
    }

    /// The next datagrams of one client.
    fn fill_train(&mut self, sequence: u32) {
        self.train.clear();
        for at in 0..self.burst as u32 {
            self.mark(sequence.wrapping_add(at));
            self.train.extend_from_slice(&self.datagram);
        }
    }

    fn send_train(&self) -> std::io::Result<()> {
        let client = &self.clients[self.next_client];
        let transmit = Transmit {
            destination: self.relay,
            ecn: None,
            contents: &self.train,
            segment_size: Some(self.datagram.len()),
            src_ip: None,
        };
        self.receiver
            .state
            .try_send(UdpSockRef::from(client), &transmit)
    }

    fn mark(&mut self, sequence: u32) {
        self.datagram[..4].copy_from_slice(&self.number.to_ne_bytes());
        self.datagram[4..8].copy_from_slice(&sequence.to_ne_bytes());
    }
}

impl Load for Trains {
    fn direct(&mut self, site: &Site, relay: SocketAddr) -> Result<()> {
        // Nothing of the relay before may come later and count.
        while self.receiver.receive(&mut |_, _| ())? > 0 {}
        let clients = &self.clients;
        let connect = || clients.iter().try_for_each(|client| client.connect(relay));
        site.lab.client().enter(connect)??;
        self.relay = relay;
        Ok(())
    }

    fn open_sessions(&mut self, _site: &Site) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        self.number += 1;
        let mut arrived = HashSet::new();
        while arrived.len() < self.clients.len() {
            ensure!(
                Instant::now() < deadline,
                "the relay passes on only {} of {} clients",
                arrived.len(),
                self.clients.len()
            );
            for client in 0..self.clients.len() {
                if !arrived.contains(&(client as u32)) {
                    self.mark(client as u32);
                    // An error of an earlier datagram, if the relay does not run yet.
                    let _ = self.clients[client].send(&self.datagram);
                }
            }
            std::thread::sleep(QUIET);
            while self.receiver.receive(&mut |_, sequence| {
                arrived.insert(sequence);
            })? > 0
            {}
        }
        Ok(())
    }

    fn offer(&mut self, _site: &Site, rate: f64, window: Duration) -> Result<Step> {
        self.number += 1;
        let number = self.number;
        let (mut sent, mut received) = (0u64, 0u64);
        let mut count = |of: u32, _: u32| received += u64::from(of == number);
        let began = Instant::now();
        let took = loop {
            let elapsed = began.elapsed();
            if elapsed >= window {
                break elapsed;
            }
            let due = (rate * elapsed.as_secs_f64()) as u64;
            let burst = self.burst as u64;
            for _ in 0..(due.saturating_sub(sent) / burst).min(TURN as u64) {
                self.fill_train(sent as u32);
                match self.send_train() {
                    Ok(()) => sent += burst,
                    // An earlier one was refused, and this one is lost as well.
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => sent += burst,
                    // The sender's own queue was full: it was not offered.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => bail!("a client cannot send: {error}"),
                }
                self.next_client = (self.next_client + 1) % self.clients.len();
            }
            self.receiver.receive(&mut count)?;
        };
        let mut last = Instant::now();
        while last.elapsed() < QUIET {
            if self.receiver.receive(&mut count)? > 0 {
                last = Instant::now();
            }
        }
        Ok(Step {
            sent,
            received,
            took,
            delays: None,
        })
    }
}
