//! `spliced kill`: ends one session.

use anyhow::{Result, bail};
use hyper::Method;

use super::processes::{PATIENCE, Reached, Searched, all, search, wait_for, words};
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
        let asked = reached.into_iter().map(|reached| {
            let path = path.clone();
            async move {
                let answer = ask(&reached.socket, Method::GET, &path, PATIENCE).await;
                (reached, answer.told)
            }
        });
        let mut having = Vec::new();
        let mut not_known = silent;
        let mut refused = Vec::new();
        for (reached, answer) in all(asked).await {
            match answer {
                Ok(_) => having.push(reached),
                Err(Failure::Refused(_, sentence)) => refused.push(sentence),
                // A process that has ended has no sessions.
                Err(failure) => not_known.extend(words(&failure, None)),
            }
        }
        having.sort_by_key(|reached| reached.process()["pid"].as_u64());
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
        Err(failure) => bail!("{}", words(&failure, Some(socket)).unwrap_or_default()),
    }
}

fn named(reached: &Reached) -> String {
    let process = reached.process();
    format!("process {} ({})", process["pid"], reached.socket.display())
}
