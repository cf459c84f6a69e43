//! Devices that come and go.

use super::coexistence::{FOREIGN_TC, index_of};
use super::*;
use splice_bpf::Opened;

/// A device that did not exist may exist later.
#[test]
fn a_device_that_was_refused_is_asked_for_again() {
    const INDEX: u32 = 77;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let datapath = datapath_in(&lab);
    let attached = || {
        let attached = lab.relay().enter(|| datapath.attach_beside(INDEX));
        attached.expect("entered")
    };
    netlab::until("it is refused", || matches!(attached(), Some(Err(_))));
    let add = format!("link add late index {INDEX} type veth peer name other");
    run(lab.relay(), "ip", &add);
    netlab::until("the program is attached", || attached() == Some(Ok(())));
}

fn has_the_index_of_another(way: AttachMode) {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let datapath = datapath_in(&lab);
    if way == AttachMode::Clsact {
        datapath.attach_by_clsact();
    }
    let (client, server, handle) = spliced_across(&lab, &splicer);
    drop((client, server));
    ended(&handle);
    let [relay, server] = [lab.relay(), lab.server()];
    let index = index_of(relay, Lab::TO_SERVER);
    run(relay, "ip", &format!("link del {}", Lab::TO_SERVER));
    let add = format!(
        "link add {} index {index} type veth peer name {} netns {}",
        Lab::TO_SERVER,
        Lab::TO_RELAY,
        server.name()
    );
    run(relay, "ip", &add);
    for (namespace, device, address) in [
        (relay, Lab::TO_SERVER, Lab::RELAY_FAR_V4),
        (server, Lab::TO_RELAY, Lab::SERVER_V4),
    ] {
        let add = format!("address add {address}/24 dev {device}");
        run(namespace, "ip", &add);
        run(namespace, "ip", &format!("link set {device} up"));
    }
    assert_eq!(index_of(relay, Lab::TO_SERVER), index);
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let proof = Proof::begin(&lab, &splicer, &handle);
    exchange(&client, &server, 1 << 20, seed());
    ended(&handle);
    proof.end(2 << 20);
}

#[test]
fn a_device_that_has_the_index_of_another_is_not_taken_for_it() {
    has_the_index_of_another(AttachMode::Tcx);
}

#[test]
fn a_device_whose_qdisc_has_gone_is_attached_again() {
    has_the_index_of_another(AttachMode::Clsact);
}

/// Another thread checks whether the program is still attached to a device, since that may wait for a load.
#[test]
fn no_loop_waits_for_a_load_to_ask_for_a_device() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let datapath = datapath_in(&lab);
    datapath.attach_by_clsact();
    let (unseen, beside) = (Connected::across(&lab), Connected::across(&lab));
    prepare(&splicer);
    let copied = Options {
        engine: EngineChoice::Only(EngineName::Copy),
        ..Options::default()
    };
    let (client, server, _handle) = beside.join(&splicer, &copied);
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    let (loads, loading) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let other = thread::spawn(move || {
        let adjust = |_: &mut Opened| {
            loads.send(()).expect("awaited");
            // Until the sender is dropped.
            let _ = finished.recv();
            Ok(())
        };
        load("foreign_tc", FOREIGN_TC, adjust).map(drop)
    });
    loading.recv().expect("it loads");
    let at_once = Options {
        segment_after: Some(Duration::ZERO),
        ..Options::default()
    };
    // No segment was seen, so another thread checks the devices.
    datapath.doubt_all();
    let pair = unseen.join(&splicer, &at_once);
    netlab::until("a device is asked for", || {
        ping(&client, &server);
        datapath.is_asking()
    });
    ping(&client, &server);
    assert!(datapath.is_asking());
    drop(finish);
    other.join().expect("no panic").expect("loaded");
    netlab::until("the pair is taken", || pair.2.is_taken());
}

/// Also where another has the inode of one that is gone: see `PerNamespace`.
#[test]
fn a_datapath_serves_one_namespace_only() {
    if !available(Need::Root) {
        return;
    }
    let datapath_of = |namespace: &Namespace| {
        let datapath = namespace.enter(Datapath::here);
        datapath.expect("entered").expect("a datapath")
    };
    let [here, there] = [(); 2].map(|()| Namespace::new("twice").expect("a namespace"));
    let [once, twice] = [datapath_of(&here), datapath_of(&here)];
    assert!(Arc::ptr_eq(&once, &twice));
    assert!(!Arc::ptr_eq(&once, &datapath_of(&there)));
}
