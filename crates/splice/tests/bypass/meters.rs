//! Programs that measure a connection.

use std::net::Ipv4Addr;
use std::process::Command;

use netlab::{Lab, Namespace};

use crate::programs::{
    PORT, Server, at_client, at_server, installed, number_behind, run, serve, until_listening,
    until_listening_at, within,
};
use crate::stage::Stage;

/// Both on one CPU.
pub(crate) fn sockperf(stage: &Stage, at: &Namespace, ip: Ipv4Addr) -> Option<Server> {
    let (sockperf, taskset) = (
        installed("sockperf", "sockperf")?,
        installed("taskset", "util-linux")?,
    );
    let name = ip.to_string();
    let on_one_cpu = move |mut command: Command, options: &[&str]| {
        command.args(["-c", "0"]).arg(&sockperf).args(options);
        command.args(["--tcp", "-i", &name, "-p", &PORT.to_string()]);
        command
    };
    let server = within(&stage.groups[1], at, &taskset);
    let processes = vec![serve(&mut on_one_cpu(server, &["sr"]))];
    until_listening_at(stage, ip);
    let load = move |stage: &Stage| {
        let options = ["pp", "-t", "1", "-m", "64"];
        let told = run(&mut on_one_cpu(at_client(stage, &taskset), &options));
        assert!(
            told.contains("# dropped messages = 0; # duplicated messages = 0"),
            "{told}"
        );
        number_behind(&told, "percentile 50.000 =")
    };
    Some(Server::new(processes, load))
}

/// Bulk in messages of a size.
pub(crate) fn iperf3(stage: &Stage, length: &'static str) -> Option<Server> {
    let iperf3 = installed("iperf3", "iperf3")?;
    let mut command = at_server(stage, &iperf3);
    command.args(["-s", "-p", &PORT.to_string()]);
    let processes = vec![serve(&mut command)];
    until_listening(stage);
    let load = move |stage: &Stage| {
        let mut command = at_client(stage, &iperf3);
        command
            .args(["-c", &Lab::SERVER_V4.to_string(), "-p", &PORT.to_string()])
            .args(["-t", "1", "-f", "m", "-l", length]);
        let told = run(&mut command);
        let line = told.lines().find(|line| line.ends_with("receiver"));
        let line = line.unwrap_or_else(|| panic!("no receiver in {told}"));
        number_behind(line.split_once("Bytes").expect("a sum").1, "")
    };
    Some(Server::new(processes, load))
}
