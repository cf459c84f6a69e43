//! The destinations that SOCKS and CONNECT clients may reach, as a configuration writes them.

use splice_route::{DestinationHosts, DestinationRule};

/// `HOSTS:PORTS`, such as `public:443`, `*.example.org:443`, `10.0.0.0/8:*` or `[2001:db8::]/32:80-90`.
pub(super) fn parse(text: &str) -> Result<DestinationRule, String> {
    let (hosts, ports) = text
        .rsplit_once(':')
        .ok_or("the ports are missing; write *.example.org:443, or :* for every port")?;
    let hosts = if hosts == "public" {
        DestinationHosts::Public
    } else if let Ok(prefix) = hosts.replace(['[', ']'], "").parse() {
        DestinationHosts::Addresses(prefix)
    } else {
        DestinationHosts::Named(hosts.parse().map_err(|error| format!("{error}"))?)
    };
    let number = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("write a port, a range such as 80-90, or * for every port"),
    };
    let ports = match ports.split_once('-') {
        None if ports == "*" => (1, u16::MAX),
        None => (number(ports)?, number(ports)?),
        Some((from, to)) => (number(from)?, number(to)?),
    };
    Ok(DestinationRule { hosts, ports })
}
