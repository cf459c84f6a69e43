//! The control socket in the deployments that README.md recommends.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use netlab::{Need, Process, Scratch, available};
use serde_json::Value;

use super::CONFIGURATION;
use super::servers::{join, quoted, talk, with};
use crate::doctor::{NOBODY, for_anybody};
use crate::patience::until_found;
use crate::relay::{BINARY, Relay, command, output};
use crate::server::Server;
use crate::usage::failure;

/// What the unit in README.md gives.
const CAPABILITIES: &str = "-all,+bpf,+net_admin,+perfmon,+net_bind_service";

/// All processes that this user may ask.
fn all() -> Vec<Value> {
    let output = output(&mut command(&["status", "--json"]));
    match output.status.success() {
        true => serde_json::from_slice(&output.stdout).expect("JSON"),
        false => Vec::new(),
    }
}

/// What `spliced status` finds without being told where.
fn found(relay: &Relay) -> Value {
    until_found("it is found", || {
        let of_relay = |status: &Value| status["process"]["pid"] == relay.id();
        all().into_iter().find(of_relay)
    })
}

/// Gives the user of an image `run/spliced`.
pub(super) fn make_run_directory(image: &Path) {
    let directory = image.join("run/spliced");
    fs::create_dir_all(&directory).expect("made");
    chown(&directory, Some(65532), Some(65532)).expect("given away");
}

/// Makes the command that runs the program with these arguments.
type Spliced = dyn Fn(&[&str]) -> Command;

/// One of the deployments: a configuration, and the program as its user runs it.
struct Deployment {
    name: &'static str,
    user: u32,
    /// What this user may splice with.
    engine: &'static str,
    scratch: Scratch,
    configuration: PathBuf,
    /// The configuration as the process names it.
    named: String,
    spliced: Box<Spliced>,
}

impl Deployment {
    fn of_root() -> Self {
        let scratch = Scratch::new("control").expect("a directory");
        let configuration = scratch.path().join("c.toml");
        Self {
            name: "root",
            user: 0,
            engine: "sockmap",
            named: configuration.to_str().expect("UTF-8").into(),
            configuration,
            scratch,
            spliced: Box::new(command),
        }
    }

    /// The unit: a user of its own, a directory of its own and these capabilities.
    fn of_unit() -> Self {
        let scratch = Scratch::new("control").expect("a directory");
        let program = for_anybody(&scratch);
        let directory = scratch.path().join("run");
        let user = NOBODY.parse().expect("a number");
        fs::create_dir(&directory).expect("made");
        chown(&directory, Some(user), Some(user)).expect("given away");
        let configuration = scratch.path().join("c.toml");
        let spliced = move |arguments: &[&str]| {
            let mut command = Process::command("setpriv");
            command
                .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
                // As DynamicUser= has it.
                .arg("--no-new-privs")
                .arg(format!("--inh-caps={CAPABILITIES}"))
                .arg(format!("--ambient-caps={CAPABILITIES}"))
                .arg(format!("--bounding-set={CAPABILITIES}"))
                .arg("--")
                .arg(&program)
                .args(arguments)
                .env("RUNTIME_DIRECTORY", &directory)
                .env_remove("SPLICED_LOG");
            command
        };
        Self {
            name: "unit",
            user,
            engine: "sockmap",
            named: configuration.to_str().expect("UTF-8").into(),
            configuration,
            scratch,
            spliced: Box::new(spliced),
        }
    }

    /// A container image, whose user has no capability.
    fn of_image() -> Self {
        let scratch = Scratch::new("control").expect("a directory");
        let root = image(&scratch);
        make_run_directory(&root);
        Self {
            name: "image",
            user: 65532,
            engine: "copy",
            configuration: root.join("c.toml"),
            named: "/c.toml".into(),
            scratch,
            spliced: Box::new(move |arguments| in_image(&root, arguments)),
        }
    }

    fn run(&self, configuration: &str) -> Relay {
        fs::write(&self.configuration, configuration).expect("written");
        Relay::spawn(&mut (self.spliced)(&["run", "--config", &self.named]))
    }

    /// What a command answers that root asks outside, or the user of the process inside.
    fn ask(&self, by_root: bool, arguments: &[&str]) -> Value {
        let mut command = match by_root {
            true => command(arguments),
            false => (self.spliced)(arguments),
        };
        match by_root {
            true => command.arg("--config").arg(&self.configuration),
            false => command.args(["--config", &self.named]),
        };
        let Output {
            status,
            stdout,
            stderr,
        } = output(&mut command);
        let told = String::from_utf8_lossy(&stderr);
        assert!(
            status.success() && told.is_empty(),
            "{}: {command:?}: {told}",
            self.name
        );
        serde_json::from_slice(&stdout).unwrap_or_default()
    }
}

#[test]
fn each_deployment_shows_its_state_and_sessions_drains_a_server_and_reloads() {
    if !available(Need::Root) {
        return;
    }
    for deployment in [
        Deployment::of_root(),
        Deployment::of_unit(),
        Deployment::of_image(),
    ] {
        let (name, engine) = (deployment.name, deployment.engine);
        if engine == "sockmap" && !available(Need::Bpf) {
            continue;
        }
        let (first, second) = (Server::new(), Server::new());
        let servers = [quoted(&first), with(&second, "backup = true")];
        let relay = deployment.run(&format!(
            "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"{engine}\"\n\
             [[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = [{}]\n",
            servers.join(", ")
        ));
        let (near, far) = join(&relay.address, &first);
        let mut passed = 1;
        for (reloads, by_root) in [(1, true), (2, false)] {
            let ask = |arguments: &[&str]| deployment.ask(by_root, arguments);
            let told = ask(&["status", "--json"]);
            assert_eq!(told.as_array().map(Vec::len), Some(1), "{name}: {told}");
            let process = &told[0]["process"];
            assert_eq!(process["pid"], relay.id(), "{name}");
            assert_eq!(process["user"], deployment.user, "{name}");
            let expect_listed = |numbers: u64| {
                let bytes = 8 * numbers;
                let session = until_found("its bytes are counted", || {
                    let mut told = ask(&["sessions", "--json"]);
                    let all = told["sessions"].as_array_mut().map(std::mem::take)?;
                    let [session] = <[Value; 1]>::try_from(all).ok()?;
                    let is_counted = |field: &str| session[field] == bytes;
                    let both = ["client_to_target_bytes", "target_to_client_bytes"];
                    both.into_iter().all(is_counted).then_some(session)
                });
                assert_eq!(session["client"], near.local_address(), "{name}");
                assert_eq!(session["server"], first.address, "{name}");
                assert_eq!(session["engine"], engine, "{name}");
            };
            expect_listed(passed);
            ask(&["drain", &first.address]);
            drop(join(&relay.address, &second));
            talk(&near, &far, passed);
            passed += 1;
            expect_listed(passed);
            ask(&["reload"]);
            let told = ask(&["status", "--json"]);
            assert_eq!(told[0]["process"]["reloads"], reloads, "{name}");
            // It stays drained.
            drop(join(&relay.address, &second));
            talk(&near, &far, passed);
            passed += 1;
            expect_listed(passed);
            ask(&["undrain", &first.address]);
            drop(join(&relay.address, &first));
        }
        for user in [0, deployment.user] {
            relay.wait_logged(&format!("drained by user {user} (process "));
            relay.wait_logged(&format!("POST /v1/reload was asked for by user {user} "));
        }
    }
}

#[test]
fn a_service_user_with_the_capabilities_of_the_unit_is_asked_and_reloaded() {
    if !available(Need::Root) {
        return;
    }
    let deployment = Deployment::of_unit();
    let relay = deployment.run(CONFIGURATION);
    let status = found(&relay);
    assert_eq!(status["process"]["user"], deployment.user);
    assert_eq!(status["listeners"][0]["name"], "l");
    let scratch = deployment.scratch.path();
    let socket = scratch.join(format!("run/{}.sock", relay.id()));
    relay.wait_logged(&format!("INFO control socket at {}", socket.display()));
    assert_eq!(fs::metadata(&socket).expect("a file").mode() & 0o777, 0o600);
    // As root and as its user, by the file and by the socket.
    let socket = socket.to_str().expect("UTF-8");
    for arguments in [["--config", &deployment.named], ["--control", socket]] {
        for verb in ["status", "reload"] {
            let arguments = [verb, arguments[0], arguments[1]];
            for mut command in [command(&arguments), (deployment.spliced)(&arguments)] {
                let output = output(&mut command);
                let told = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{command:?}: {told}");
            }
        }
    }
    let logged = relay.wait_logged("POST /v1/reload was asked for by user 65534 (process ");
    assert!(logged.contains("INFO"), "{logged}");
    relay.wait_logged("POST /v1/reload was asked for by user 0 (process ");
    // Others may not even connect.
    let mut stranger = Process::command("setpriv");
    stranger
        .args([
            "--reuid",
            "65533",
            "--regid",
            "65533",
            "--clear-groups",
            "--",
        ])
        .arg(scratch.join("spliced"))
        .args(["status", "--control", socket])
        .env_remove("SPLICED_LOG");
    let told = failure(&mut stranger, 1);
    assert!(told.contains("may not connect to /"), "{told}");
    assert!(
        told.contains("--control-group GROUP, or control_group of [process]"),
        "{told}"
    );
}

/// Somebody has asked for it, and would believe that its members may ask.
#[test]
fn a_group_that_the_process_cannot_give_a_socket_to_refuses_the_start() {
    if !available(Need::Root) {
        return;
    }
    let deployment = Deployment::of_unit();
    let cannot = "cannot give the control socket to group 4321: ";
    for (listen, target) in [
        ("127.0.0.1:0", "127.0.0.1:9"),
        ("udp:127.0.0.1:0", "udp:127.0.0.1:9"),
        ("seqpacket:@spliced-group", "seqpacket:/nowhere"),
    ] {
        for (path, group) in [
            ("--control", "--control-group"),
            ("--control-read", "--control-read-group"),
        ] {
            let socket = deployment.scratch.path().join("run/sock");
            let socket = socket.to_str().expect("UTF-8");
            let arguments = ["relay", listen, target, path, socket, group, "4321"];
            let told = failure(&mut (deployment.spliced)(&arguments), 2);
            assert!(told.contains(cannot) && told.contains(group), "{told}");
            assert!(!told.contains("listening on"), "{told}");
        }
    }
    let text = format!("[process]\ncontrol_group = 4321\n{CONFIGURATION}");
    fs::write(&deployment.configuration, text).expect("written");
    let run = ["run", "--config", &deployment.named];
    let told = failure(&mut (deployment.spliced)(&run), 2);
    assert!(told.contains(cannot), "{told}");
    // Its own group does not need a capability.
    let arguments = [
        "relay",
        "127.0.0.1:0",
        "127.0.0.1:9",
        "--control-group",
        NOBODY,
    ];
    let relay = Relay::spawn(&mut (deployment.spliced)(&arguments));
    relay.wait_logged("control socket at /");
    // One that there is not.
    let unknown = [
        "relay",
        "127.0.0.1:0",
        "127.0.0.1:9",
        "--control-group",
        "no-such",
    ];
    let told = failure(&mut (deployment.spliced)(&unknown), 2);
    assert!(told.contains("this host has no such group"), "{told}");
}

/// A directory with the program and its libraries, and nothing else.
pub(super) fn image(scratch: &Scratch) -> PathBuf {
    let root = scratch.path().join("image");
    let copy = |file: &str, to: &Path| {
        fs::create_dir_all(to.parent().expect("a directory")).expect("made");
        let copied = Process::command("install")
            .args(["-m", "755", file])
            .arg(to)
            .status();
        assert!(copied.expect("install of coreutils").success());
    };
    copy(BINARY, &root.join("spliced"));
    let libraries = output(Process::command("ldd").arg(BINARY));
    let libraries = String::from_utf8(libraries.stdout).expect("text");
    for word in libraries
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        copy(word, &root.join(&word[1..]));
    }
    fs::write(root.join("c.toml"), CONFIGURATION).expect("written");
    for path in [scratch.path(), &root] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("set");
    }
    root
}

pub(super) fn in_image(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Process::command("chroot");
    command
        .args(["--userspec=65532:65532", "--groups="])
        .arg(root)
        .arg("/spliced")
        .args(arguments)
        .env_remove("SPLICED_LOG")
        .env_remove("RUNTIME_DIRECTORY")
        .env_remove("XDG_RUNTIME_DIR");
    command
}

#[test]
fn an_image_with_another_root_as_user_65532_is_asked_and_reloaded() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("control").expect("a directory");
    let root = image(&scratch);
    make_run_directory(&root);
    let arguments = ["run", "--config", "/c.toml"];
    let relay = Relay::spawn(&mut in_image(&root, &arguments));
    let status = found(&relay);
    assert_eq!(status["process"]["user"], 65532);
    assert_eq!(status["process"]["configuration"], "/c.toml");
    let socket = status["socket"].as_str().expect("a path");
    let reload = output(&mut command(&["reload", "--control", socket]));
    assert!(reload.status.success(), "{reload:?}");
    relay.wait_logged("the configuration was reloaded");
    // From within.
    let reload = output(&mut in_image(&root, &["reload", "--config", "/c.toml"]));
    assert!(reload.status.success(), "{reload:?}");
    // With its own path.
    let given = [
        "relay",
        "127.0.0.1:0",
        "127.0.0.1:9",
        "--control",
        "/run/spliced/x",
    ];
    let relay = Relay::spawn(&mut in_image(&root, &given));
    let socket = found(&relay)["socket"].take();
    let socket = socket.as_str().expect("a path");
    assert!(socket.ends_with("/run/spliced/x"), "{socket}");
}

#[test]
fn without_a_directory_one_warning_says_what_to_do_and_the_relay_runs() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("control").expect("a directory");
    let root = image(&scratch);
    let arguments = ["relay", "127.0.0.1:0", "127.0.0.1:9"];
    let relay = Relay::spawn(&mut in_image(&root, &arguments));
    let told = relay.wait_logged("cannot reach this process");
    for part in ["/run/spliced", "--control PATH", "RUNTIME_DIRECTORY"] {
        assert!(told.contains(part), "no {part:?} in {told:?}");
    }
    // Once somebody makes the directory, it is used.
    make_run_directory(&root);
    relay.wait_logged("reach this process now");
    found(&relay);
    assert_eq!(relay.lines_logged("cannot reach this process"), 1);
    relay.wait_logged(&format!(
        "control socket at /run/spliced/{}.sock: ",
        relay.id()
    ));
    // What the unit has chosen comes before what else was tried.
    fs::remove_dir_all(root.join("run/spliced")).expect("removed");
    let mut of_unit = in_image(&root, &arguments);
    let relay = Relay::spawn(of_unit.env("RUNTIME_DIRECTORY", "/run/web:/run/other"));
    let told = relay.wait_logged("cannot reach this process");
    let chosen = "cannot reach this process: cannot make /run/web: ";
    assert!(told.contains(chosen), "{told}");
    assert!(
        told.contains(" (that is $RUNTIME_DIRECTORY); tried as well: "),
        "{told}"
    );
}
