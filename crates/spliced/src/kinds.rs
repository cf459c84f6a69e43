//! Which kinds of sockets a relay joins, and which it cannot.

use std::sync::Arc;

use anyhow::Result;
use splice::{Address, EngineChoice, EngineName, SocketName};

use crate::cli::RelayArgs;
use crate::plan::{
    Action, BackendPlan, CONNECT_TIMEOUT, DatagramListenerPlan, DatagramTerms, ListenerPlan,
    NO_MACHINE, OnRemove, Plan, RoutePlan, ServerAddress, datagram_address,
};
use crate::refusal::WrongUsage;

/// What `spliced relay` is to do, by the kinds of its sockets.
///
/// # Errors
/// If the two kinds do not fit, or an option belongs to another kind.
pub(crate) fn plan(args: RelayArgs) -> Result<Plan> {
    args.access_log.check().or_else(refuse)?;
    match (args.listen.clone(), args.target.clone()) {
        (SocketName::Connected(near), SocketName::Connected(far))
            if near.keeps_messages() == far.keeps_messages() =>
        {
            refuse_those_of_datagrams(&args)?;
            refuse_on_connections(&near, &far, &args)?;
            Ok(of_connections(args, near, far))
        }
        (listen, target) if listen.is_datagram() && target.is_datagram() => {
            refuse_on_datagrams(&args)?;
            Ok(of_datagrams(args))
        }
        (listen, target) => refuse(&format!(
            "{listen} and {target} cannot be joined: a stream, a datagram socket and one with messages (seqpacket) \
             carry different things; give both the same kind"
        )),
    }
}

/// The plan between `listen` and `to`, which have connections.
fn of_connections(args: RelayArgs, listen: Address, to: Address) -> Plan {
    let target = to.to_string();
    let connect_timeout = args.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
    let server = ServerAddress::Address(to);
    let backend = BackendPlan {
        on_remove: OnRemove::Drain(args.life.drain_timeout),
        ..BackendPlan::of_one(&target, server, connect_timeout)
    };
    let listener = ListenerPlan {
        file_access: args.life.file_access,
        engine: args.engine,
        bypass_firewall: args.bypass_firewall,
        from_syn: args.from_syn,
        idle_timeout: args.idle_timeout,
        half_close_timeout: args.half_close_timeout,
        peer_timeouts: args.life.peer_timeouts(),
        max_connections: args.life.max_connections,
        access_log: args.access_log,
        ..ListenerPlan::of_one(
            listen,
            Action::Backend {
                name: target,
                fallback: None,
            },
        )
    };
    Plan {
        threads: args.life.threads,
        drain_timeout: args.life.drain_timeout,
        control: args.control,
        listeners: vec![Arc::new(listener)],
        backends: vec![Arc::new(backend)],
        bypasses: Vec::new(),
        datagram_listeners: Vec::new(),
    }
}

/// The plan between two datagram sockets.
fn of_datagrams(args: RelayArgs) -> Plan {
    let target = args.target.to_string();
    let server = ServerAddress::Datagrams(args.target);
    let on_remove = OnRemove::Drain(args.life.drain_timeout);
    let backend = BackendPlan {
        on_remove,
        ..BackendPlan::of_one(&target, server, CONNECT_TIMEOUT)
    };
    let listener = DatagramListenerPlan {
        name: args.listen.to_string(),
        listen: args.listen,
        file_access: args.life.file_access,
        terms: DatagramTerms::of(&args.datagrams, args.idle_timeout),
        access_log: args.access_log,
        on_remove,
        routes: vec![RoutePlan::of_all(Action::Backend {
            name: target,
            fallback: None,
        })],
    };
    Plan {
        threads: args.life.threads,
        drain_timeout: args.life.drain_timeout,
        control: args.control,
        listeners: Vec::new(),
        backends: vec![Arc::new(backend)],
        bypasses: Vec::new(),
        datagram_listeners: vec![Arc::new(listener)],
    }
}

/// Refuses what connections between such sockets cannot have.
fn refuse_on_connections(listen: &Address, target: &Address, args: &RelayArgs) -> Result<()> {
    if let Address::Inet { port: 0, .. } = target {
        return refuse(&format!(
            "the target {target} cannot be used: nobody listens on port 0; write its port"
        ));
    }
    if target.names_no_peer() {
        return refuse(&format!("the target {target} cannot be used: {NO_MACHINE}"));
    }
    let access = args.life.file_access;
    access.suit(&args.listen).map_err(WrongUsage::new)?;
    let is_copied = [
        EngineChoice::default(),
        EngineChoice::Only(EngineName::Copy),
    ]
    .contains(&args.engine);
    let others = [listen, target].into_iter();
    let others = others.filter(|it| it.vsock().is_some() || it.keeps_messages());
    for address in others {
        if !is_copied {
            return refuse(&format!(
                "--engine {} does not take {address}; use auto or copy",
                args.engine
            ));
        }
        if listen == target {
            return refuse(&format!(
                "the target {target} is this relay itself; choose another target"
            ));
        }
    }
    if !listen.is_tcp() || !target.is_tcp() {
        if args.bypass_firewall {
            return refuse("--bypass-firewall is for TCP; leave it out");
        }
        if args.from_syn {
            return refuse("--from-syn is for TCP; leave it out");
        }
    }
    if !listen.is_tcp() && !target.is_tcp() {
        refuse_those_of_tcp(args)?;
    }
    Ok(())
}

fn refuse_those_of_tcp(args: &RelayArgs) -> Result<()> {
    if args.life.keepalive.is_some() {
        return refuse("--keepalive is for TCP; leave it out");
    }
    if args.life.user_timeout.is_some() {
        return refuse("--user-timeout is for TCP; leave it out");
    }
    Ok(())
}

/// Refuses the options that only connections have.
fn refuse_those_of_connections(args: &RelayArgs) -> Result<()> {
    refuse_those_of_tcp(args)?;
    if args.half_close_timeout.is_some() {
        return refuse("--half-close-timeout is for connections; leave it out");
    }
    Ok(())
}

fn refuse_those_of_datagrams(args: &RelayArgs) -> Result<()> {
    match args.datagrams.given() {
        Some(sentence) => refuse(sentence),
        None => Ok(()),
    }
}

/// Refuses what a relay of datagrams cannot have.
fn refuse_on_datagrams(args: &RelayArgs) -> Result<()> {
    if args.engine != EngineChoice::default() {
        return refuse(&format!(
            "--engine {} moves streams, and {} is a datagram socket; leave --engine out",
            args.engine, args.listen
        ));
    }
    if args.bypass_firewall {
        return refuse("--bypass-firewall is for streams; leave it out for datagrams");
    }
    if args.from_syn {
        return refuse("--from-syn is for TCP; leave it out for datagrams");
    }
    if let Some(Address::Inet { port: 0, .. }) = datagram_address(&args.target) {
        return refuse(&format!(
            "the target {} cannot be used: nobody listens on port 0; write its port",
            args.target
        ));
    }
    refuse_those_of_connections(args)?;
    let access = args.life.file_access;
    access.suit(&args.listen).map_err(WrongUsage::new)?;
    if args.connect_timeout.is_some() {
        return refuse(
            "--connect-timeout is for connections, which datagrams do not have; leave it out",
        );
    }
    if let SocketName::UnixDatagram(_) = args.listen {
        if args.life.threads.is_some_and(|threads| threads > 1) {
            return refuse(
                "--threads is for UDP: a UNIX datagram socket has one queue, which one thread reads; leave it out",
            );
        }
        if args.datagrams.max_sessions_per_client.is_some() {
            return refuse(
                "--max-sessions-per-client tells clients by their IP addresses, which those of a UNIX socket do not \
                 have; leave it out",
            );
        }
        if let (SocketName::UnixDatagram(_), Some(sentence)) =
            (&args.target, args.datagrams.of_udp())
        {
            return refuse(sentence);
        }
    }
    if args.life.max_connections.is_some() {
        return refuse(
            "--max-connections is for streams; limit a relay of datagrams with --max-sessions",
        );
    }
    Ok(())
}

fn refuse<T>(sentence: &str) -> Result<T> {
    Err(WrongUsage::new(sentence.into()).into())
}
