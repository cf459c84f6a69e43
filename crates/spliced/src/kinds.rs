//! Which kinds of sockets a relay joins, and which it cannot.

use anyhow::Result;
use splice::{Address, EngineChoice, EngineName, SocketName, VsockAddress};

use crate::cli::RelayArgs;
use crate::datagram::DatagramPlan;
use crate::file_access::FileAccess;
use crate::plain::PlainPlan;
use crate::plan::{CONNECT_TIMEOUT, DatagramTerms, Plan};
use crate::refusal::WrongUsage;
use crate::relay;

/// What `spliced relay` is to do, by the kinds of its sockets.
#[derive(Debug)]
pub(crate) enum Kinds {
    Streams(Plan),
    Datagrams(DatagramPlan),
    Others(PlainPlan),
}

impl Kinds {
    /// # Errors
    /// If the two kinds do not fit, or an option belongs to another kind.
    pub(crate) fn of(args: RelayArgs) -> Result<Self> {
        args.access_log.check().or_else(refuse)?;
        let (listen, target) = (args.listen.clone(), args.target.clone());
        if let (SocketName::Stream(listen), SocketName::Stream(target)) = (&listen, &target) {
            refuse_those_of_datagrams(&args)?;
            if let Address::Inet { port: 0, .. } = target {
                return refuse(&format!(
                    "the target {target} cannot be used: nobody listens on port 0; write its port"
                ));
            }
            let access = args.life.file_access;
            access.suit(&args.listen).map_err(WrongUsage::new)?;
            let (listen, target) = (listen.clone(), target.clone());
            return Ok(Self::Streams(relay::plan_of_relay(args, listen, target)));
        }
        if let Some(plan) = DatagramPlan::between(listen.clone(), target.clone()) {
            return of_datagrams(plan, args).map(Self::Datagrams);
        }
        if listen.is_datagram() == target.is_datagram()
            && listen.is_seqpacket() == target.is_seqpacket()
        {
            return of_others(listen, target, args).map(Self::Others);
        }
        refuse(&format!(
            "{listen} and {target} cannot be joined: a stream, a datagram socket and one with messages \
             (seqpacket) carry different things; give both the same kind"
        ))
    }
}

/// Refuses the options that only streams of TCP and UNIX have.
fn refuse_those_of_streams(args: &RelayArgs) -> Result<()> {
    let given = [
        (
            args.life.keepalive.is_some(),
            "--keepalive is for TCP; leave it out",
        ),
        (
            args.life.user_timeout.is_some(),
            "--user-timeout is for TCP; leave it out",
        ),
        (
            args.half_close_timeout.is_some(),
            "--half-close-timeout is for TCP and UNIX streams; leave it out",
        ),
    ];
    match given.iter().find(|(is_given, _)| *is_given) {
        Some((_, sentence)) => refuse(sentence),
        None => Ok(()),
    }
}

fn refuse_those_of_datagrams(args: &RelayArgs) -> Result<()> {
    match args.datagrams.given() {
        Some(sentence) => refuse(sentence),
        None => Ok(()),
    }
}

fn of_datagrams(plan: DatagramPlan, args: RelayArgs) -> Result<DatagramPlan> {
    if args.engine != EngineChoice::default() {
        return refuse(&format!(
            "--engine {} moves streams, and {} is a datagram socket; leave --engine out",
            args.engine, plan.listen
        ));
    }
    if args.bypass_firewall {
        return refuse("--bypass-firewall is for streams; leave it out for datagrams");
    }
    if args.from_syn {
        return refuse("--from-syn is for TCP; leave it out for datagrams");
    }
    if let Address::Inet { port: 0, .. } = &plan.target_address {
        return refuse(&format!(
            "the target {} cannot be used: nobody listens on port 0; write its port",
            plan.target
        ));
    }
    refuse_those_of_streams(&args)?;
    let access = args.life.file_access;
    access.suit(&plan.listen).map_err(WrongUsage::new)?;
    if args.connect_timeout.is_some() {
        return refuse(
            "--connect-timeout is for connections, which datagrams do not have; leave it out",
        );
    }
    if let SocketName::UnixDatagram(_) = plan.listen {
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
            (&plan.target, args.datagrams.of_udp())
        {
            return refuse(sentence);
        }
    }
    if args.life.max_connections.is_some() {
        return refuse(
            "--max-connections is for streams; limit a relay of datagrams with --max-sessions",
        );
    }
    Ok(DatagramPlan {
        wanted_threads: args.life.threads,
        file_access: access,
        terms: DatagramTerms::of(&args.datagrams, args.idle_timeout),
        drain_timeout: args.life.drain_timeout,
        access_log: args.access_log,
        control: args.control,
        ..plan
    })
}

/// A relay of messages with connections, or of VSOCK streams.
fn of_others(listen: SocketName, target: SocketName, args: RelayArgs) -> Result<PlainPlan> {
    let is_copied = [
        EngineChoice::default(),
        EngineChoice::Only(EngineName::Copy),
    ]
    .contains(&args.engine);
    for name in [&listen, &target] {
        if !is_copied && !matches!(name, SocketName::Stream(_)) {
            return refuse(&format!(
                "--engine {} does not take {name}; use auto or copy",
                args.engine
            ));
        }
    }
    if let SocketName::VsockStream(address) | SocketName::VsockSeqpacket(address) = &target
        && address.cid == VsockAddress::ANY_CID
    {
        return refuse(&format!(
            "{target} names no machine to connect to; write its context identifier, such as 2 for the host"
        ));
    }
    if listen == target {
        return refuse(&format!(
            "the target {target} is this relay itself; choose another target"
        ));
    }
    if args.bypass_firewall {
        return refuse("--bypass-firewall is for TCP; leave it out");
    }
    if args.from_syn {
        return refuse("--from-syn is for TCP; leave it out");
    }
    refuse_those_of_streams(&args)?;
    refuse_those_of_datagrams(&args)?;
    if args.life.file_access != FileAccess::default() {
        return refuse(
            "--mode, --owner and --group are for UNIX streams and datagrams; leave them out",
        );
    }
    if args.life.threads.is_some_and(|threads| threads > 1) {
        return refuse(
            "--threads is for TCP, UNIX streams and UDP: one thread moves these messages; leave it out",
        );
    }
    Ok(PlainPlan {
        listen,
        target,
        connect_timeout: args.connect_timeout.unwrap_or(CONNECT_TIMEOUT),
        idle_timeout: args.idle_timeout,
        max_connections: args.life.max_connections,
        drain_timeout: args.life.drain_timeout,
        access_log: args.access_log,
        control: args.control,
    })
}

fn refuse<T>(sentence: &str) -> Result<T> {
    Err(WrongUsage::new(sentence.into()).into())
}
