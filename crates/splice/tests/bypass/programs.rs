//! Programs as they come, in two namespaces and two control groups: a server, and a load on it.

use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use netlab::{ControlGroup, Lab, Namespace, Process, Scratch, present, program, until};
use rustix::process::Signal;

use crate::meters::{iperf3, sockperf};
use crate::random::Random;
use crate::stage::{Stage, bytes};
use crate::web::{curl, h2load, sidecar, wrk};

/// Where every server listens: each has a namespace of its own.
pub(crate) const PORT: u16 = 7_000;

/// How large what is copied is.
pub(crate) const FILE_BYTES: usize = 48 << 20;

/// The user of PostgreSQL's server, which refuses to be root.
const POSTGRES: &str = "postgres";

/// One program with its load.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// What the load counts.
    pub(crate) unit: &'static str,
    /// Whether it is a time.
    pub(crate) less_is_better: bool,
    /// The least share of its messages that has to be redirected. Bulk passes while its reader is behind, as on a busy
    /// machine.
    pub(crate) least_redirected: f64,
    start: fn(&Stage, &Scratch) -> Option<Server>,
}

/// A running server, and what puts a load on it.
pub(crate) struct Server {
    processes: Vec<Process>,
    load: Box<dyn Fn(&Stage) -> f64>,
    check: Option<Check>,
}

impl Server {
    /// Puts the load on it, which has to succeed. Returns its figure.
    pub(crate) fn load(&self, stage: &Stage) -> f64 {
        (self.load)(stage)
    }

    /// Compares what comes back over redirected connections, where the load does not.
    pub(crate) fn check(&self, stage: &Stage) {
        if let Some(check) = &self.check {
            check(stage);
        }
    }

    pub(crate) fn new(processes: Vec<Process>, load: impl Fn(&Stage) -> f64 + 'static) -> Self {
        Self {
            processes,
            load: Box::new(load),
            check: None,
        }
    }

    pub(crate) fn with_check(mut self, check: impl Fn(&Stage) + 'static) -> Self {
        self.check = Some(Box::new(check));
        self
    }
}

/// Compares what comes back, and fails.
type Check = Box<dyn Fn(&Stage)>;

impl Drop for Server {
    /// Most end cleanly only when they are asked to.
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.signal(Signal::INT);
            let _ = process.wait_at_most(netlab::PATIENCE);
        }
    }
}

impl Program {
    /// `None` if it is not installed.
    pub(crate) fn start(&self, stage: &Stage, scratch: &Scratch) -> Option<Server> {
        (self.start)(stage, scratch)
    }
}

/// All of them.
pub(crate) const ALL: [Program; 13] = [
    Program {
        name: "redis",
        unit: "requests/s",
        less_is_better: false,
        least_redirected: 0.95,
        start: redis,
    },
    Program {
        name: "pgbench",
        unit: "transactions/s",
        less_is_better: false,
        least_redirected: 0.95,
        start: pgbench,
    },
    Program {
        name: "sysbench",
        unit: "transactions/s",
        less_is_better: false,
        least_redirected: 0.9,
        start: sysbench,
    },
    Program {
        name: "wrk",
        unit: "requests/s",
        less_is_better: false,
        least_redirected: 0.9,
        start: wrk,
    },
    Program {
        name: "sidecar",
        unit: "requests/s",
        less_is_better: false,
        least_redirected: 0.9,
        start: sidecar,
    },
    Program {
        name: "h2load",
        unit: "requests/s",
        less_is_better: false,
        least_redirected: 0.9,
        start: h2load,
    },
    Program {
        name: "sockperf",
        unit: "µs",
        less_is_better: true,
        least_redirected: 0.9,
        start: |stage, _| sockperf(stage, stage.lab.server(), Lab::SERVER_V4),
    },
    Program {
        name: "sockperf_veth",
        unit: "µs",
        less_is_better: true,
        least_redirected: 0.9,
        // Its server is the client's neighbour.
        start: |stage, _| sockperf(stage, stage.lab.relay(), Lab::RELAY_V4),
    },
    Program {
        name: "iperf3",
        unit: "Mbit/s",
        less_is_better: false,
        least_redirected: 0.0,
        start: |stage, _| iperf3(stage, "128K"),
    },
    Program {
        name: "iperf3_4k",
        unit: "Mbit/s",
        less_is_better: false,
        least_redirected: 0.3,
        start: |stage, _| iperf3(stage, "4K"),
    },
    Program {
        name: "iperf3_16k",
        unit: "Mbit/s",
        less_is_better: false,
        least_redirected: 0.1,
        start: |stage, _| iperf3(stage, "16K"),
    },
    Program {
        name: "scp",
        unit: "MiB/s",
        less_is_better: false,
        least_redirected: 0.0,
        start: scp,
    },
    Program {
        name: "curl",
        unit: "MiB/s",
        less_is_better: false,
        least_redirected: 0.0,
        start: curl,
    },
];

/// Has a shell enter the control group first, which has no name of its own for that.
const ENTER: &str = r#"echo 0 > "$0/cgroup.threads" && exec "$@""#;

pub(crate) fn within(group: &ControlGroup, namespace: &Namespace, path: &Path) -> Command {
    let mut command = namespace.command("sh");
    command.args(["-c", ENTER]).arg(group.path()).arg(path);
    command.env("LC_ALL", "C");
    command
}

pub(crate) fn at_server(stage: &Stage, path: &Path) -> Command {
    within(&stage.groups[1], stage.lab.server(), path)
}

pub(crate) fn at_client(stage: &Stage, path: &Path) -> Command {
    within(&stage.groups[0], stage.lab.client(), path)
}

/// The path of a program of a Debian package. Without it the test is skipped, or fails if `SPLICED_REQUIRE` lists it.
pub(crate) fn installed(name: &str, package: &str) -> Option<PathBuf> {
    // Debian has a directory for each version of PostgreSQL.
    let of_postgres = || {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
        let mut paths = versions
            .flatten()
            .map(|version| version.path().join("bin").join(name));
        paths.find(|path| path.exists())
    };
    let found = program(name).or_else(of_postgres);
    let missing = found.is_none();
    present(
        name,
        missing.then(|| format!("no {name} (apt install {package})")),
    );
    found
}

pub(crate) fn serve(command: &mut Command) -> Process {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Process::spawn(command.stderr(Stdio::null())).expect("the server starts")
}

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

pub(crate) fn until_listening(stage: &Stage) {
    until_listening_at(stage, Lab::SERVER_V4);
}

pub(crate) fn until_listening_at(stage: &Stage, ip: Ipv4Addr) {
    let connect = || std::net::TcpStream::connect((ip, PORT)).is_ok();
    until("the server listens", || {
        stage.lab.client().enter(connect).expect("entered")
    });
}

/// The number behind `label`.
pub(crate) fn number_behind(text: &str, label: &str) -> f64 {
    let number = text.split_once(label).and_then(|(_, rest)| {
        let rest = rest.trim_start();
        let end = rest.find(|of: char| !of.is_ascii_digit() && of != '.');
        rest[..end.unwrap_or(rest.len())].parse().ok()
    });
    number.unwrap_or_else(|| panic!("no number behind {label:?} in {text}"))
}

pub(crate) fn address() -> String {
    format!("{}:{PORT}", Lab::SERVER_V4)
}

fn redis(stage: &Stage, _: &Scratch) -> Option<Server> {
    let (server, client) = (
        installed("redis-server", "redis-server")?,
        installed("redis-benchmark", "redis-tools")?,
    );
    let cli = installed("redis-cli", "redis-tools")?;
    let mut command = at_server(stage, &server);
    command
        .args(["--port", &PORT.to_string(), "--save", ""])
        .args(["--protected-mode", "no", "--appendonly", "no"]);
    let processes = vec![serve(&mut command)];
    until_listening(stage);
    let load = move |stage: &Stage| {
        let mut command = at_client(stage, &client);
        command
            .args(["-h", &Lab::SERVER_V4.to_string(), "-p", &PORT.to_string()])
            .args(["-t", "get", "-n", "40000", "-c", "8", "--csv"]);
        number_behind(&run(&mut command), "\"GET\",\"")
    };
    let check = move |stage: &Stage| {
        let mut random = Random::of_run(63);
        let value = |_| {
            let length = random.size(400);
            let value = bytes(&mut random, length);
            value.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let values: Vec<String> = (0..1000).map(value).collect();
        let (mut asked, mut expected) = (String::new(), String::new());
        for (key, value) in values.iter().enumerate() {
            asked += &format!("SET {key} {value}\nGET {key}\n");
            expected += &format!("OK\n{value}\n");
        }
        let mut command = at_client(stage, &cli);
        command.args(["-h", &Lab::SERVER_V4.to_string(), "-p", &PORT.to_string()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli");
        let mut input = child.stdin.take().expect("its input");
        let told = thread::scope(|scope| {
            // It may stop reading while nobody reads what it prints.
            scope.spawn(move || input.write_all(asked.as_bytes()).expect("it reads"));
            child.wait_with_output().expect("it ends")
        });
        assert!(told.stdout == expected.as_bytes(), "other values");
    };
    Some(Server::new(processes, load).with_check(check))
}

fn as_postgres(mut command: Command, path: &Path) -> Command {
    command
        .args(["--reuid", POSTGRES, "--regid", POSTGRES, "--clear-groups"])
        .args(["--pdeathsig", "KILL", "--"])
        .arg(path)
        .current_dir("/");
    command
}

fn pgbench(stage: &Stage, scratch: &Scratch) -> Option<Server> {
    let (postgres, initdb) = (
        installed("postgres", "postgresql")?,
        installed("initdb", "postgresql")?,
    );
    let (client, setpriv) = (
        installed("pgbench", "postgresql-contrib")?,
        installed("setpriv", "util-linux")?,
    );
    let id = run(Command::new("id").args(["--user", POSTGRES]));
    let id = id.trim().parse().expect("a user's number");
    let directory = scratch.path().join("postgres");
    fs::create_dir(&directory).expect("a directory");
    chown(&directory, Some(id), None).expect("chown");
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let data = directory.join("data");
    run(as_postgres(Command::new(&setpriv), &initdb)
        .args(["--no-sync", "--auth", "trust", "--username", POSTGRES])
        .arg("--pgdata")
        .arg(&data));
    let hosts = fs::OpenOptions::new()
        .append(true)
        .open(data.join("pg_hba.conf"));
    writeln!(hosts.expect("a file"), "host all all 0.0.0.0/0 trust").expect("written");
    let mut command = as_postgres(at_server(stage, &setpriv), &postgres);
    command
        .arg("-D")
        .arg(&data)
        .arg("-k")
        .arg(&directory)
        .args(["-p", &PORT.to_string(), "-F", "-c", "listen_addresses=*"]);
    let processes = vec![serve(&mut command)];
    let options = move |stage: &Stage| {
        let mut command = at_client(stage, &client);
        command
            .args(["-h", &Lab::SERVER_V4.to_string(), "-p", &PORT.to_string()])
            .args(["-U", POSTGRES, "postgres"]);
        command
    };
    until("the cluster is filled", || {
        let mut fill = options(stage);
        fill.args(["-i", "-q"]).stderr(Stdio::null());
        fill.stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    let load = move |stage: &Stage| {
        let mut command = options(stage);
        command.args(["-S", "-n", "-c", "4", "-t", "4000", "-M", "prepared"]);
        let told = run(&mut command);
        assert!(told.contains("number of failed transactions: 0"), "{told}");
        number_behind(&told, "tps = ")
    };
    Some(Server::new(processes, load))
}

fn sysbench(stage: &Stage, scratch: &Scratch) -> Option<Server> {
    let (server, install) = (
        installed("mariadbd", "mariadb-server")?,
        installed("mariadb-install-db", "mariadb-server")?,
    );
    let client = installed("sysbench", "sysbench")?;
    let directory = scratch.path().join("mariadb");
    fs::create_dir(&directory).expect("a directory");
    let data = format!("--datadir={}", directory.display());
    run(Command::new(&install)
        .args(["--no-defaults", "--user=root", "--skip-test-db", &data])
        .args(["--auth-root-authentication-method=normal"]));
    let mut command = at_server(stage, &server);
    command
        .args(["--no-defaults", "--user=root", &data, "--skip-grant-tables"])
        .arg(format!("--socket={}/socket", directory.display()))
        .arg(format!("--port={PORT}"))
        .args(["--bind-address=0.0.0.0", "--skip-name-resolve"])
        .args(["--skip-log-bin", "--skip-networking=0"]);
    let processes = vec![serve(&mut command)];
    until_listening(stage);
    let options = move |stage: &Stage| {
        let mut command = at_client(stage, &client);
        command
            .args([
                "oltp_point_select",
                "--db-driver=mysql",
                "--mysql-user=root",
            ])
            .arg(format!("--mysql-host={}", Lab::SERVER_V4))
            .arg(format!("--mysql-port={PORT}"))
            .args(["--mysql-db=mysql", "--tables=1", "--table-size=1000"])
            .args(["--threads=4"]);
        command
    };
    until("the table is filled", || {
        let _ = options(stage).arg("cleanup").output();
        let filled = options(stage).arg("prepare").output();
        filled.is_ok_and(|output| output.status.success())
    });
    let load = move |stage: &Stage| {
        let told = run(options(stage).args(["--events=16000", "--time=0", "run"]));
        let errors = number_behind(&told, "ignored errors:");
        assert!(errors == 0.0, "{told}");
        number_behind(&told, "transactions:                        16000  (")
    };
    Some(Server::new(processes, load))
}

fn scp(stage: &Stage, scratch: &Scratch) -> Option<Server> {
    let (sshd, scp) = (
        installed("sshd", "openssh-server")?,
        installed("scp", "openssh-client")?,
    );
    let (keygen, unshare) = (
        installed("ssh-keygen", "openssh-client")?,
        installed("unshare", "util-linux")?,
    );
    let directory = scratch.path().to_owned();
    for key in ["host", "user"] {
        run(Command::new(&keygen)
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(directory.join(key)));
    }
    let path = directory.display();
    let configuration = format!(
        "Port {PORT}\nHostKey {path}/host\nAuthorizedKeysFile {path}/user.pub\nPidFile none\nStrictModes no\n\
         UsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n"
    );
    let configuration = scratch.write("sshd.conf", &configuration).expect("a file");
    // sshd needs an empty directory at a fixed path.
    let script = r#"mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec "$@""#;
    let mut command = at_server(stage, &unshare);
    command
        .args(["--mount", "sh", "-c", script, "sshd"])
        .arg(&sshd)
        .args(["-D", "-e", "-f"])
        .arg(configuration);
    let processes = vec![serve(&mut command)];
    until_listening(stage);
    let whole = bytes(&mut Random::of_run(62), FILE_BYTES);
    fs::write(directory.join("source"), &whole).expect("written");
    let load = move |stage: &Stage| {
        let begun = Instant::now();
        let mut command = at_client(stage, &scp);
        command
            .args(["-q", "-F", "none", "-P", &PORT.to_string(), "-i"])
            .arg(directory.join("user"))
            .args(["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"])
            .args(["-o", "UserKnownHostsFile=/dev/null"])
            .arg(directory.join("source"));
        let copy = directory.join("copy");
        run(command.arg(format!("root@{}:{}", Lab::SERVER_V4, copy.display())));
        let elapsed = begun.elapsed();
        assert!(fs::read(&copy).expect("a copy") == whole);
        (FILE_BYTES >> 20) as f64 / elapsed.as_secs_f64()
    };
    Some(Server::new(processes, load))
}
