//! The same rules in the kernel: a test opens a connection and loads the rules, whose counters show which
//! of them its segments matched.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use netlab::{Namespace, PATIENCE};
use rustix::net::{AddressFamily, SocketType};

use super::cases::{BOTH, Case, IPV4, IPV6};
use crate::known::Answer::{self, Maybe, No, Yes};
use crate::legacy::fixture::{connection, namespace, restore};
use crate::segment::{End, Family};

#[test]
fn the_kernel_gives_the_same_answers_for_ipv4() {
    compare(Family::Ipv4, IPV4);
}

#[test]
fn the_kernel_gives_the_same_answers_for_ipv6() {
    compare(Family::Ipv6, IPV6);
}

fn compare(family: Family, more: &[Case]) {
    let (Some(here), Some(there)) = (namespace(), namespace()) else {
        return;
    };
    join(&here, &there, family);
    // Connection tracking starts with the first rule that needs it.
    let track = "*filter\n-A INPUT -m conntrack --ctstate ESTABLISHED\nCOMMIT\n";
    restore(&here, family, track);
    let (mut local, mut peer) = connect(&here, &there, family);

    let cases = || BOTH.iter().chain(more);
    let mut text = String::from("*mangle\n:IN -\n:OUT -\n");
    let mut expected = Vec::new();
    for (options, inbound, outbound) in cases() {
        // The kernel rejects some options in a chain that OUTPUT jumps to.
        let only_inbound = options.contains("--dir in") || options.contains("--limit-iface-in");
        for (chain, answer, is_possible) in
            [("IN", inbound, true), ("OUT", outbound, !only_inbound)]
        {
            if *answer != Maybe && is_possible {
                writeln!(text, "-A {chain} {options}").unwrap();
                expected.push((chain, *options, *answer));
            }
        }
    }
    text += "-A PREROUTING -p tcp -j IN\n-A OUTPUT -p tcp -j OUT\nCOMMIT\n";
    restore(&here, family, &text);
    // Both chains, in the order of the listing.
    expected.sort_by_key(|(chain, ..)| *chain);

    for end in [&mut peer, &mut local] {
        end.write_all(b"to the other end").unwrap();
    }
    for end in [&mut peer, &mut local] {
        end.read_exact(&mut [0; 16]).unwrap();
    }
    // A last ACK may be in flight, and some rules may have counted it.
    let mut last = Vec::new();
    netlab::until("the kernel's counters agree (the others are above)", || {
        let wrong = differences(&expected, &counters(&here, family));
        if wrong != last {
            println!("{wrong:#?}");
        }
        last = wrong;
        last.is_empty()
    });
    assert!(expected.iter().any(|(.., answer)| *answer == No));
}

/// Which rules matched other packets than they should: the chain, the options and the answer of each,
/// and how many packets it matched.
fn differences(expected: &[(&str, &str, Answer)], counted: &[(&str, u64)]) -> Vec<String> {
    assert_eq!(counted.len(), expected.len());
    let mut wrong = Vec::new();
    for ((chain, options, answer), (its_chain, count)) in expected.iter().zip(counted) {
        assert_eq!(chain, its_chain);
        // The first rule of each chain matches everything.
        let (_, all) = counted.iter().find(|(name, _)| name == chain).unwrap();
        let wanted = if *answer == Yes { *all } else { 0 };
        if *all == 0 || *count != wanted {
            wrong.push(format!("{chain} {options}: {count} of {all}"));
        }
    }
    wrong
}

/// A wire between two namespaces with the addresses of [`connection`].
fn join(here: &Namespace, there: &Namespace, family: Family) {
    let ends = connection(family);
    let [local, peer] = [ends.local, ends.peer].map(|end| end.address.unwrap().to_string());
    let ip = |namespace: &Namespace, arguments: &str| {
        let mut command = namespace.command(netlab::program("ip").unwrap().to_str().unwrap());
        let output = command.args(arguments.split(' ')).output().unwrap();
        assert!(
            output.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    ip(
        here,
        &format!(
            "link add eth0 type veth peer name eth0 netns {}",
            there.name()
        ),
    );
    for (namespace, own, other) in [(here, &local, &peer), (there, &peer, &local)] {
        ip(
            namespace,
            match family {
                Family::Ipv4 => "link set eth0 up",
                Family::Ipv6 => "link set eth0 up addrgenmode none",
            },
        );
        let (length, nodad) = match family {
            Family::Ipv4 => (32, ""),
            Family::Ipv6 => (128, " nodad"),
        };
        ip(
            namespace,
            &format!("address add {own}/{length} dev eth0{nodad}"),
        );
        ip(namespace, &format!("route add {other}/{length} dev eth0"));
    }
}

/// Opens [`connection`], and returns both its ends.
fn connect(here: &Namespace, there: &Namespace, family: Family) -> (TcpStream, TcpStream) {
    let ends = connection(family);
    let address = |end: End| SocketAddr::new(end.address.unwrap(), end.port.unwrap());
    let (local, peer) = (address(ends.local), address(ends.peer));
    let listener = here.enter(|| TcpListener::bind(local)).unwrap().unwrap();
    let peer = there
        .enter(|| -> rustix::io::Result<OwnedFd> {
            let family = match family {
                Family::Ipv4 => AddressFamily::INET,
                Family::Ipv6 => AddressFamily::INET6,
            };
            let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
            rustix::net::bind(&socket, &peer)?;
            rustix::net::connect(&socket, &local)?;
            Ok(socket)
        })
        .unwrap()
        .unwrap();
    let (local, _) = listener.accept().unwrap();
    let peer = TcpStream::from(peer);
    for end in [&local, &peer] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (local, peer)
}

/// How many packets each rule of the chains IN and OUT matched.
fn counters(namespace: &Namespace, family: Family) -> Vec<(&'static str, u64)> {
    let program = match family {
        Family::Ipv4 => "iptables-legacy-save",
        Family::Ipv6 => "ip6tables-legacy-save",
    };
    let mut command = namespace.command(netlab::program(program).unwrap().to_str().unwrap());
    let output = command.args(["-c", "-t", "mangle"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut counters = Vec::new();
    for line in text.lines() {
        // [packets:bytes] -A CHAIN OPTIONS
        let Some((count, rule)) = line.strip_prefix('[').and_then(|line| line.split_once(':'))
        else {
            continue;
        };
        for chain in ["IN", "OUT"] {
            if rule.contains(&format!("] -A {chain} ")) || rule.ends_with(&format!("] -A {chain}"))
            {
                counters.push((chain, count.parse().unwrap()));
            }
        }
    }
    counters
}
