//! `spliced drain`, `undrain` and `weigh`: orders about a server.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use hyper::{Method, StatusCode};
use tokio::time::sleep;

use super::processes::wait_for;
use super::servers::{Place, find};
use crate::admin::Failure;
use crate::server_args::{DrainArgs, UndrainArgs, WeighArgs};

/// How often to ask whether a server is empty.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Drains a server, and waits until it is empty if that is asked for.
///
/// # Errors
/// If it is not found, or is not empty in time.
pub(crate) fn drain(args: &DrainArgs) -> Result<()> {
    // Looking for it takes time, too.
    let began = Instant::now();
    wait_for(async {
        let places = find(&args.server).await?;
        for place in &places {
            place.order(Method::POST, "drain").await?;
        }
        for place in places.iter().filter(|_| args.wait) {
            while let Some(left) = left(place).await? {
                if let Some(timeout) = args.timeout {
                    ensure!(
                        began.elapsed() < timeout,
                        "server {} still has {left} after {}; it stays drained, so wait again, or end them with \
                         'spliced kill'",
                        place.server,
                        humantime::format_duration(timeout)
                    );
                }
                sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    })
}

/// The connections of a drained server; `None` if it is empty.
async fn left(place: &Place) -> Result<Option<String>> {
    let told = match place.ask(Method::GET, "").await {
        Ok(told) => told,
        // A reload has removed it, and it had no more.
        Err(Failure::Refused(StatusCode::NOT_FOUND, _)) => return Ok(None),
        Err(failure) => bail!("{}", place.words(&failure)),
    };
    match told["connections"].as_u64() {
        Some(0) => Ok(None),
        _ if told["drained"] == false && told["removed"] == false => bail!(
            "server {} gets clients again, since somebody has undrained it",
            place.server
        ),
        Some(1) => Ok(Some("1 connection".into())),
        count => Ok(Some(format!("{} connections", count.unwrap_or_default()))),
    }
}

/// # Errors
/// If the server is not found.
pub(crate) fn undrain(args: &UndrainArgs) -> Result<()> {
    wait_for(async {
        for place in find(&args.server).await? {
            place.order(Method::POST, "undrain").await?;
        }
        Ok(())
    })
}

/// # Errors
/// If the server is not found.
pub(crate) fn weigh(args: &WeighArgs) -> Result<()> {
    let weight = format!("weight?weight={}", args.weight);
    wait_for(async {
        for place in find(&args.server).await? {
            place.order(Method::PUT, &weight).await?;
        }
        Ok(())
    })
}
