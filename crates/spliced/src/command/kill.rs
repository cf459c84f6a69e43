//! `spliced kill`: ends one session.

use std::sync::Arc;

use anyhow::{Result, bail};
use hyper::Method;

use super::processes::{PATIENCE, Reached, Searched, ask_all, leave_out, search, wait_for, words};
use crate::admin::{Failure, ask};
use crate::session_args::KillArgs;
use crate::sessions::NoSession;

/// Ends the session in the process that has it.
///
/// # Errors
/// If no process has it, more than one has, or that is not known.
pub(crate) fn run(args: &KillArgs) -> Result<()> {
    let id = args.id;
    wait_for(async move {
        let Searched { reached, silent } = search(&args.which, "/v1/process").await?;
        let path = format!("/v1/sessions/{id}");
        let sockets: Vec<_> = reached.iter().map(|it| Arc::clone(&it.socket)).collect();
        let answers = ask_all(&sockets, &path).await;
        let mut having = Vec::new();
        let mut not_known = silent;
        let mut refused = Vec::new();
        for (reached, answer) in reached.into_iter().zip(answers) {
            match answer.told {
                Ok(_) => having.push(reached),
                Err(Failure::Refused(_, sentence)) => refused.push(sentence),
                // A process that has ended has no sessions.
                Err(failure) => match (words(&failure, None), reached.socket.is_anothers()) {
                    (Some(why), true) => leave_out(&why),
                    (why, _) => not_known.extend(why),
                },
            }
        }
        if !not_known.is_empty() {
            bail!(
                "{}; it may have a session {id}, so choose with --config or --control",
                not_known.join("; ")
            );
        }
        match &having[..] {
            [only] => end(only, &path).await,
            [] => match &refused[..] {
                [only] => bail!("{only}"),
                _ => Err(NoSession(id).into()),
            },
            several => bail!(
                "{} have a session {id} each; choose with --control",
                several.iter().map(named).collect::<Vec<_>>().join(", ")
            ),
        }
    })
}

async fn end(reached: &Reached, path: &str) -> Result<()> {
    let socket = &reached.socket;
    match ask(socket, Method::DELETE, path, PATIENCE).await.told {
        Ok(_) => Ok(()),
        Err(failure) => bail!(
            "{}",
            words(&failure, Some(&socket.path)).unwrap_or_default()
        ),
    }
}

fn named(reached: &Reached) -> String {
    let process = reached.process();
    format!(
        "process {} ({})",
        process["pid"],
        reached.socket.path.display()
    )
}
