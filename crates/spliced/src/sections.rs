//! Sections that the long help and the manual page of a command share.

/// One section, under a heading of its own.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) entries: &'static [Entry],
}

#[derive(Debug)]
pub(crate) enum Entry {
    /// A paragraph.
    Text(&'static str),
    /// A name and its meaning.
    Item(&'static str, &'static str),
}

/// Sections of the page of `relay`.
pub(crate) const RELAY: &[Section] = &[SIGNALS, EXIT_STATUS, FILES, RIGHTS];

/// Sections of the page of `echo`, which has no `segment`.
pub(crate) const ECHO: &[Section] = &[SIGNALS, EXIT_STATUS, ECHO_FILES, ECHO_RIGHTS];

/// Sections of the page of `mesh`, which writes no file.
pub(crate) const MESH: &[Section] = &[MESH_SIGNALS, MESH_EXIT_STATUS, MESH_RIGHTS];

/// Sections of the page of `adopt`, which writes no file.
pub(crate) const ADOPT: &[Section] = &[ADOPT_SIGNALS, ADOPT_EXIT_STATUS, ADOPT_RIGHTS];

/// Sections of the page of `bypass`, which writes no file.
pub(crate) const BYPASS: &[Section] = &[BYPASS_SIGNALS, BYPASS_EXIT_STATUS, BYPASS_RIGHTS];

/// Sections of the page of `run`.
pub(crate) const RUN: &[Section] = &[RUN_SIGNALS, EXIT_STATUS, RUN_FILES, RUN_RIGHTS];

/// Sections of the pages of `reload` and `status`.
pub(crate) const ASK: &[Section] = &[ASK_EXIT_STATUS, ASK_RIGHTS];

/// Sections of the page of `top`.
pub(crate) const TOP: &[Section] = &[TOP_EXIT_STATUS, ASK_RIGHTS];

/// Sections of the page of `check`.
pub(crate) const CHECK: &[Section] = &[CHECK_EXIT_STATUS, CHECK_RIGHTS];

/// Sections of the page of `doctor`.
pub(crate) const DOCTOR: &[Section] = &[DOCTOR_EXIT_STATUS, DOCTOR_RIGHTS];

/// Sections of the page of `matrix`.
pub(crate) const MATRIX: &[Section] = &[DOCTOR_EXIT_STATUS, MATRIX_RIGHTS];
/// Sections of the page of `trace`.
pub(crate) const TRACE: &[Section] = &[TRACE_EXIT_STATUS, TRACE_RIGHTS];

/// `sections` as a terminal shows them.
pub(crate) fn as_help(sections: &[Section]) -> String {
    let mut help = String::new();
    for section in sections {
        if !help.is_empty() {
            help.push('\n');
        }
        help.push_str(&format!("{}:\n", section.title));
        for entry in section.entries {
            // clap indents the following lines of a paragraph like its first.
            help.push_str(&match entry {
                Entry::Text(text) => format!("  {text}\n"),
                Entry::Item(name, meaning) => format!("  {name}\n          {meaning}\n"),
            });
        }
    }
    help.truncate(help.trim_end().len());
    help
}

const STOP: Entry = Entry::Item(
    "SIGTERM, SIGINT",
    "Stop accepting and let the connections end within the drain timeout. A second signal resets them at \
     once. It counts from one second after the first, because timeout(1) and terminals send two at once.",
);

const SIGNALS: Section = Section {
    title: "Signals",
    entries: &[STOP, HANG_UP, REOPEN, Entry::Item("SIGUSR2", "Log a line.")],
};

const HANG_UP: Entry = Entry::Item(
    "SIGHUP",
    "With a controlling terminal, the same as SIGTERM. Without one, the same as SIGUSR1. Under nohup(1) it \
     stays ignored.",
);

const REOPEN: Entry = Entry::Item(
    "SIGUSR1",
    "Open the access log again, after logrotate(8) has renamed it. If that fails, spliced keeps the old file \
     and logs why.",
);

const RUN_SIGNALS: Section = Section {
    title: "Signals",
    entries: &[
        STOP,
        Entry::Item(
            "SIGHUP",
            "Read the configuration again. Under nohup(1) it stays ignored.",
        ),
        Entry::Item(
            "SIGUSR1",
            "Open the access logs again, after logrotate(8) has renamed them.",
        ),
        Entry::Item("SIGUSR2", "Log a line."),
    ],
};

const MESH_SIGNALS: Section = Section {
    title: "Signals",
    entries: &[
        Entry::Item(
            "SIGTERM, SIGINT",
            "Stop accepting. Each member still gets what is on its way to it, and has 5 seconds to close its side. A \
             second signal ends the mesh at once. It counts from one second after the first.",
        ),
        Entry::Item(
            "SIGHUP",
            "Read the token file again. If that fails, the tokens from before stay valid. Without a token file it does \
             the same as SIGUSR1, or SIGTERM where there is a terminal.",
        ),
        Entry::Item(
            "SIGUSR1",
            "Open the access log again, and log what has gone through the mesh so far.",
        ),
    ],
};

const ADOPT_SIGNALS: Section = Section {
    title: "Signals",
    entries: &[
        Entry::Item(
            "SIGTERM, SIGINT",
            "Give the sockets back. If the owner has written bytes that a peer does not take, that waits for the peer; a \
             second signal then resets both connections. It counts from one second after the first.",
        ),
        Entry::Item(
            "SIGKILL",
            "A second process, the keeper, gives the sockets back as SIGTERM does. If both are killed, both connections are \
             reset: the owner has no descriptor of them.",
        ),
    ],
};

const ADOPT_EXIT_STATUS: Section = Section {
    title: "Exit status",
    entries: &[
        Entry::Item("0", "given back"),
        Entry::Item("1", "failed while running"),
        Entry::Item("2", "wrong usage, or the sockets cannot be adopted"),
        Entry::Item("3", "a second signal reset both connections"),
    ],
};

const ADOPT_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[
        Entry::Text(
            "Those to trace the owner: to be the same user, or CAP_SYS_PTRACE. kernel.yama.ptrace_scope may ask for more.",
        ),
        Entry::Item(
            "CAP_SYS_ADMIN",
            "To see that a socket is in no map of sockets. Without it nobody looks.",
        ),
    ],
};

const BYPASS_SIGNALS: Section = Section {
    title: "Signals",
    entries: &[
        Entry::Item(
            "SIGTERM, SIGINT",
            "Have every connection go on over TCP. That waits up to 10 s for processes to read what was redirected to them; a \
             second signal ends the wait. It counts from one second after the first. What is still unread keeps its pins, \
             and 'spliced bypass off' removes them later.",
        ),
        Entry::Item(
            "SIGKILL",
            "Every message goes over TCP half a second later, and nothing is lost. The next start or 'spliced bypass off' \
             removes the pins.",
        ),
    ],
};

const BYPASS_EXIT_STATUS: Section = Section {
    title: "Exit status",
    entries: &[
        Entry::Item("0", "ended well"),
        Entry::Item("1", "failed"),
        Entry::Item("2", "wrong usage"),
        Entry::Item("3", "ended with unread messages, whose pins stay"),
    ],
};

const BYPASS_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[
        Entry::Item("CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON", "always."),
        Entry::Item(
            "CAP_SYS_ADMIN",
            "for connections in other network namespaces, which it enters.",
        ),
    ],
};

const MESH_EXIT_STATUS: Section = Section {
    title: "Exit status",
    entries: &[
        Entry::Item("0", "ended well"),
        Entry::Item("1", "failed while running"),
        Entry::Item("2", "wrong usage"),
        Entry::Item("3", "a second signal cut members off"),
    ],
};

const MESH_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[
        Entry::Item(
            "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON",
            "for the engine sockmap. Without them, auto moves the frames in user space and logs why.",
        ),
        PORTS,
    ],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    entries: &[
        Entry::Item("0", "ended well"),
        Entry::Item("1", "failed while running"),
        Entry::Item("2", "wrong usage"),
        Entry::Item(
            "3",
            "connections were reset because the drain timeout was over or a second signal came",
        ),
    ],
};

const SOCKET_FILE: Entry = Entry::Item(
    "unix:/path, unixgram:/path, seqpacket:/path as LISTEN",
    "The relay creates the socket and removes it at its end. It replaces a socket that nobody listens on, \
     and no other file.",
);

const FILES: Section = Section {
    title: "Files",
    entries: &[
        ACCESS_LOG,
        SYSLOG,
        JOURNAL,
        CONTROL_SOCKET,
        SOCKET_FILE,
        LEGACY_TABLES,
    ],
};

const ECHO_FILES: Section = Section {
    title: "Files",
    entries: &[ACCESS_LOG, SYSLOG, JOURNAL, CONTROL_SOCKET, SOCKET_FILE],
};

const ACCESS_LOG: Entry = Entry::Item(
    "--access-log PATH",
    "spliced appends to the file, and creates it if it does not exist. A FIFO needs no reader at the start.",
);

const SYSLOG: Entry = Entry::Item("/dev/log", "Where --access-log syslog sends to.");

const JOURNAL: Entry = Entry::Item(
    "/run/systemd/journal/socket",
    "Where --access-log journald sends to.",
);

const PORTS: Entry = Entry::Item(
    "CAP_NET_BIND_SERVICE",
    "LISTEN with a port below net.ipv4.ip_unprivileged_port_start (1024).",
);

const FILE_ACCESS: Entry = Entry::Item(
    "CAP_CHOWN",
    "--owner, and --group if the user is not in the group.",
);

const RIGHTS: Section = Section {
    title: "Rights",
    entries: &[
        Entry::Text("copy, pipe, aio and uring need no privilege."),
        Entry::Item(
            "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON",
            "sockmap and segment. Without CAP_NET_ADMIN, large buffers are limited to twice \
             net.core.rmem_max.",
        ),
        Entry::Item(
            "CAP_DAC_READ_SEARCH",
            "segment as a user other than root on a host with iptables-legacy: it reads the names of the \
             tables. The relay needs it only at the start.",
        ),
        Entry::Item(
            "CAP_NET_RAW",
            "Telling clients of UDP by ICMP what becomes of their datagrams.",
        ),
        PORTS,
        FILE_ACCESS,
    ],
};

const ECHO_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[
        Entry::Text("copy, pipe, aio and uring need no privilege."),
        Entry::Item("CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON", "sockmap."),
        PORTS,
        FILE_ACCESS,
    ],
};

const DOCTOR_EXIT_STATUS: Section = Section {
    title: "Exit status",
    entries: &[
        Entry::Item("0", "examined, whatever was found"),
        Entry::Item("1", "failed while running"),
        Entry::Item("2", "wrong usage"),
    ],
};

const DOCTOR_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[Entry::Text(
        "The doctor needs no privilege. It reports what the user who runs it can use: run it with the \
         capabilities that the relay is going to have. Only the counts of the engine segment need \
         CAP_SYS_ADMIN.",
    )],
};

const MATRIX_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[Entry::Item(
        "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON",
        "Needed for maps of sockets.",
    )],
};

const LEGACY_TABLES: Entry = Entry::Item(
    "/proc/net/ip_tables_names, /proc/net/ip6_tables_names",
    "Opened once at the start, if segment may be used, to find the rules of iptables-legacy.",
);

const RUN_FILES: Section = Section {
    title: "Files",
    entries: &[
        Entry::Item(
            "--config FILE",
            "Relative paths in it start at its directory.",
        ),
        Entry::Item(
            "client = \"file:PATH\"",
            "A file of address prefixes, one a line, with comments behind #. A change takes effect within two \
             seconds. While the file is broken, the last good prefixes apply.",
        ),
        Entry::Item(
            "access_log = \"PATH\"",
            "As --access-log of spliced-relay(1).",
        ),
        SYSLOG,
        JOURNAL,
        CONTROL_SOCKET,
        SOCKET_FILE,
        LEGACY_TABLES,
    ],
};

const CONTROL_SOCKET: Entry = Entry::Item(
    "$RUNTIME_DIRECTORY/PID.sock, $XDG_RUNTIME_DIR/spliced/PID.sock, /run/user/UID/spliced/PID.sock, \
     /run/spliced/PID.sock, /tmp/spliced-UID/PID.sock",
    "The control socket without --control: JSON over HTTP/1.1, for spliced-status(1), spliced-reload(1) and curl. It is in \
     the first of these directories that the user of the process may write to; root begins with /run/spliced. A start \
     removes those that nobody listens on. A socket that --control names belongs to one process; another one takes it over \
     once that has ended.",
);

const RUN_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[
        Entry::Text("copy, pipe, aio and uring need no privilege."),
        Entry::Item(
            "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON",
            "sockmap and segment, as in spliced-relay(1).",
        ),
        Entry::Item(
            "CAP_NET_ADMIN",
            "source = \"client\" and mark of a backend.",
        ),
        PORTS,
        Entry::Item(
            "CAP_CHOWN",
            "owner of a listener, and group if the user is not in it.",
        ),
    ],
};

const CHECK_EXIT_STATUS: Section = Section {
    title: "Exit status",
    entries: &[
        Entry::Item("0", "the configuration can be used, perhaps with warnings"),
        Entry::Item("1", "failed while running"),
        Entry::Item(
            "2",
            "wrong usage, mistakes in the file, or an engine or address to listen on that this host does not \
             have",
        ),
    ],
};

const CHECK_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[Entry::Text(
        "The check needs no privilege. It reports what the user who runs it can use: run it with the \
         capabilities that 'spliced run' is going to have.",
    )],
};

const ASK_EXIT_STATUS: Section = Section {
    title: "Exit status",
    entries: &[
        Entry::Item("0", "done"),
        Entry::Item(
            "1",
            "there is no such process that this user may ask, it refuses what is asked, or the time to wait is over",
        ),
        Entry::Item("2", "wrong usage"),
    ],
};

const TOP_EXIT_STATUS: Section = Section {
    title: "Exit status",
    entries: &[
        Entry::Item("0", "ended by a key"),
        Entry::Item("1", "the terminal is gone or cannot be used"),
        Entry::Item("2", "wrong usage, or no terminal"),
    ],
};

const ASK_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[Entry::Text(
        "'spliced status', 'backends', 'drain', 'undrain', 'weigh', 'sessions', 'top', 'kill' and 'reload' reach the processes of \
         the user who runs them and those whose group has been given with --control-group. Root reaches those of every user, also with \
         another root directory and in other namespaces.",
    )],
};

const TRACE_EXIT_STATUS: Section = Section {
    title: "Exit status",
    entries: &[
        Entry::Item(
            "0",
            "traced, also if SIGINT or SIGTERM ended it after the first message",
        ),
        Entry::Item(
            "1",
            "failed while running: a right is missing, no message came, or an engine that was asked for does \
             not work",
        ),
        Entry::Item("2", "wrong usage"),
    ],
};

const TRACE_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[Entry::Item(
        "CAP_BPF, CAP_PERFMON",
        "All traces. send-to-local, sockmap and segment need CAP_NET_ADMIN, too; bypass and --demo need CAP_SYS_ADMIN.",
    )],
};
