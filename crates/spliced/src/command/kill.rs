//! `spliced kill`: ends one session, or all that a filter takes.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use hyper::Method;
use serde_json::Value;

use super::processes::{PATIENCE, Reached, Searched, ask_all, leave_out, search, wait_for, words};
use super::table::printable;
use crate::admin::{Failure, ask, path_of_sessions};
use crate::session_args::KillArgs;
use crate::session_filter::SessionFilter;
use crate::sessions::NoSession;
use crate::standard_output::print;

/// Ends the sessions in the process that has them.
///
/// # Errors
/// If no process has them, more than one has, or that is not known.
pub(crate) fn run(args: &KillArgs) -> Result<()> {
    wait_for(async move {
        match args.id {
            Some(id) => end_one(args, id).await,
            None => end_all(args).await,
        }
    })
}

async fn end_one(args: &KillArgs, id: u64) -> Result<()> {
    let path = format!("/v1/sessions/{id}");
    let Asked { told, refused } = ask_each(args, &path, &format!("a session {id}")).await?;
    match &told[..] {
        [(only, _)] => end(only, &path).await.map(drop),
        [] => match &refused[..] {
            [only] => bail!("{only}"),
            _ => Err(NoSession(id).into()),
        },
        several => bail!(
            "{} have a session {id} each; choose with --control",
            all_named(several)
        ),
    }
}

async fn end_all(args: &KillArgs) -> Result<()> {
    let path = path_of_sessions(&args.filter);
    let what = in_words(&args.filter);
    let Asked { mut told, refused } =
        ask_each(args, &path, &format!("sessions with {what}")).await?;
    told.retain(|(_, told)| {
        told["sessions"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    match &told[..] {
        [] => match &refused[..] {
            [only] => bail!("{only}"),
            _ => bail!(
                "there is no session with {what}; 'spliced sessions' lists those that there are"
            ),
        },
        several => ensure!(
            several.len() == 1 || args.which.config.is_some(),
            "{} have sessions with {what}; choose with --config or --control",
            all_named(several)
        ),
    }
    for (reached, _) in &told {
        let ending = end(reached, &path).await?["ending"].as_u64();
        let sessions = match ending.unwrap_or_default() {
            1 => "1 session ends".into(),
            count => format!("{count} sessions end"),
        };
        print(&format!(
            "process {}: {sessions}\n",
            reached.process()["pid"]
        ))?;
    }
    Ok(())
}

/// What processes have answered.
struct Asked {
    told: Vec<(Reached, Value)>,
    /// Why others have nothing to tell.
    refused: Vec<String>,
}

/// Asks the processes that were chosen for `path`.
///
/// # Errors
/// If it is not known of one of them whether it has `what`.
async fn ask_each(args: &KillArgs, path: &str, what: &str) -> Result<Asked> {
    let Searched {
        reached,
        silent: mut not_known,
    } = search(&args.which, "/v1/process").await?;
    let sockets: Vec<_> = reached.iter().map(|it| Arc::clone(&it.socket)).collect();
    let answers = ask_all(&sockets, path).await;
    let (mut told, mut refused) = (Vec::new(), Vec::new());
    for (reached, answer) in reached.into_iter().zip(answers) {
        match answer.told {
            Ok(answer) => told.push((reached, answer)),
            Err(Failure::Refused(_, sentence)) => refused.push(sentence),
            // A process that has ended has no sessions.
            Err(failure) => match (words(&failure, None), reached.socket.is_anothers()) {
                (Some(why), true) => leave_out(&why),
                (why, _) => not_known.extend(why),
            },
        }
    }
    ensure!(
        not_known.is_empty(),
        "{}; it may have {what}, so choose with --config or --control",
        not_known.join("; ")
    );
    Ok(Asked { told, refused })
}

async fn end(reached: &Reached, path: &str) -> Result<Value> {
    let socket = &reached.socket;
    match ask(socket, Method::DELETE, path, PATIENCE).await.told {
        Ok(told) => Ok(told),
        Err(failure) => bail!(
            "{}",
            words(&failure, Some(&socket.path)).unwrap_or_default()
        ),
    }
}

fn in_words(filters: &[SessionFilter]) -> String {
    let each: Vec<_> = filters.iter().map(SessionFilter::to_string).collect();
    printable(&each.join(" and "))
}

fn all_named(several: &[(Reached, Value)]) -> String {
    let named: Vec<_> = several.iter().map(|(reached, _)| named(reached)).collect();
    named.join(", ")
}

fn named(reached: &Reached) -> String {
    let process = reached.process();
    format!(
        "process {} ({})",
        process["pid"],
        reached.socket.path.display()
    )
}
