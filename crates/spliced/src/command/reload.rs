//! `spliced reload`: has processes read their configuration again.

use anyhow::{Result, bail, ensure};
use hyper::Method;

use super::processes::{PATIENCE, search, wait_for, words};
use crate::admin::{RELOAD_WITHIN, ask};
use crate::cli::ReloadArgs;
use crate::standard_output::print;

/// Has the processes that were asked for read their configuration again.
///
/// # Errors
/// If there is none, or one does not.
pub(crate) fn run(args: &ReloadArgs) -> Result<()> {
    let which = &args.which;
    wait_for(async {
        let mut all = search(which, "/v1/process").await?.reached;
        if which.control.is_none() {
            all.retain(|reached| !reached.process()["configuration"].is_null());
            ensure!(
                !all.is_empty(),
                "no process that this user may ask runs a configuration; start one with 'spliced run --config'"
            );
        }
        let is_for_one = which.config.is_none() && which.control.is_none();
        // Others may have more of them, or pretend to.
        all.sort_by_key(|reached| reached.socket.is_anothers());
        if is_for_one && all.iter().any(|reached| !reached.socket.is_anothers()) {
            all.retain(|reached| !reached.socket.is_anothers());
        }
        // One that is ending leaves the reload to those that serve the same file.
        let served = all.iter().filter(|reached| !reached.drains());
        let served: Vec<_> = served.map(|reached| reached.file().clone()).collect();
        all.retain(|reached| !reached.drains() || !served.contains(reached.file()));
        if is_for_one && all.len() > 1 {
            let each = all.iter().map(|reached| {
                let process = reached.process();
                format!(
                    "process {} runs {}",
                    process["pid"], process["configuration"]
                )
            });
            bail!(
                "{}; choose with --config or --control",
                each.collect::<Vec<_>>().join(", ")
            );
        }
        let count = all.len();
        let mut failed = Vec::new();
        for reached in all {
            let within = RELOAD_WITHIN + PATIENCE;
            let asked = ask(&reached.socket, Method::POST, "/v1/reload", within);
            let process = &reached.process()["pid"];
            match asked.await.told {
                Ok(_) => print(&format!(
                    "process {process} has reloaded its configuration\n"
                ))?,
                Err(failure) => {
                    let why = words(&failure, Some(&reached.socket.path)).unwrap_or_default();
                    failed.push(match count {
                        1 => why,
                        _ => format!("process {process}: {why}"),
                    });
                }
            }
        }
        ensure!(failed.is_empty(), "{}", failed.join("; "));
        Ok(())
    })
}
