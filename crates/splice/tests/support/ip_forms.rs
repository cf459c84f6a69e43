//! Forms in which a TCP segment can come that are not the plain one: with IP options, behind extension headers of IPv6,
//! in fragments, and malformed.

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Of a header without options.
const TCP_BYTES: usize = 20;

pub(crate) const HOP_BY_HOP: u8 = 0;
pub(crate) const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
pub(crate) const DESTINATION: u8 = 60;

/// What a stack whose settings are the default ones does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Taken,
    Discarded,
    /// It depends on how the kernel was built.
    Either,
}

/// A form, and what becomes of packets that have it.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    pub(crate) fate: Fate,
    /// Gives it to a plain packet, which begins with its IP header.
    pub(crate) of: fn(&[u8]) -> Vec<u8>,
}

macro_rules! forms {
    ($($fate:ident $name:literal: $of:expr;)*) => {
        vec![$(Form { name: $name, fate: Fate::$fate, of: $of }),*]
    };
}

/// Those of IPv4 packets that are whole.
pub(crate) fn v4() -> Vec<Form> {
    forms! {
        Taken "NOP": |packet| with_options(packet, &[1; 4]);
        Taken "as many options as there is room for": |packet| with_options(packet, &[1; 40]);
        Taken "END, and more behind it": |packet| with_options(packet, &[0, 7, 7, 7]);
        Taken "an unknown option": |packet| with_options(packet, &[0x9e, 4, 1, 2]);
        Taken "security": |packet| with_options(packet, &[130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        Taken "router alert": |packet| with_options(packet, &[148, 4, 0, 0]);
        Taken "record route": |packet| with_options(packet, &[7, 7, 4, 0, 0, 0, 0, 0]);
        Taken "record route, full": |packet| with_options(packet, &[7, 7, 8, 1, 2, 3, 4, 0]);
        Taken "timestamps": |packet| with_options(packet, &[68, 8, 5, 0, 0, 0, 0, 0]);
        Taken "timestamps with addresses": |packet| with_options(packet, &[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        Taken "timestamps, full": |packet| with_options(packet, &[68, 8, 9, 0xe0, 0, 0, 0, 0]);
        Discarded "an option of no length": |packet| with_options(packet, &[0x9e, 0, 0, 0]);
        Discarded "an option of the length 1": |packet| with_options(packet, &[0x9e, 1, 0, 0]);
        Discarded "an option that is longer than the header": |packet| with_options(packet, &[0x9e, 5, 0, 0]);
        Discarded "an option without a length": |packet| with_options(packet, &[1, 1, 1, 0x9e]);
        Discarded "router alert, too short": |packet| with_options(packet, &[148, 2, 0, 0]);
        Discarded "record route without a pointer": |packet| with_options(packet, &[7, 2, 0, 0]);
        Discarded "record route that points at itself": |packet| with_options(packet, &[7, 7, 3, 0, 0, 0, 0, 0]);
        Discarded "record route with too little room": |packet| with_options(packet, &[7, 7, 5, 0, 0, 0, 0, 0]);
        Discarded "record route, twice": |packet| with_options(packet, &[7, 3, 4, 7, 3, 4, 0, 0]);
        Discarded "timestamps without flags": |packet| with_options(packet, &[68, 3, 5, 0]);
        Discarded "timestamps that point at themselves": |packet| with_options(packet, &[68, 8, 4, 0, 0, 0, 0, 0]);
        Discarded "timestamps with too little room": |packet| with_options(packet, &[68, 8, 6, 0, 0, 0, 0, 0]);
        Discarded "timestamps with room for no address": |packet| with_options(packet, &[68, 8, 5, 1, 0, 0, 0, 0]);
        Discarded "timestamps, twice": |packet| with_options(packet, &[68, 4, 5, 0, 68, 4, 5, 0]);
        Discarded "timestamps that overflow": |packet| with_options(packet, &[68, 8, 9, 0xf0, 0, 0, 0, 0]);
        Discarded "a loose source route": |packet| with_options(packet, &[131, 7, 8, 1, 2, 3, 4, 0]);
        Discarded "a strict source route": |packet| with_options(packet, &[137, 7, 8, 1, 2, 3, 4, 0]);
        Either "a label of nobody's domain (CIPSO)": |packet| with_options(packet, &[134, 10, 0, 0, 9, 9, 1, 4, 0, 0, 0, 0]);
        Discarded "a wrong sum of the header": |packet| with_wrong_sum(packet.to_vec());
        Discarded "options and a wrong sum of the header": |packet| with_wrong_sum(with_options(packet, &[1; 4]));
        Discarded "options and a wrong sum of TCP": |packet| with_wrong_tcp_sum(with_options(packet, &[1; 4]));
        Discarded "a header of 16 bytes": |packet| with_header_words(packet, 4);
        Discarded "no header": |packet| with_header_words(packet, 0);
        Discarded "a header that is longer than the packet": |packet| with_header_words(packet, 15);
        Discarded "options, and another version": |packet| {
            let mut packet = with_options(packet, &[1; 4]);
            packet[0] = 0x56;
            summed_up(packet)
        };
        Discarded "longer than it is": |packet| with_length(packet.to_vec(), 4);
        Discarded "options, and longer than it is": |packet| with_length(with_options(packet, &[1; 4]), 4);
        Discarded "options, and shorter than its headers": |packet| {
            let packet = with_options(packet, &[1; 4]);
            let short = 22 - packet.len() as i32;
            with_length(packet, short)
        };
        Discarded "no length": |packet| with_length(packet.to_vec(), -(packet.len() as i32));
        Discarded "a header of TCP of 16 bytes": |packet| with_tcp_words(packet, 4);
        Discarded "a header of TCP that is longer than the packet": |packet| with_tcp_words(packet, 15);
        Discarded "options, and a header of TCP of 16 bytes": |packet| {
            with_options(&with_tcp_words(packet, 4), &[1; 4])
        };
        Discarded "options, and a header of TCP that is longer than the packet": |packet| {
            with_options(&with_tcp_words(packet, 15), &[1; 4])
        };
        Discarded "options, and a signature that nobody expects": |packet| with_options(&signed(packet), &[1; 4]);
    }
}

/// Those of IPv6 packets that are whole.
pub(crate) fn v6() -> Vec<Form> {
    const PADDING: [u8; 6] = [1, 4, 0, 0, 0, 0];
    const ROUTED: [u8; 6] = [0; 6];
    const WHOLE: [u8; 6] = [0, 0, 0, 0, 0, 9];
    forms! {
        Taken "hop-by-hop options": |packet| behind(packet, &[(HOP_BY_HOP, &PADDING)]);
        Taken "destination options": |packet| behind(packet, &[(DESTINATION, &PADDING)]);
        Taken "both": |packet| behind(packet, &[(HOP_BY_HOP, &PADDING), (DESTINATION, &PADDING)]);
        Taken "a longer header": |packet| behind(packet, &[(DESTINATION, &[30, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])]);
        Taken "six bytes of padding, one by one": |packet| behind(packet, &[(HOP_BY_HOP, &[0; 6])]);
        Taken "an unknown option to be skipped": |packet| behind(packet, &[(DESTINATION, &[0x1e, 4, 1, 2, 3, 4])]);
        Taken "an unknown option of routers": |packet| behind(packet, &[(HOP_BY_HOP, &[0x3e, 4, 1, 2, 3, 4])]);
        Taken "a routing header that is used up": |packet| behind(packet, &[(ROUTING, &ROUTED)]);
        Taken "a fragment that is all": |packet| behind(packet, &[(FRAGMENT, &WHOLE)]);
        Taken "all headers": |packet| {
            behind(packet, &[
                (HOP_BY_HOP, &PADDING),
                (DESTINATION, &PADDING),
                (ROUTING, &ROUTED),
                (FRAGMENT, &WHOLE),
                (DESTINATION, &PADDING),
            ])
        };
        Either "the same header twice": |packet| behind(packet, &[(DESTINATION, &PADDING), (DESTINATION, &PADDING)]);
        Either "several options": |packet| behind(packet, &[(DESTINATION, &[0x1e, 0, 0x1e, 0, 0x1e, 0])]);
        Either "a header of segment routing": |packet| behind(packet, &[(ROUTING, &[4, 0, 0, 0, 0, 0])]);
        Either "a routing header of mobile IPv6": |packet| behind(packet, &[(ROUTING, &[2, 0, 0, 0, 0, 0])]);
        Either "a label of nobody's domain (CALIPSO)": |packet| behind(packet, &[(HOP_BY_HOP, &[7, 4, 0, 0, 0, 9])]);
        Discarded "hop-by-hop options that are not the first": |packet| {
            behind(packet, &[(DESTINATION, &PADDING), (HOP_BY_HOP, &PADDING)])
        };
        Discarded "padding that is not zero": |packet| behind(packet, &[(DESTINATION, &[1, 4, 0, 0, 0, 1])]);
        Discarded "too much padding": |packet| behind(packet, &[(DESTINATION, &[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])]);
        Discarded "too much padding in pieces": |packet| {
            behind(packet, &[(HOP_BY_HOP, &[0, 1, 1, 0, 1, 2, 0, 0, 0x1e, 4, 0, 0, 0, 0])])
        };
        Discarded "an option that is longer than its header": |packet| behind(packet, &[(DESTINATION, &[0x1e, 5, 0, 0, 0, 0])]);
        Discarded "an option without a length": |packet| behind(packet, &[(DESTINATION, &[0x1e, 3, 0, 0, 0, 0x1e])]);
        Discarded "an option to be discarded": |packet| behind(packet, &[(DESTINATION, &[0x5e, 4, 0, 0, 0, 0])]);
        Discarded "an option to be answered": |packet| behind(packet, &[(DESTINATION, &[0x9e, 4, 0, 0, 0, 0])]);
        Discarded "an option of routers to be answered": |packet| behind(packet, &[(HOP_BY_HOP, &[0xde, 4, 0, 0, 0, 0])]);
        Discarded "router alert, too short": |packet| behind(packet, &[(HOP_BY_HOP, &[5, 0, 1, 2, 0, 0])]);
        Discarded "a jumbo payload that is not one": |packet| {
            let length = (packet.len() - IPV6_BYTES + 8) as u8;
            behind(packet, &[(HOP_BY_HOP, &[0xc2, 4, 0, 0, 0, length])])
        };
        Discarded "the same, without another length": |packet| {
            let length = (packet.len() - IPV6_BYTES + 8) as u8;
            let mut packet = behind(packet, &[(HOP_BY_HOP, &[0xc2, 4, 0, 0, 0, length])]);
            packet[4..6].fill(0);
            packet
        };
        Discarded "a routing header with a way to go": |packet| behind(packet, &[(ROUTING, &[0, 1, 0, 0, 0, 0])]);
        Discarded "a fragment of a fragment": |packet| behind(packet, &[(FRAGMENT, &[0, 1, 0, 0, 0, 9]), (FRAGMENT, &WHOLE)]);
        Discarded "a first fragment of an odd length": |packet| {
            behind(&packet[..IPV6_BYTES + 21], &[(FRAGMENT, &[0, 1, 0, 0, 0, 9])])
        };
        Discarded "a first fragment without all of the header of TCP": |packet| {
            behind(&packet[..IPV6_BYTES + 16], &[(FRAGMENT, &[0, 1, 0, 0, 0, 9])])
        };
        Discarded "a header that nobody knows": |packet| behind(packet, &[(139, &PADDING)]);
        Discarded "headers and a wrong sum of TCP": |packet| {
            with_wrong_tcp_sum(behind(packet, &[(DESTINATION, &PADDING)]))
        };
        Discarded "headers, and longer than it is": |packet| with_length(behind(packet, &[(DESTINATION, &PADDING)]), 4);
        Discarded "headers, and shorter than it is": |packet| {
            with_length(behind(packet, &[(DESTINATION, &PADDING)]), -4)
        };
        Discarded "longer than it is": |packet| with_length(packet.to_vec(), 4);
        Discarded "no length": |packet| with_length(packet.to_vec(), IPV6_BYTES as i32 - packet.len() as i32);
        Discarded "a header of TCP of 16 bytes": |packet| with_tcp_words(packet, 4);
        Discarded "a header of TCP that is longer than the packet": |packet| with_tcp_words(packet, 15);
        Discarded "headers, and a header of TCP of 16 bytes": |packet| {
            behind(&with_tcp_words(packet, 4), &[(DESTINATION, &PADDING)])
        };
        Discarded "headers, and a header of TCP that is longer than the packet": |packet| {
            behind(&with_tcp_words(packet, 15), &[(DESTINATION, &PADDING)])
        };
        Discarded "headers, and a signature that nobody expects": |packet| {
            behind(&signed(packet), &[(DESTINATION, &PADDING)])
        };
    }
}

fn is_v4(packet: &[u8]) -> bool {
    packet[0] >> 4 != 6
}

fn ip_bytes(packet: &[u8]) -> usize {
    if is_v4(packet) {
        IPV4_BYTES
    } else {
        IPV6_BYTES
    }
}

/// Puts these into the header of an IPv4 packet that has no options.
pub(crate) fn with_options(packet: &[u8], options: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let mut packet = packet.to_vec();
    packet[0] += (options.len() / 4) as u8;
    let at = IPV4_BYTES;
    packet.splice(at..at, options.iter().copied());
    with_length(packet, 0)
}

/// Puts extension headers before all others of an IPv6 packet: the kind and the content of each.
pub(crate) fn behind(packet: &[u8], headers: &[(u8, &[u8])]) -> Vec<u8> {
    let last = packet[6];
    let mut extension = Vec::new();
    for (index, (kind, content)) in headers.iter().enumerate() {
        assert_eq!((content.len() + 2) % 8, 0);
        let next = headers.get(index + 1).map_or(last, |(kind, _)| *kind);
        // That of a fragment is reserved.
        let length = match *kind {
            FRAGMENT => 0,
            _ => (content.len() / 8) as u8,
        };
        extension.extend([next, length]);
        extension.extend(*content);
    }
    let mut packet = packet.to_vec();
    packet[6] = headers.first().map_or(last, |(kind, _)| *kind);
    let at = IPV6_BYTES;
    packet.splice(at..at, extension);
    with_length(packet, 0)
}

/// A packet as the first fragment of a longer one.
pub(crate) fn first_fragment(packet: &[u8]) -> Vec<u8> {
    if is_v4(packet) {
        let mut packet = packet.to_vec();
        packet[6] |= 0x20;
        return summed_up(packet);
    }
    behind(packet, &[(FRAGMENT, &[0, 1, 0, 0, 0, 7])])
}

/// The packet in fragments, in order; each but the last carries so many bytes, a multiple of 8.
pub(crate) fn in_fragments(packet: &[u8], bytes: usize, id: u16) -> Vec<Vec<u8>> {
    assert_eq!(bytes % 8, 0);
    let (header, rest) = packet.split_at(ip_bytes(packet));
    let pieces = rest.chunks(bytes).enumerate();
    let fragments = pieces.map(|(index, piece)| {
        let offset = (index * bytes) as u16;
        let has_more = index * bytes + piece.len() < rest.len();
        let mut fragment = [header, piece].concat();
        if is_v4(packet) {
            let [high, low] = (offset / 8).to_be_bytes();
            fragment[4..6].copy_from_slice(&id.to_be_bytes());
            fragment[6..8].copy_from_slice(&[high | u8::from(has_more) << 5, low]);
            return with_length(fragment, 0);
        }
        let [high, low] = (offset | u16::from(has_more)).to_be_bytes();
        let [id_high, id_low] = id.to_be_bytes();
        behind(
            &fragment,
            &[(FRAGMENT, &[high, low, 0, 0, id_high, id_low])],
        )
    });
    fragments.collect()
}

/// Says that it is as long as it is, and `more` bytes longer.
fn with_length(mut packet: Vec<u8>, more: i32) -> Vec<u8> {
    let length = (packet.len() as i32 + more) as u16;
    if !is_v4(&packet) {
        packet[4..6].copy_from_slice(&(length - IPV6_BYTES as u16).to_be_bytes());
        return packet;
    }
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    summed_up(packet)
}

/// Gives an IPv4 header its checksum.
fn summed_up(mut packet: Vec<u8>) -> Vec<u8> {
    packet[10..12].fill(0);
    let header = usize::from(packet[0] & 15) * 4;
    let header = header.clamp(IPV4_BYTES, packet.len());
    let sum = !sum(&packet[..header]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn with_wrong_sum(mut packet: Vec<u8>) -> Vec<u8> {
    packet[10] ^= 0x10;
    packet
}

/// The urgent pointer, which counts for nothing else.
fn with_wrong_tcp_sum(mut packet: Vec<u8>) -> Vec<u8> {
    let at = match is_v4(&packet) {
        true => usize::from(packet[0] & 15) * 4,
        // Behind one extension header
        false => IPV6_BYTES + 8,
    };
    packet[at + 18] ^= 0x10;
    packet
}

fn with_header_words(packet: &[u8], words: u8) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[0] = 0x40 | words;
    summed_up(packet)
}

/// A plain packet whose segment says that its header has so many words. The checksum is right.
fn with_tcp_words(packet: &[u8], words: u8) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let at = ip_bytes(&packet);
    let [mut high, low] = [packet[at + 12], packet[at + 13]];
    let before = u16::from_be_bytes([high, low]);
    high = words << 4 | high & 15;
    packet[at + 12] = high;
    change_tcp_sum(&mut packet[at..], before, u16::from_be_bytes([high, low]));
    packet
}

/// A plain packet with a signature of TCP-MD5 (RFC 2385).
fn signed(packet: &[u8]) -> Vec<u8> {
    let mut signature = [7; 20];
    signature[..4].copy_from_slice(&[1, 1, 19, 18]);
    with_tcp_options(packet, &signature)
}

/// A plain packet with these before the other options of its segment. The checksum is right.
pub(crate) fn with_tcp_options(packet: &[u8], options: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let at = ip_bytes(packet);
    let words = (packet[at + 12] >> 4) + (options.len() / 4) as u8;
    let mut packet = with_tcp_words(packet, words);
    let length = (packet.len() - at) as u16;
    // Of the pseudo-header.
    change_tcp_sum(&mut packet[at..], length, length + options.len() as u16);
    for pair in options.as_chunks::<2>().0 {
        change_tcp_sum(&mut packet[at..], 0, u16::from_be_bytes(*pair));
    }
    let options_at = at + TCP_BYTES;
    packet.splice(options_at..options_at, options.iter().copied());
    with_length(packet, 0)
}

/// A word of the segment, or of its pseudo-header, changes (RFC 1624).
fn change_tcp_sum(segment: &mut [u8], before: u16, after: u16) {
    let sum = u16::from_be_bytes([segment[16], segment[17]]);
    let sum = !folded(u32::from(!sum) + u32::from(!before) + u32::from(after));
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
}

/// RFC 1071.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    folded(words.map(u32::from).sum())
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
