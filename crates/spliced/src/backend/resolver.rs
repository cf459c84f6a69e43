//! The name servers of /etc/resolv.conf.

use std::path::Path;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ResolveHosts, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::parse_resolv_conf;

use crate::text_file;

pub(super) const PATH: &str = "/etc/resolv.conf";

const MOST_MIB: u64 = 1;

/// Asks them, and never /etc/hosts.
///
/// # Errors
/// Why they are not known, in words.
pub(super) fn new(set: impl FnOnce(&mut ResolverOpts)) -> Result<TokioResolver, String> {
    let text = text_file::read_bytes(Path::new(PATH), MOST_MIB)
        .map_err(|error| format!("{PATH} cannot be read: {error}"))?;
    let resolver = parse_resolv_conf(text).and_then(|(servers, mut options)| {
        options.use_hosts_file = ResolveHosts::Never;
        set(&mut options);
        TokioResolver::builder_with_config(servers, TokioRuntimeProvider::default())
            .with_options(options)
            .build()
    });
    resolver.map_err(|error| format!("{PATH} cannot be used: {error}"))
}

/// Why they have not answered.
pub(super) fn why(error: &NetError) -> String {
    match error {
        // None can be connected to, for whatever reason: the resolver does not tell.
        NetError::NoConnections => format!("no server of {PATH} can be asked"),
        _ => error.to_string(),
    }
}
