//! `spliced mesh`: accepts members, and lets the kernel deliver their frames.

mod departed;
mod groups;
mod present;
mod registration;
mod request;
mod running;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::event::{EventfdFlags, eventfd};
use splice::Address;
use splice::mesh::{Bounds, Mesh};

use self::groups::Groups;
use self::registration::Newcomers;
use self::running::{Running, Told};
use self::tokens::Tokens;
use crate::access_log::AccessLog;
use crate::diagnostics::Diagnostics;
use crate::exit_status::Ended;
use crate::file_access::FileAccess;
use crate::listener::ListeningSockets;
use crate::mesh_args::{FrameSpec, MeshArgs, Register};
use crate::refusal::WrongUsage;
use crate::resource_limit::raise_descriptor_limit;
use crate::signal::{Request, Signals};
use crate::socket_address::SocketAddress;

/// How long the end waits for the access log.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs a mesh until a signal ends it.
///
/// # Errors
/// If it cannot start.
pub(crate) fn run(args: &MeshArgs, signals: Signals, diagnostics: &Diagnostics) -> Result<Ended> {
    refuse_impossible(args)?;
    let framing = args.framing()?;
    let bounds = Bounds {
        members: args.members,
        member_bytes: args.member_bytes,
        frame_timeout: args.frame_timeout,
    };
    let groups = args.groups.map(|count| Groups::new(&framing, count));
    let groups = groups.transpose()?;
    let tokens = args.token_file.as_deref().map(Tokens::read).transpose()?;
    let newcomers = (args.register != Register::None)
        .then(|| Newcomers::new(framing, args.register, args.register_timeout, tokens));
    let access_log = AccessLog::of(&args.access_log)?;
    let wake = Arc::new(
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("cannot make an eventfd")?,
    );
    let (tell, requests) = channel();
    let told = Told {
        wake: Arc::clone(&wake),
        requests,
        stops: Arc::new(AtomicU32::new(0)),
    };
    let progress = signals.watch(diagnostics.clone(), args.token_file.is_some(), {
        let stops = Arc::clone(&told.stops);
        move |request| {
            if request == Request::Stop {
                stops.fetch_add(1, Ordering::Relaxed);
            }
            // Both only fail if the mesh is over.
            let _ = tell.send(request);
            let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
        }
    })?;
    // Clients that are about to register need descriptors, too.
    raise_descriptor_limit(Some(
        args.members.saturating_add(2 * registration::MOST as u32),
    ));
    let mut mesh = Mesh::create_by(args.engine, framing, bounds)?;
    if let Some(why) = mesh.why_copy() {
        tracing::warn!("user space moves the frames (engine copy): {why}");
    }
    if newcomers.is_some() || groups.is_some() {
        mesh.hear(groups.as_ref().map(Groups::first))?;
    }
    let addresses = SocketAddress::to_listen(&args.listen)?;
    // From then on there may be a socket file to remove.
    progress.running();
    let mut sockets = ListeningSockets::bind(
        &args.listen,
        addresses,
        1,
        None,
        FileAccess::default(),
        &Arc::default(),
    )?;
    for address in &sockets.addresses {
        tracing::info!(
            "listening on {address}, {} and their destination in {}",
            args.frame,
            args.destination
        );
    }
    let listening = sockets.by_thread.iter_mut().flat_map(std::mem::take);
    let mut running = Running::new(mesh, framing, listening.collect());
    running.newcomers = newcomers;
    running.groups = groups;
    running.idle_timeout = args.idle_timeout;
    running.access_log = access_log.clone();
    running.address = args.listen.to_string();
    running.until_told(&told)?;
    let ended = running.end(&told)?;
    tracing::info!("the mesh is over: {}", running.totals());
    if let Some(log) = access_log {
        log.finish(LAST_WORDS);
    }
    Ok(ended)
}

fn refuse_impossible(args: &MeshArgs) -> Result<(), WrongUsage> {
    if !matches!(args.listen, Address::Inet { .. }) {
        return Err(WrongUsage::new(format!(
            "a mesh cannot listen on {}: its members are TCP connections; write HOST:PORT",
            args.listen
        )));
    }
    if args.token_file.is_some() && args.register == Register::None {
        return Err(WrongUsage::new(
            "--token-file has no use without registrations, which have the tokens; add --register name or \
             --register number"
                .into(),
        ));
    }
    let has_requests = args.register != Register::None || args.groups.is_some();
    if has_requests && matches!(args.frame, FrameSpec::Until(_)) {
        return Err(WrongUsage::new(
            "frames up to a delimiter have no registrations and groups, whose requests may have any byte; give frames a length"
                .into(),
        ));
    }
    if args.access_log.starts {
        return Err(WrongUsage::new(
            "a mesh has no lines of starts in its access log; leave out --access-log-start".into(),
        ));
    }
    Ok(())
}
