//! What becomes of passes when the filters change.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Wake;

use netlab::{Namespace, Need, available};

use super::*;

struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Rules that are loaded while they are read seem to be unreadable, or not to account for all hooks.
#[test]
fn a_pass_is_revoked_only_if_the_second_look_fails_as_well() {
    if !available(Need::Bpf) || !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("passes").expect("a namespace");
    let passes = || {
        let firewall = Firewall::watch(Box::new(|_| Ok(None)), Box::new(|| ())).expect("watched");
        let woken = Arc::new(Woken(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&woken));
        let connections = [Family::Ipv4, Family::Ipv6].map(Connection::any);
        let by_groups = Box::new(|| None);
        let pass = firewall.admit(connections, |_| {}, by_groups, waker, &mut None);
        let pass = pass.expect("there are no rules");
        let readable = firewall.snapshot().filters.clone();
        let change =
            |filters| firewall.change(Snapshot::new(filters, HashMap::new()), Instant::now());
        let unreadable = || change(Err("they change too fast".into()));

        assert!(unreadable().is_unsettled);
        assert_eq!(pass.state(), PassState::Unsettled);
        assert!(!change(readable.clone()).is_unsettled);
        assert_eq!(pass.state(), PassState::Admitted);

        assert!(unreadable().is_unsettled);
        let last = unreadable();
        assert_eq!((last.is_unsettled, last.revoked), (false, 1));
        let revoked = PassState::Revoked("they change too fast".into());
        assert_eq!(pass.state(), revoked);
        assert_eq!(woken.0.load(Relaxed), 1);
        // It is on its way back.
        assert_eq!(change(readable).revoked, 0);
        assert_eq!(pass.state(), revoked);
        let weak: Weak<_> = Arc::downgrade(&firewall);
        drop((pass, firewall));
        netlab::until("the thread has let go of it", || weak.upgrade().is_none());
    };
    namespace.enter(passes).expect("entered");
}

/// What has happened is told, and the packet filters are not blamed.
#[test]
fn a_pass_for_a_device_that_leaves_is_lost() {
    if !available(Need::Root) {
        return;
    }
    let [here, there] = [(); 2].map(|()| Namespace::new("leaves").expect("a namespace"));
    let ip = |arguments: &str| {
        let run = here.command("ip").args(arguments.split(' ')).status();
        assert!(run.expect("ip runs").success(), "{arguments}");
    };
    ip("link add leaving type veth peer name staying");
    let passes = || {
        let firewall = Firewall::watch(Box::new(|_| Ok(None)), Box::new(|| ())).expect("watched");
        let socket = namespace_socket().expect("a socket");
        let index = rustix::net::netdevice::name_to_index(&socket, "leaving").expect("its index");
        let device = firewall.device(&socket, index, 1);
        let connections = [Family::Ipv4, Family::Ipv6].map(|family| Connection {
            device: device.clone(),
            ..Connection::any(family)
        });
        let waker = Waker::noop().clone();
        let pass = firewall.admit(connections, |_| {}, Box::new(|| None), waker, &mut None);
        let pass = pass.expect("there are no rules");
        ip(&format!("link set leaving netns {}", there.name()));
        let gone = PassState::Gone("device leaving is gone".into());
        netlab::until("it is lost", || pass.state() == gone);
    };
    here.enter(passes).expect("entered");
}

/// Its index may be that of another one by now.
#[test]
fn what_came_on_a_device_that_is_gone_is_forgotten() {
    const DEVICE: u32 = 7;
    let there: Behind = Box::new(|_| Ok(None));
    let gone: Behind = Box::new(|_| Err(DeviceGone));
    let filtered: Behind = Box::new(|_| Ok(Some("has a filter".into())));
    let snapshot = Snapshot::new(Err("unread".into()), HashMap::new());
    assert_eq!(snapshot.behind(DEVICE, &gone), Err(DeviceGone));
    assert_eq!(snapshot.behind(DEVICE, &there), Ok(None));
    assert_eq!(snapshot.behind(DEVICE, &filtered), Ok(None));
    assert_eq!(snapshot.look_behind(&gone), HashMap::new());
    let found = snapshot.behind(DEVICE, &filtered);
    assert_eq!(found, Ok(Some("has a filter".into())));
}
