//! The compiled BPF objects, which `make bpf` has made from `bpf/*.bpf.c`.

macro_rules! objects {
    ($($(#[$meta:meta])* $name:ident = $file:literal;)*) => {
        $($(#[$meta])* pub static $name: &[u8] = include_bytes!(concat!("../bpf/prebuilt/", $file, ".bpf.o"));)*
    };
}

objects! {
    /// Links two connections that `CATCHER` has caught.
    ADMIT = "admit";
    /// Hands what one socket sends to the reader of another one on the same host.
    BYPASS = "bypass";
    /// Makes sockets members of `BYPASS`.
    BYPASS_CONTROL = "bypass_control";
    /// Calls another program from a filter on a clsact qdisc.
    CALLER = "caller";
    /// Catches the TCP connections of a control group.
    CATCHER = "catcher";
    /// Reads the clock of BPF programs.
    CLOCK = "clock";
    /// Adds sources to the map of `REDIRECT`.
    GATE = "gate";
    /// Lists the functions that are registered at netfilter's hooks.
    HOOKS = "hooks";
    /// Reads how far a socket in the map of `REDIRECT` has come.
    INSPECT = "inspect";
    /// A mesh of sockets that send frames to one another.
    MESH = "mesh";
    /// The engine `sockmap`.
    REDIRECT = "redirect";
    /// The four redirects of SOCKMAP.
    REDIRECTIONS = "redirections";
    /// The engine `segment`.
    SEGMENT = "segment";
    /// Records which functions of the kernel a message goes through.
    TRACE = "trace";
    /// Records what the kernel is doing at few tracepoints, beside connections of others.
    TRACE_LIVE = "trace_live";
    /// Records what the kernel is doing at tracepoints.
    TRACE_STACKS = "trace_stacks";
}

#[cfg(feature = "test")]
objects! {
    /// A foreign tc program, for tests.
    FOREIGN_TC = "foreign_tc";
    /// Foreign programs on a device that drop everything, for tests.
    FOREIGN_DROP = "foreign_drop";
    /// Programs of a control group, for tests.
    CGROUP_FILTER = "cgroup_filter";
    /// A path that loses and reorders, for tests.
    DISORDER = "disorder";
    /// A program at a hook of netfilter, for tests.
    NETFILTER_LINK = "netfilter_link";
}
