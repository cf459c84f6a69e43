//! The same programs between network namespaces with `--engine segment`: the BPF program moves their bytes,
//! and the relay makes no system call for them.

use std::cell::Cell;
use std::net::IpAddr;

use netlab::{Lab, Need, available};

use super::iperf3::{measure, serve};
use super::nginx::{Nginx, load_during};
use super::postgresql::{Cluster, bench, transact};
use super::ssh::Sshd;
use super::{Host, installed};
use crate::patience::until;
use crate::segment::hop::Hop;
use crate::segment::witness::Witness;

/// The bytes that keep iperf3 busy until its connections are spliced.
const BYTES: u64 = 1 << 30;

fn client(lab: &Lab) -> Host<'_> {
    Host {
        namespace: Some(lab.client()),
        ip: IpAddr::V4(Lab::CLIENT_V4),
    }
}

fn server(lab: &Lab) -> Host<'_> {
    Host {
        namespace: Some(lab.server()),
        ip: IpAddr::V4(Lab::SERVER_V4),
    }
}

fn hop(lab: &Lab, target: &str) -> Hop {
    Hop::in_namespace(lab.relay(), &format!("{}:0", Lab::RELAY_V4), target)
}

#[test]
fn iperf3_is_translated_in_both_directions() {
    let Some(iperf3) = installed("iperf3", "iperf3") else {
        return;
    };
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let (_server, target) = serve(&iperf3, &server(&lab));
    let hop = hop(&lab, &target);
    for (round, direction) in [&[][..], &["--reverse"]].into_iter().enumerate() {
        // A control connection and a data connection.
        Witness::of_program(&hop, 2 * round, 2, || {
            measure(&iperf3, &client(&lab), hop.address(), BYTES, direction);
        });
    }
    hop.expect_translated(4);
}

#[test]
fn http_keep_alive_is_translated() {
    const CONNECTIONS: usize = 32;
    /// What they then move at least, far more than before.
    const BYTES: u64 = 64 << 20;
    let Some(wrk) = installed("wrk", "wrk") else {
        return;
    };
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let Some(nginx) = Nginx::start(&server(&lab)) else {
        return;
    };
    let hop = hop(&lab, &nginx.tcp);
    let mut witness = None;
    // How long it takes until all are spliced depends on the machine.
    load_during(&wrk, &client(&lab), hop.address(), CONNECTIONS, || {
        // wrk makes the first connection only to test whether the server listens.
        until("the first has ended", || hop.connections() >= 1);
        witness = Some(Witness::of(&hop, CONNECTIONS));
        let before = hop.translated_bytes();
        until("requests are translated", || {
            hop.translated_bytes() >= before + BYTES
        });
    });
    witness.expect("all were spliced").end();
    hop.expect_translated(1 + CONNECTIONS);
}

#[test]
fn pgbench_is_translated() {
    const CLIENTS: usize = 6;
    let Some(pgbench) = installed("pgbench", "postgresql-contrib") else {
        return;
    };
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let Some(cluster) = Cluster::start(&server(&lab)) else {
        return;
    };
    let hop = hop(&lab, &format!("{}:{}", Lab::SERVER_V4, cluster.port));
    let client = client(&lab);
    let initialize = ["--initialize", "--scale", "1", "--quiet"];
    bench(&pgbench, &client, hop.address(), &initialize);
    // Before it starts, pgbench asks for the size of the tables.
    Witness::of_program(&hop, 1 + 1, CLIENTS, || {
        transact(&pgbench, &client, hop.address(), [CLIENTS as u64, 300], &[]);
    });
    hop.expect_translated(1 + 1 + CLIENTS);
    // One connection for each transaction.
    transact(&pgbench, &client, hop.address(), [6, 30], &["--connect"]);
}

#[test]
fn a_copy_over_ssh_is_translated() {
    let Some(scp) = installed("scp", "openssh-client") else {
        return;
    };
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let Some(sshd) = Sshd::start(&server(&lab)) else {
        return;
    };
    let hop = hop(&lab, &sshd.address);
    let copies = Cell::new(0);
    sshd.copy(&scp, &client(&lab), hop.address(), |copy| {
        Witness::of_program(&hop, copies.get(), 1, copy);
        copies.set(copies.get() + 1);
    });
    hop.expect_translated(2);
}
