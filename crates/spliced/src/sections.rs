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

/// Sections of the page of `echo`, which has neither an access log nor `segment`.
pub(crate) const ECHO: &[Section] = &[ECHO_SIGNALS, EXIT_STATUS, ECHO_FILES, ECHO_RIGHTS];

/// Sections of the page of `run`.
pub(crate) const RUN: &[Section] = &[RUN_SIGNALS, EXIT_STATUS, RUN_FILES, RUN_RIGHTS];

/// Sections of the pages of `reload` and `status`.
pub(crate) const ASK: &[Section] = &[ASK_EXIT_STATUS, ASK_RIGHTS];

/// Sections of the page of `check`.
pub(crate) const CHECK: &[Section] = &[CHECK_EXIT_STATUS, CHECK_RIGHTS];

/// Sections of the page of `doctor`.
pub(crate) const DOCTOR: &[Section] = &[DOCTOR_EXIT_STATUS, DOCTOR_RIGHTS];

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
    entries: &[
        STOP,
        Entry::Item(
            "SIGHUP",
            "With a controlling terminal, the same as SIGTERM. Without one, the same as SIGUSR1. Under \
             nohup(1) it stays ignored.",
        ),
        Entry::Item(
            "SIGUSR1",
            "Open the access log again, after logrotate(8) has renamed it. If that fails, the relay keeps \
             the old file and logs why.",
        ),
        Entry::Item("SIGUSR2", "Log a line."),
    ],
};

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

const ECHO_SIGNALS: Section = Section {
    title: "Signals",
    entries: &[
        STOP,
        Entry::Item(
            "SIGHUP",
            "With a controlling terminal, the same as SIGTERM. Without one, and under nohup(1), it is \
             ignored.",
        ),
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
    "unix:/path as LISTEN",
    "The relay creates the socket and removes it at its end. It replaces a socket that nobody listens on, \
     and no other file.",
);

const FILES: Section = Section {
    title: "Files",
    entries: &[
        Entry::Item(
            "--access-log PATH",
            "The relay appends to the file, and creates it if it does not exist. A FIFO needs no reader at \
             the start.",
        ),
        SOCKET_FILE,
        LEGACY_TABLES,
    ],
};

const ECHO_FILES: Section = Section {
    title: "Files",
    entries: &[SOCKET_FILE],
};

const PORTS: Entry = Entry::Item(
    "CAP_NET_BIND_SERVICE",
    "LISTEN with a port below net.ipv4.ip_unprivileged_port_start (1024).",
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
        PORTS,
    ],
};

const ECHO_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[
        Entry::Text("copy, pipe, aio and uring need no privilege."),
        Entry::Item("CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON", "sockmap."),
        PORTS,
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
        SOCKET_FILE,
        LEGACY_TABLES,
    ],
};

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
            "no process runs the configuration, or it refuses what is asked",
        ),
        Entry::Item("2", "wrong usage"),
    ],
};

const ASK_RIGHTS: Section = Section {
    title: "Rights",
    entries: &[Entry::Text(
        "Only the user who has started 'spliced run' reaches its socket.",
    )],
};
