//! `spliced kill`: ends one session.

use anyhow::Result;

use crate::admin::{self, Request};
use crate::session_args::KillArgs;

/// # Errors
/// If no process answers, or it has no such session.
pub(crate) fn run(args: &KillArgs) -> Result<()> {
    admin::ask(&args.config, Request::Kill(args.id)).map(drop)
}
