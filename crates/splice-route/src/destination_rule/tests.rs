use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

fn rule(text: &str) -> DestinationRule {
    text.parse().expect(text)
}

fn asked(text: &str) -> Destination {
    let (host, port) = text.rsplit_once(':').expect(text);
    let host = Host::parse(host.as_bytes()).expect(text);
    let port = port.parse().expect(text);
    Destination { host, port }
}

#[test]
fn rules() {
    let prefix = |text: &str| DestinationHosts::Addresses(text.parse().expect(text));
    let name = |text: &str| DestinationHosts::Named(text.parse().expect(text));
    for (text, hosts, ports) in [
        ("public:443", DestinationHosts::Public, (443, 443)),
        ("public:*", DestinationHosts::Public, (1, 65535)),
        ("*.example.org:443", name("*.example.org"), (443, 443)),
        ("example.org:80-90", name("example.org"), (80, 90)),
        ("localhost:1", name("localhost"), (1, 1)),
        ("10.0.0.0/8:1-1024", prefix("10.0.0.0/8"), (1, 1024)),
        ("10.0.0.1:*", prefix("10.0.0.1"), (1, 65535)),
        ("[2001:db8::]/32:443", prefix("2001:db8::/32"), (443, 443)),
        ("[2001:db8::/32]:443", prefix("2001:db8::/32"), (443, 443)),
        ("[2001:db8::1]:443", prefix("2001:db8::1"), (443, 443)),
        ("[::]/0:443", prefix("::/0"), (443, 443)),
    ] {
        assert_eq!(rule(text), DestinationRule { hosts, ports });
    }
}

#[test]
fn texts_that_are_no_rules() {
    for text in [
        "",
        ":443",
        "*:443",
        "public",
        "example.org",
        "example.org:",
        "example.org:0",
        "example.org:+1",
        "example.org:65536",
        "example.org:90-80",
        "example.org:80-",
        "example.org:-80",
        "example.org:80-90-100",
        "example.org:http",
        "example.org:80,443",
        "2001:db8::/32:443",
        "2001:db8::1:443",
        "[2001:db8::/32]",
        "[2001:db8::/32]/32:443",
        "[2001:db8::/129]:443",
        "[10.0.0.0/8]:443",
        "[2001:db8::]/32",
        "[2001:db8::1]",
        "[2001:db8::1]/32:443",
        "[10.0.0.0]/8:443",
        "[example.org]:443",
        "[2001:db8::]x:443",
        "10.0.0.1/8:443",
        "10.0.0.256:443",
        "10.0.0:443",
        "10.0.0.0/33:443",
        "example.org/8:443",
        "[::ffff:10.0.0.1]:443",
    ] {
        let parsed = text.parse::<DestinationRule>();
        assert!(parsed.is_err(), "{text}: {parsed:?}");
    }
}

#[test]
fn the_resolved_address_decides() {
    let all = "0.0.0.0/0:* [::]/0:*";
    let far = "93.184.216.34";
    for (rules, destination, resolved, allowed) in [
        ("", "a.example.org:443", far, false),
        ("public:443", "a.example.org:443", far, true),
        ("public:443", "a.example.org:80", far, false),
        ("public:*", "a.example.org:0", far, false),
        ("public:1-1024", "93.184.216.34:1024", far, true),
        ("public:1-1024", "93.184.216.34:1025", far, false),
        ("public:443", "a.example.org:443", "2606:4700::1", true),
        ("*.example.org:443", "a.example.org:443", far, true),
        ("*.example.org:443", "example.org:443", far, false),
        ("*.example.org:443", "example.net:443", far, false),
        // Whoever asks for an address has not asked for a name.
        ("*.example.org:443", "93.184.216.34:443", far, false),
        ("93.184.216.0/24:443", "93.184.216.34:443", far, true),
        ("93.184.216.0/24:443", "a.example.org:443", far, true),
        (
            "93.184.216.0/24:443",
            "a.example.org:443",
            "93.184.217.1",
            false,
        ),
        (all, "a.example.org:443", far, true),
        // Names and wide prefixes do not open what is not public.
        ("public:*", "a.example.org:443", "10.0.0.1", false),
        ("*.example.org:*", "a.example.org:443", "10.0.0.1", false),
        ("localhost:*", "localhost:443", "127.0.0.1", false),
        (all, "a.example.org:443", "10.0.0.1", false),
        (all, "a.example.org:443", "fd00::1", false),
        ("10.0.0.0/8:*", "a.example.org:443", "10.0.0.1", true),
        ("10.1.0.0/16:*", "10.1.0.1:443", "10.1.0.1", true),
        ("10.1.0.0/16:*", "10.2.0.1:443", "10.2.0.1", false),
        ("10.0.0.0/7:*", "10.2.0.1:443", "10.2.0.1", false),
        ("[fd00::]/8:*", "a.example.org:443", "fd00::1", true),
        // The port has to be right for the rule that names the range.
        (
            "10.0.0.0/8:80 public:443",
            "10.0.0.1:443",
            "10.0.0.1",
            false,
        ),
        ("127.0.0.0/8:*", "localhost:443", "127.0.0.1", true),
        ("127.0.0.1:*", "localhost:443", "127.0.0.2", false),
        ("169.254.0.0/16:*", "169.254.1.1:80", "169.254.1.1", true),
        // Metadata has to be named alone.
        (
            "169.254.0.0/16:*",
            "169.254.169.254:80",
            "169.254.169.254",
            false,
        ),
        (
            "169.254.169.254:*",
            "169.254.169.254:80",
            "169.254.169.254",
            true,
        ),
        ("[fd00::]/8:*", "a.example.org:80", "fd00:ec2::254", false),
        (
            "100.64.0.0/10:*",
            "a.example.org:80",
            "100.100.100.200",
            false,
        ),
        ("public:*", "a.example.org:80", "168.63.129.16", false),
        // IPv4 addresses within IPv6 ones.
        ("public:*", "a.example.org:80", "::ffff:93.184.216.34", true),
        ("public:*", "a.example.org:80", "64:ff9b::5db8:d822", true),
        (
            "93.184.216.0/24:*",
            "a.example.org:80",
            "64:ff9b::5db8:d822",
            true,
        ),
        ("10.0.0.0/8:*", "a.example.org:80", "64:ff9b::a00:1", true),
        (
            "[64:ff9b::]/96:*",
            "a.example.org:80",
            "64:ff9b::5db8:d822",
            true,
        ),
        ("[::]/0:*", "a.example.org:80", "64:ff9b::5db8:d822", true),
        (
            "[64:ff9b::]/96:*",
            "a.example.org:80",
            "64:ff9b::a00:1",
            false,
        ),
        (
            "[64:ff9b::]/96:*",
            "a.example.org:80",
            "64:ff9b::5db8:d863",
            false,
        ),
        (
            "[64:ff9b::]/96:80",
            "a.example.org:81",
            "64:ff9b::5db8:d822",
            false,
        ),
        (
            "[2002::]/16:*",
            "a.example.org:80",
            "2002:5db8:d822::1",
            true,
        ),
        ("[2002::]/16:*", "a.example.org:80", "2002:a00:1::1", false),
        (
            "[2002::]/16:* 10.0.0.0/8:*",
            "a.example.org:80",
            "2002:a00:1::1",
            true,
        ),
        // This host's.
        ("public:*", "a.example.org:80", "93.184.216.99", false),
        (
            "93.184.216.0/24:*",
            "a.example.org:80",
            "93.184.216.99",
            false,
        ),
        ("93.184.216.99:*", "a.example.org:80", "93.184.216.99", true),
        ("public:*", "a.example.org:80", "64:ff9b::5db8:d863", false),
        ("public:*", "a.example.org:80", "2606:4700::99", false),
        (
            "[2606:4700::99]:*",
            "a.example.org:80",
            "2606:4700::99",
            true,
        ),
    ] {
        let parsed: Vec<_> = rules.split_whitespace().map(rule).collect();
        let own = ["93.184.216.99", "2606:4700::99", "127.0.0.1"];
        let is_own = |address: IpAddr| Some(own.contains(&&*address.to_string()));
        let address = resolved.parse().expect(resolved);
        let permitted = permits(&parsed, &asked(destination), address, is_own);
        let case = format!("{rules} {destination} {resolved}: {permitted:?}");
        assert_eq!(permitted.is_ok(), allowed, "{case}");
    }
}

#[test]
fn special_addresses_are_not_public() {
    let rules = ["public:*", "example.org:*", "0.0.0.0/0:*", "[::]/0:*"].map(rule);
    for (address, why) in [
        ("0.0.0.0", "an unspecified address"),
        ("0.1.2.3", "an unspecified address"),
        ("10.255.255.255", "a private address"),
        ("100.64.0.1", "a private address"),
        ("100.100.100.200", "an address of cloud metadata"),
        ("127.0.0.1", "a loopback address"),
        ("127.255.255.255", "a loopback address"),
        ("168.63.129.16", "an address of cloud metadata"),
        ("169.254.0.1", "a link-local address"),
        ("169.254.169.254", "an address of cloud metadata"),
        ("169.254.170.2", "an address of cloud metadata"),
        ("169.254.42.42", "an address of cloud metadata"),
        ("172.16.0.1", "a private address"),
        ("172.31.255.255", "a private address"),
        ("192.0.0.192", "a reserved address"),
        ("192.0.2.1", "an address for documentation"),
        ("192.88.99.1", "an address of a transition mechanism"),
        ("192.168.0.1", "a private address"),
        ("198.19.255.255", "an address for benchmarks"),
        ("198.51.100.1", "an address for documentation"),
        ("203.0.113.1", "an address for documentation"),
        ("224.0.0.1", "a multicast address"),
        ("239.255.255.255", "a multicast address"),
        ("240.0.0.1", "a reserved address"),
        ("255.255.255.255", "the broadcast address"),
        ("::", "an unspecified address"),
        ("::1", "a loopback address"),
        ("::2", "a reserved address"),
        ("::ffff:127.0.0.1", "a loopback address"),
        ("::ffff:a9fe:a9fe", "an address of cloud metadata"),
        ("::127.0.0.1", "a reserved address"),
        ("::ffff:0:127.0.0.1", "a reserved address"),
        ("64:ff9b::7f00:1", "a loopback address"),
        ("64:ff9b::169.254.169.254", "an address of cloud metadata"),
        ("64:ff9b::", "an unspecified address"),
        ("64:ff9b:1::1", "an address of a transition mechanism"),
        ("100::1", "a reserved address"),
        ("2001::1", "an address of a transition mechanism"),
        ("2001:2::1", "an address for benchmarks"),
        ("2001:1ff::1", "a reserved address"),
        ("2001:db8::1", "an address for documentation"),
        ("2002:7f00:1::1", "an address of a transition mechanism"),
        ("3fff::1", "an address for documentation"),
        ("4000::1", "a reserved address"),
        ("5f00::1", "a reserved address"),
        ("a000::1", "a reserved address"),
        ("fc00::1", "a private address"),
        ("fd00:ec2::254", "an address of cloud metadata"),
        ("fd20:ce::254", "an address of cloud metadata"),
        ("fe80::1", "a link-local address"),
        ("febf::1", "a link-local address"),
        ("fec0::1", "a private address"),
        ("ff02::1", "a multicast address"),
    ] {
        let resolved: IpAddr = address.parse().expect(address);
        let by_address = Destination {
            host: Host::Address(resolved),
            port: 80,
        };
        for asked in [by_address, asked("example.org:80")] {
            let Err(Denied::NotPublic { kind, .. }) =
                permits(&rules, &asked, resolved, |_| Some(false))
            else {
                panic!("{address} is public");
            };
            assert_eq!(kind, why, "{address}");
        }
    }
    for address in [
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.1",
        "100.63.255.255",
        "100.128.0.1",
        "128.0.0.1",
        "168.63.129.17",
        "169.253.255.255",
        "172.15.255.255",
        "172.32.0.1",
        "192.0.1.1",
        "192.167.255.255",
        "198.17.255.255",
        "198.20.0.1",
        "223.255.255.255",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2606:4700::1111",
        "3ffe::1",
    ] {
        let resolved = address.parse().expect(address);
        let permitted = permits(&rules, &asked("example.org:80"), resolved, |_| Some(false));
        assert_eq!(permitted, Ok(()), "{address}");
    }
}

#[test]
fn an_address_that_may_be_this_hosts_is_refused_as_if_it_were() {
    for (rules, address, allowed) in [
        ("public:*", "1.1.1.1", false),
        ("1.1.1.0/24:*", "1.1.1.1", false),
        ("1.1.1.1:*", "1.1.1.1", true),
        ("10.0.0.0/8:*", "10.0.0.1", false),
        ("public:*", "64:ff9b::1.1.1.1", false),
        ("127.0.0.0/8:*", "127.0.0.1", true),
    ] {
        let rules = [rule(rules)];
        let resolved = address.parse().expect(address);
        let permitted = permits(&rules, &asked("a:80"), resolved, |_| None);
        assert_eq!(permitted.is_ok(), allowed, "{address}: {permitted:?}");
    }
}

#[test]
fn denials_say_why() {
    let denied = |address: &str| {
        let resolved = address.parse().expect(address);
        let own = |it: IpAddr| Some(it.to_string() == "1.1.1.1");
        permits(&[rule("2.2.2.2:80")], &asked("a:80"), resolved, own).map_err(|it| it.to_string())
    };
    for (address, why) in [
        ("3.3.3.3", "no rule allows it"),
        (
            "1.1.1.1",
            "1.1.1.1 is an address of this host, and no rule allows just that",
        ),
        (
            "::ffff:127.0.0.1",
            "127.0.0.1 is a loopback address, and no rule allows 127.0.0.0/8 or a part of it",
        ),
        (
            "169.254.169.254",
            "169.254.169.254 is an address of cloud metadata, and no rule allows just that",
        ),
    ] {
        assert_eq!(denied(address), Err(why.to_owned()));
    }
}

proptest! {
    #[test]
    fn an_address_in_another_form_is_never_more_public(bits: u32) {
        let plain = Ipv4Addr::from(bits);
        let [a, b, c, d] = plain.octets();
        let is_public = |address: IpAddr| {
            permits(&[rule("public:*")], &asked("a.example.org:80"), address, |_| Some(false)).is_ok()
        };
        let nat64 = Ipv6Addr::from(0x64_ff9b << 96 | u128::from(bits));
        let six_to_four = Ipv6Addr::from([0x20, 2, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let expected = is_public(plain.into());
        prop_assert_eq!(is_public(plain.to_ipv6_mapped().into()), expected);
        prop_assert_eq!(is_public(nat64.into()), expected);
        prop_assert!(!is_public(six_to_four.into()) || expected);
    }
}
