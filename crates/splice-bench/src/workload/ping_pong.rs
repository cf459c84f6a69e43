//! A small message there and back, again and again.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;

use crate::site::Site;

/// Small enough for one segment, large enough to carry a request.
const MESSAGE_BYTES: usize = 64;

/// Part of the round trips that goes first and does not count.
const WARM_UP_PART: u32 = 10;

/// 1 s, in ns: a round trip that takes longer is recorded as that long.
const LONGEST_NANOSECONDS: u64 = 1_000_000_000;

/// Decimal digits that the histogram keeps; 0.1 % is below what differs from run to run.
const DIGITS: u8 = 3;

/// One-way latencies in µs, taken as half of the round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneWay {
    pub(crate) p50_microseconds: f64,
    pub(crate) p99_microseconds: f64,
}

/// Plays `count` round trips with blocking sockets.
pub(crate) fn play(site: &Site, address: SocketAddr, count: u32) -> Result<OneWay> {
    let connection = site.connect(address)?;
    let (mut client, mut server) = (&connection.client, &connection.server);
    let total = count + count / WARM_UP_PART;
    let histogram = thread::scope(|scope| {
        let echo = scope.spawn(move || -> Result<()> {
            let mut message = [0; MESSAGE_BYTES];
            for _ in 0..total {
                server.read_exact(&mut message)?;
                server.write_all(&message)?;
            }
            Ok(())
        });
        let mut histogram = Histogram::<u64>::new_with_max(LONGEST_NANOSECONDS, DIGITS)?;
        let mut message = [0; MESSAGE_BYTES];
        for number in 0..total {
            let sent = Instant::now();
            client
                .write_all(&message)
                .context("a ping did not go out")?;
            client
                .read_exact(&mut message)
                .context("a pong did not come back")?;
            if number >= total - count {
                histogram.saturating_record(sent.elapsed().as_nanos() as u64);
            }
        }
        echo.join()
            .map_err(|_| anyhow!("the echo panicked"))?
            .context("the echo failed")?;
        anyhow::Ok(histogram)
    })?;
    // Half of the round trip, and ns to µs.
    let one_way = |quantile| histogram.value_at_quantile(quantile) as f64 / 2.0 / 1e3;
    Ok(OneWay {
        p50_microseconds: one_way(0.5),
        p99_microseconds: one_way(0.99),
    })
}
