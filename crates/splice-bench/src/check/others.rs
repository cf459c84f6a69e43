//! sockperf and iperf3 on the direct path.

use std::fs::File;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netlab::{Lab, Process};

use super::MESSAGE_BYTES;
use crate::site::{PATIENCE, Site};

/// Ports of the other programs' servers, below those that are chosen by the kernel.
const SOCKPERF_PORT: u16 = 8_001;
const IPERF3_PORT: u16 = 8_002;

/// Between two attempts to connect to a server that starts.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// sockperf's server; it runs a client for each measurement.
#[derive(Debug)]
pub(super) struct Sockperf {
    _server: Process,
}

impl Sockperf {
    pub(super) fn start(site: &Site) -> Result<Self> {
        let mut command = site.lab.server().command("sockperf");
        command.args(["server", "--tcp", "-i", &Lab::SERVER_V4.to_string()]);
        command.args(["-p", &SOCKPERF_PORT.to_string()]);
        let server = serve(site, command, "sockperf", SOCKPERF_PORT)?;
        Ok(Self { _server: server })
    }

    /// The median one-way latency that it finds, in µs.
    pub(super) fn one_way(&self, site: &Site) -> Result<f64> {
        let mut command = site.lab.client().command("sockperf");
        command.args(["ping-pong", "--tcp", "-i", &Lab::SERVER_V4.to_string()]);
        command.args(["-p", &SOCKPERF_PORT.to_string(), "-t", "1"]);
        command.args(["-m", &MESSAGE_BYTES.to_string()]);
        let said = said(command, "sockperf")?;
        median_of_sockperf(&said).with_context(|| format!("sockperf named no median: {said}"))
    }
}

/// Reads `---> percentile 50.000 =    3.800`, possibly between escape sequences for colours.
fn median_of_sockperf(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains("percentile 50.0"))?;
    let (_, value) = line.split_once('=')?;
    let digits = value
        .trim()
        .split(|letter: char| !letter.is_ascii_digit() && letter != '.');
    digits.into_iter().next()?.parse().ok()
}

/// iperf3's server; it runs a client for each measurement.
#[derive(Debug)]
pub(super) struct Iperf3 {
    _server: Process,
}

impl Iperf3 {
    pub(super) fn start(site: &Site) -> Result<Self> {
        let mut command = site.lab.server().command("iperf3");
        command.args(["--server", "--bind", &Lab::SERVER_V4.to_string()]);
        command.args(["--port", &IPERF3_PORT.to_string()]);
        let server = serve(site, command, "iperf3", IPERF3_PORT)?;
        Ok(Self { _server: server })
    }

    /// Gigabits that arrive in a second of CPU time of both ends.
    pub(super) fn efficiency(&self, site: &Site) -> Result<f64> {
        let mut command = site.lab.client().command("iperf3");
        command.args(["--client", &Lab::SERVER_V4.to_string(), "--json"]);
        command.args(["--port", &IPERF3_PORT.to_string(), "--time", "1"]);
        // As much per system call as our own sender.
        command.args(["--length", "256K"]);
        let said = said(command, "iperf3")?;
        let json: serde_json::Value =
            serde_json::from_str(&said).context("iperf3 did not answer in JSON")?;
        gigabits_per_cpu_second(&json["end"]).with_context(|| format!("iperf3 left out: {said}"))
    }
}

/// The end of iperf3's report: what arrived, and how much of a CPU each side has taken meanwhile.
fn gigabits_per_cpu_second(end: &serde_json::Value) -> Option<f64> {
    let bits_per_second = end["sum_received"]["bits_per_second"].as_f64()?;
    let cpu = &end["cpu_utilization_percent"];
    let percent = cpu["host_total"].as_f64()? + cpu["remote_total"].as_f64()?;
    Some(bits_per_second / 1e9 / (percent / 100.0))
}

/// Starts a server and waits until it listens.
fn serve(site: &Site, mut command: Command, name: &str, port: u16) -> Result<Process> {
    let log = File::create(site.scratch.path().join(format!("{name}.log")))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let process = Process::spawn(&mut command)?;
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect_timeout(&(Lab::SERVER_V4, port).into(), PATIENCE).is_err() {
        ensure!(Instant::now() < deadline, "{name} does not listen");
        thread::sleep(ASK_EVERY);
    }
    Ok(process)
}

/// What a program prints that ends well.
fn said(mut command: Command, name: &str) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{name} failed: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{gigabits_per_cpu_second, median_of_sockperf};

    #[test]
    fn cpu_time_is_found_in_what_iperf3_says() {
        let end = serde_json::json!({
            "sum_received": { "bits_per_second": 30e9 },
            "cpu_utilization_percent": { "host_total": 40.0, "remote_total": 20.0 },
        });
        let found = gigabits_per_cpu_second(&end).expect("all is there");
        assert!((found - 50.0).abs() < 1e-9, "{found}");
        assert_eq!(gigabits_per_cpu_second(&serde_json::json!({})), None);
    }

    #[test]
    fn the_median_is_found_in_what_sockperf_says() {
        let said = "sockperf: ---> <MAX> observation =  231.5\n\
                    sockperf: ---> percentile 50.000 =    3.812\u{1b}[0m\n";
        assert_eq!(median_of_sockperf(said), Some(3.812));
        assert_eq!(
            median_of_sockperf("sockperf: No messages were received"),
            None
        );
    }
}
