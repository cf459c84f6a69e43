//! Packets whose checksum the device has computed (CHECKSUM_COMPLETE): the sum has to match what they become.

use rustix::io::Errno;

use super::forged_segments::forged;
use super::frame::take_frames;
use super::*;

const REDIRECT: i32 = 7;
const ACK: u8 = 16;

/// How many packets, each with its own sequence number.
const PACKETS: u32 = 64;

fn summed_up_packets_stay_so(connect: fn(&Lab) -> Connected) {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    take_frames(&lab);
    let splicer = splicer_in(lab.relay());
    let (client, server, _handle) = spliced(&lab, &splicer, connect(&lab));
    let datapath = datapath_in(&lab);
    let device = devices(lab.relay())[0];
    let (from, to) = (client.local_addr(), client.peer_addr());
    let (from, to) = (from.expect("an address"), to.expect("an address"));
    let server_ip = match server.local_addr().expect("an address").ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    // The second byte of an IP header has these two bits.
    let congestion = if from.is_ipv6() { 0x30 } else { 0x03 };
    for number in 0..PACKETS {
        let mut packet = forged(from, to, number, ACK);
        packet[15] |= congestion;
        let fed = lab
            .relay()
            .enter(|| datapath.feed_summed_up(device, &packet))
            .expect("entered");
        let unknown = fed == Err(Errno::INVAL);
        if !netlab::present(
            "checksum-complete",
            unknown.then(|| "no test run sums up".into()),
        ) {
            return;
        }
        let (verdict, became) = fed.unwrap_or_else(|errno| panic!("packet {number}: {errno}"));
        assert_eq!(verdict, REDIRECT);
        assert!(
            became.windows(server_ip.len()).any(|ip| ip == server_ip),
            "it was not translated: {became:?}"
        );
        assert_eq!(became[15] & congestion, 0);
    }
}

#[test]
fn over_ipv4() {
    summed_up_packets_stay_so(Connected::across);
}

#[test]
fn over_ipv6() {
    summed_up_packets_stay_so(Connected::across_v6);
}
