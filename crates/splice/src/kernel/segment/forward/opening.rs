//! Which way new connections take, as the network and the packet filters allow it: the table of listeners.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use splice_bpf::types::{SegmentEnd, SegmentListener};

use super::PAUSED;
use super::forwards::{Forwards, State};
use super::network::{Path, connections, needs_stack, own_ports};
use super::origin::{Origin, mapped};
use super::owner::{ForwardOptions, Open, Owner, Way};
use crate::firewall::{Pass, PassState, Refusal};

/// `SEGMENT_NO_ORIGIN` in bpf/segment/shared.h.
const NO_ORIGIN: u32 = u32::MAX;

/// A server gets no more ports than this, so that some are left for others.
const MOST_PORTS: u32 = 16_384;

impl Forwards {
    /// Lets new connections of an owner take the way that is right now. False if the packet filters are still being
    /// read.
    pub(super) fn follow(&self, state: &mut State, owner: &Arc<Owner>) -> bool {
        if owner.is_closed.load(Relaxed) {
            return true;
        }
        let options = owner.options();
        if options.is_paused {
            self.by_sockets(owner, PAUSED);
            return true;
        }
        if let Err(why) = &state.raw {
            self.by_sockets(owner, why);
            return true;
        }
        let path = match state.network.path(&options.listen, options.server) {
            Ok(path) => path,
            Err(why) => {
                self.by_sockets(owner, &why);
                return true;
            }
        };
        for listener in &path.listeners {
            if let Some(why) = needs_stack(&self.datapath, *listener) {
                self.by_sockets(owner, &format!("{listener}: {why}"));
                return true;
            }
        }
        let (is_same, is_let_past) = {
            let way = owner.way();
            let open = way.open.as_ref();
            let is_same = |open: &Open| open.path == path && open.server == options.server;
            let is_let_past = |open: &Open| {
                let mut passes = open.passes.iter();
                passes.all(|pass| pass.state() == PassState::Admitted)
            };
            (open.is_some_and(is_same), open.is_none_or(is_let_past))
        };
        if is_same && is_let_past {
            return true;
        }
        match self.open(state, owner, &options, path) {
            Ok(()) => true,
            Err(Refusal::NotYet | Refusal::Short) => {
                if !is_let_past {
                    self.by_sockets(owner, "packet filters have changed, and are being read");
                }
                false
            }
            Err(Refusal::Because(why)) => {
                self.by_sockets(owner, &why);
                true
            }
        }
    }

    /// Lets new connections in from the SYN on.
    fn open(
        &self,
        state: &mut State,
        owner: &Arc<Owner>,
        options: &ForwardOptions,
        path: Path,
    ) -> Result<(), Refusal> {
        let because = |why: String| Refusal::Because(why);
        let server = options.server;
        let refused =
            |errno: rustix::io::Errno| because(format!("the tables take no more: {errno}"));
        let passes = self.passes(owner, options, &path)?;
        for device in &path.devices {
            // What is attached stays; a device may have been made anew with the index of another one.
            self.datapath
                .ensure_attached(device.index)
                .map_err(|error| because(error.to_string()))?;
        }
        self.admit_devices(state, &path).map_err(refused)?;
        let origin = self.origin(state, owner, server, &path).map_err(because)?;
        let led = &state.origins[origin as usize];
        // Zeroes have the program look it up.
        let look_up = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        led.lead_by(&self.datapath, path.route.next_hop.unwrap_or(look_up));
        let route = led.route();
        self.datapath.lead(origin, &route).map_err(refused)?;
        // Before the first SYN comes.
        self.keep_alive(state);
        let entry = SegmentListener {
            origin,
            ..SegmentListener::default()
        };
        let (is_new, listeners) = {
            let mut way = owner.way();
            let before = way.open.take();
            let former = before.iter().flat_map(|open| &open.path.listeners);
            for former in former.filter(|former| !path.listeners.contains(former)) {
                self.datapath.unlisten(&end_of(*former));
            }
            let listeners = path.listeners.clone();
            *way = Way {
                open: Some(Open {
                    server,
                    origin,
                    path,
                    passes,
                }),
                ..Way::default()
            };
            let is_new = before.is_none_or(|before| before.server != server);
            (is_new, listeners)
        };
        for listener in &listeners {
            self.datapath
                .listen(&end_of(*listener), &entry)
                .map_err(refused)?;
        }
        if is_new {
            let listeners: Vec<_> = listeners.iter().map(SocketAddr::to_string).collect();
            tracing::info!(
                "connections from {} to {server} are translated from the SYN on",
                listeners.join(", ")
            );
        }
        Ok(())
    }

    /// Lets connections come in on the devices of a path, and on no others.
    fn admit_devices(&self, state: &mut State, path: &Path) -> Result<(), rustix::io::Errno> {
        let devices: HashSet<_> = path.devices.iter().map(|device| device.index).collect();
        for device in devices.difference(&state.devices) {
            self.datapath.admit_device(*device)?;
        }
        for device in state.devices.difference(&devices) {
            self.datapath.dismiss_device(*device);
        }
        state.devices = devices;
        Ok(())
    }

    /// Tells the program which addresses are this host's own.
    pub(super) fn know_own_addresses(&self, state: &mut State) {
        let own: HashSet<_> = state.network.addresses().collect();
        let entry = SegmentListener {
            origin: NO_ORIGIN,
            ..SegmentListener::default()
        };
        for address in own.difference(&state.own) {
            // Should the table be full, connections from this address are forwarded, if it ever connects.
            let end = end_of(SocketAddr::new(*address, 0));
            let _ = self.datapath.know(&end, &entry);
        }
        for address in state.own.difference(&own) {
            self.datapath
                .unlisten(&end_of(SocketAddr::new(*address, 0)));
        }
        state.own = own;
    }

    /// The leave of the packet filters.
    fn passes(
        &self,
        owner: &Owner,
        options: &ForwardOptions,
        path: &Path,
    ) -> Result<Vec<Pass>, Refusal> {
        if options.bypass_firewall {
            return Ok(Vec::new());
        }
        let firewall = self.datapath.firewall();
        let firewall = firewall.map_err(|failure| Refusal::Because(failure.why))?;
        let waker = Waker::from(Arc::clone(&self.alarm));
        let mut doubted = owner.way().doubted.clone();
        let mut passes = Vec::new();
        let listeners = path.listeners.iter();
        for pair in listeners.flat_map(|one| connections(path, *one, options.server)) {
            // Connection tracking knows nothing of what is yet to come.
            let admitted = {
                // No socket has it.
                let by_groups = Box::new(|| None);
                firewall.admit(pair, |_| {}, by_groups, waker.clone(), &mut doubted)
            };
            owner.way().doubted = doubted.clone();
            passes.push(admitted.map_err(|refusal| match refusal {
                Refusal::Because(why) => Refusal::Because(format!("packet filters: {why}")),
                Refusal::NotYet | Refusal::Short => Refusal::NotYet,
            })?);
        }
        Ok(passes)
    }

    /// The origin for a path: the one that there is, one that nobody uses any more, or a new one.
    fn origin(
        &self,
        state: &mut State,
        owner: &Arc<Owner>,
        server: SocketAddr,
        path: &Path,
    ) -> Result<u32, String> {
        let source = path.route.source;
        let is_it = |origin: &&mut Origin| (origin.server, origin.source) == (server, source);
        if let Some(origin) = state.origins.iter_mut().find(is_it) {
            if !Arc::ptr_eq(&origin.owner, owner) {
                if !origin.owner.is_dropped() {
                    return Err(format!("another listener forwards to {server} already"));
                }
                origin.owner = Arc::clone(owner);
            }
            if origin.device != path.out.index {
                origin.move_to(&self.datapath, path.out.index);
            }
            return Ok(origin.index);
        }
        let is_current = |origin: &Origin| {
            let way = origin.owner.way();
            let open = way.open.as_ref();
            open.is_some_and(|open| open.origin == origin.index)
        };
        let unused = state
            .origins
            .iter()
            .position(|origin| !is_current(origin) && origin.is_empty(&self.datapath));
        let (first_port, most) = own_ports();
        let (index, base, ports) = match unused {
            Some(index) => {
                let former = &state.origins[index];
                self.datapath.unlead(&former.route());
                (index, former.base, most.min(former.ports))
            }
            None => {
                let left = self.datapath.forward_slots().end - state.next_slot;
                (
                    state.origins.len(),
                    state.next_slot,
                    most.min(left).min(MOST_PORTS),
                )
            }
        };
        if ports == 0 || index >= self.datapath.most_origins() {
            return Err("no room is left for another server".into());
        }
        let to = (server, source, path.out.index);
        let ports_of = (first_port, ports);
        let origin = Origin::new(
            &self.datapath,
            index as u32,
            to,
            ports_of,
            base,
            Arc::clone(owner),
        )?;
        match unused {
            Some(index) => state.origins[index] = origin,
            None => {
                state.next_slot += ports;
                state.origins.push(origin);
            }
        }
        Ok(index as u32)
    }

    /// Has new connections of an owner begin with sockets.
    pub(super) fn by_sockets(&self, owner: &Owner, why: &str) {
        let mut way = owner.way();
        way.doubted = None;
        for listener in way.open.iter().flat_map(|open| &open.path.listeners) {
            self.datapath.unlisten(&end_of(*listener));
        }
        if way.open.take().is_some() || way.obstacle.as_deref() != Some(why) {
            tracing::info!(
                "connections to {} begin with sockets: {why}",
                owner.options().server
            );
        }
        way.obstacle = Some(why.into());
    }
}

fn end_of(address: SocketAddr) -> SegmentEnd {
    SegmentEnd {
        address: mapped(address.ip()),
        port: address.port().to_be_bytes(),
        ..SegmentEnd::default()
    }
}
