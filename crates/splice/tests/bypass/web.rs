//! Servers and proxies of HTTP, and their clients.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use netlab::{Lab, Process, Scratch, until};

use crate::programs::{
    FILE_BYTES, PORT, Server, address, at_client, at_server, installed, number_behind, run, serve,
    until_listening, within,
};
use crate::random::Random;
use crate::stage::{Stage, bytes};

/// nginx with a page of 1 KiB and a large file.
fn nginx(stage: &Stage, scratch: &Scratch) -> Option<Vec<Process>> {
    let server = installed("nginx", "nginx-light")?;
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let root = scratch.path().join("root");
    fs::create_dir(&root).expect("a directory");
    let mut random = Random::of_run(60);
    fs::write(root.join("page"), bytes(&mut random, 1024)).expect("written");
    fs::write(root.join("large"), bytes(&mut random, FILE_BYTES)).expect("written");
    let path = scratch.path().display();
    let configuration = format!(
        "daemon off; master_process off; worker_processes 1; pid {path}/pid; error_log stderr;
         events {{ worker_connections 1000; }}
         http {{
             access_log off; keepalive_requests 1000000;
             client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;
             fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;
             server {{ listen {PORT}; root {path}/root; }}
         }}"
    );
    let configuration = scratch.write("nginx.conf", &configuration).expect("a file");
    let mut command = at_server(stage, &server);
    command
        .arg("-c")
        .arg(configuration)
        .args(["-p", &path.to_string()]);
    let processes = vec![serve(&mut command)];
    until_listening(stage);
    Some(processes)
}

/// nginx as the proxy in front of nginx, between the two namespaces. It is in the client's group.
pub(crate) fn sidecar(stage: &Stage, scratch: &Scratch) -> Option<Server> {
    let (nginx_path, client) = (installed("nginx", "nginx-light")?, installed("wrk", "wrk")?);
    let mut processes = nginx(stage, scratch)?;
    let path = scratch.path().join("sidecar");
    fs::create_dir(&path).expect("a directory");
    let path = path.display();
    let configuration = format!(
        "daemon off; master_process off; worker_processes 1; pid {path}/pid; error_log stderr;
         events {{ worker_connections 1000; }}
         http {{
             access_log off; keepalive_requests 1000000;
             client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;
             fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;
             upstream server {{ server {}; keepalive 32; keepalive_requests 1000000; }}
             server {{
                 listen {PORT};
                 location / {{
                     proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection \"\";
                 }}
             }}
         }}",
        address()
    );
    let configuration = scratch
        .write("sidecar.conf", &configuration)
        .expect("a file");
    let mut command = within(&stage.groups[0], stage.lab.relay(), &nginx_path);
    command.arg("-c").arg(configuration);
    processes.push(serve(command.args(["-p", &path.to_string()])));
    let relay = format!("{}:{PORT}", Lab::RELAY_V4);
    until("the proxy listens", || {
        let connect = || std::net::TcpStream::connect(&relay).is_ok();
        stage.lab.client().enter(connect).expect("entered")
    });
    let url = format!("http://{relay}/page");
    Some(of_wrk(processes, client, url, scratch))
}

pub(crate) fn wrk(stage: &Stage, scratch: &Scratch) -> Option<Server> {
    let client = installed("wrk", "wrk")?;
    let processes = nginx(stage, scratch)?;
    let url = format!("http://{}/page", address());
    Some(of_wrk(processes, client, url, scratch))
}

/// What wrk has read is compared by a script, which the load does without.
const COMPARE: &str = r#"
local threads = {}
right, wrong = 0, 0
function setup(thread) table.insert(threads, thread) end
function init() page = io.open("PAGE", "rb"):read("*a") end
function response(status, headers, body)
    if status == 200 and body == page then right = right + 1 else wrong = wrong + 1 end
end
function done()
    print("right pages: " .. threads[1]:get("right") .. ", wrong pages: " .. threads[1]:get("wrong"))
end
"#;

/// A server with a page, and wrk as its load.
fn of_wrk(processes: Vec<Process>, wrk: PathBuf, url: String, scratch: &Scratch) -> Server {
    let page = scratch.path().join("root/page").display().to_string();
    let script = COMPARE.replace("PAGE", &page);
    let script = scratch.write("compare.lua", &script).expect("a file");
    let (again, its_url) = (wrk.clone(), url.clone());
    Server::new(processes, move |stage| {
        number_behind(&told_by_wrk(stage, &wrk, None, &url), "Requests/sec:")
    })
    .with_check(move |stage| {
        let told = told_by_wrk(stage, &again, Some(&script), &its_url);
        assert!(number_behind(&told, "right pages: ") > 100.0, "{told}");
        assert!(number_behind(&told, "wrong pages: ") == 0.0, "{told}");
    })
}

fn told_by_wrk(stage: &Stage, wrk: &Path, script: Option<&Path>, url: &str) -> String {
    let mut command = at_client(stage, wrk);
    command.args(["-t", "1", "-c", "8", "-d", "1"]);
    if let Some(script) = script {
        command.arg("-s").arg(script);
    }
    let told = run(command.arg(url));
    assert!(
        !told.contains("Non-2xx") && !told.contains("Socket errors"),
        "{told}"
    );
    told
}

pub(crate) fn curl(stage: &Stage, scratch: &Scratch) -> Option<Server> {
    let client = installed("curl", "curl")?;
    let processes = nginx(stage, scratch)?;
    let (source, copy) = (
        scratch.path().join("root/large"),
        scratch.path().join("copy"),
    );
    let load = move |stage: &Stage| {
        let begun = Instant::now();
        let mut command = at_client(stage, &client);
        command.args(["--silent", "--fail", "--output"]).arg(&copy);
        run(command.arg(format!("http://{}/large", address())));
        let elapsed = begun.elapsed();
        assert!(fs::read(&source).expect("a file") == fs::read(&copy).expect("a copy"));
        (FILE_BYTES >> 20) as f64 / elapsed.as_secs_f64()
    };
    Some(Server::new(processes, load))
}

pub(crate) fn h2load(stage: &Stage, scratch: &Scratch) -> Option<Server> {
    let (server, client) = (
        installed("nghttpd", "nghttp2-server")?,
        installed("h2load", "nghttp2-client")?,
    );
    let page = bytes(&mut Random::of_run(61), 1024);
    fs::write(scratch.path().join("page"), page).expect("written");
    let mut command = at_server(stage, &server);
    command
        .args(["--no-tls", "-d"])
        .arg(scratch.path())
        .arg(PORT.to_string());
    let processes = vec![serve(&mut command)];
    until_listening(stage);
    let load = move |stage: &Stage| {
        let mut command = at_client(stage, &client);
        command
            .args(["-n", "20000", "-c", "4", "-m", "1"])
            .arg(format!("http://{}/page", address()));
        let told = run(&mut command);
        assert!(
            told.contains("20000 succeeded, 0 failed, 0 errored, 0 timeout"),
            "{told}"
        );
        let rate = told.split_once("s, ").expect("a rate").1;
        number_behind(rate, "")
    };
    Some(Server::new(processes, load))
}
