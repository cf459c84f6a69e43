//! `spliced drain`, `undrain` and `weigh`: orders about a server.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use hyper::{Method, StatusCode};
use serde_json::Value;
use tokio::time::sleep;

use super::processes::wait_for;
use super::servers::{Found, LOOK_EVERY, Place, connections, find};
use crate::admin::Failure;
use crate::server_args::{DrainArgs, UndrainArgs, WeighArgs};

/// Drains a server, and waits until it is empty if that is asked for.
///
/// # Errors
/// If it is not found, or is not empty in time.
pub(crate) fn drain(args: &DrainArgs) -> Result<()> {
    // Looking for it takes time, too.
    let began = Instant::now();
    wait_for(async {
        let Found { places, draining } = find(&args.server).await?;
        let mut not_empty = Vec::new();
        for place in &places {
            let told = place.order(Method::POST, "drain").await?;
            if told["connections"] != 0 {
                not_empty.push(place);
            }
        }
        // They take no new clients, but have those of before.
        for place in &draining {
            if let Left::Connections(told) = left(place).await? {
                place.print(&told)?;
                not_empty.push(place);
            }
        }
        for place in not_empty.into_iter().filter(|_| args.wait) {
            loop {
                let told = match left(place).await? {
                    Left::Connections(told) => told,
                    Left::Nothing(told) => {
                        place.print(&told)?;
                        break;
                    }
                    Left::Forgotten => break,
                };
                if let Some(timeout) = args.timeout {
                    ensure!(
                        began.elapsed() < timeout,
                        "server {} still has {} after {}; it stays drained, so wait again, or end them with \
                         'spliced kill'",
                        place.server,
                        connections(&told["connections"]),
                        humantime::format_duration(timeout)
                    );
                }
                sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    })
}

/// What a drained server still has, and all that is told of it.
enum Left {
    Connections(Value),
    Nothing(Value),
    /// A reload has removed it, or its process has ended, and it had no more.
    Forgotten,
}

async fn left(place: &Place) -> Result<Left> {
    let told = match place.told().await {
        Ok(told) => told,
        Err(Failure::Refused(StatusCode::NOT_FOUND, _)) => return Ok(Left::Forgotten),
        Err(Failure::Gone) if place.drains() => return Ok(Left::Forgotten),
        Err(failure) => bail!("{}", place.words(&failure)),
    };
    ensure!(
        place.drains()
            || told["connections"] == 0
            || told["drained"] != false
            || told["removed"] != false,
        "server {} gets clients again, since somebody has undrained it",
        place.server
    );
    Ok(match told["connections"] == 0 {
        true => Left::Nothing(told),
        false => Left::Connections(told),
    })
}

/// # Errors
/// If the server is not found.
pub(crate) fn undrain(args: &UndrainArgs) -> Result<()> {
    wait_for(async {
        for place in find(&args.server).await?.places {
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
        for place in find(&args.server).await?.places {
            place.order(Method::PUT, &weight).await?;
        }
        Ok(())
    })
}
