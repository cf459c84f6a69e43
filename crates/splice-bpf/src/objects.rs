//! The compiled BPF objects, which `make bpf` has made from `bpf/*.bpf.c`.

macro_rules! objects {
    ($($(#[$meta:meta])* $name:ident = $file:literal;)*) => {
        $($(#[$meta])* pub static $name: &[u8] = include_bytes!(concat!("../bpf/prebuilt/", $file, ".bpf.o"));)*
    };
}

objects! {
    /// Calls another program from a filter on a clsact qdisc.
    CALLER = "caller";
    /// Reads the clock of BPF programs.
    CLOCK = "clock";
    /// Adds sources to the map of `REDIRECT`.
    GATE = "gate";
    /// Lists the functions that are registered at netfilter's hooks.
    HOOKS = "hooks";
    /// Reads how far a socket in the map of `REDIRECT` has come.
    INSPECT = "inspect";
    /// The engine `sockmap`.
    REDIRECT = "redirect";
    /// The engine `segment`.
    SEGMENT = "segment";
}

#[cfg(feature = "test")]
objects! {
    /// A foreign tc program, for tests.
    FOREIGN_TC = "foreign_tc";
    /// A filter of a control group, for tests.
    CGROUP_FILTER = "cgroup_filter";
    /// A path that loses and reorders, for tests.
    DISORDER = "disorder";
    /// A program at a hook of netfilter, for tests.
    NETFILTER_LINK = "netfilter_link";
}
