//! What the verifier has to process before the programs run.

use std::io::ErrorKind;
use std::os::fd::AsFd as _;

use splice_base::error::{Error, Result};
use splice_base::obstacle::Obstacle;

use crate::load::{Object, load};
use crate::objects;
use crate::program::Program;
use crate::stack;
use crate::tracing::{kernel_types, leave_out_missing};
use crate::types::{RedirectionsSetting, trace_point};

/// The most instructions that the verifier may process for each program, on every kernel from 6.1 to 7.3: a quarter more
/// than the most that any of 6.1, 6.12, 6.18, 7.2 and 7.3 needed. The kernel allows a million for each program
/// (`BPF_COMPLEXITY_LIMIT_INSNS`), and any change to a program can multiply its share.
const MOST_INSTRUCTIONS: [(&str, u32); 33] = [
    ("admit", 373),
    ("bypass_control", 2_340),
    ("bypass_gone", 72),
    ("bypass_received", 2_900),
    ("bypass_send", 6_660),
    ("bypass_sent", 2_810),
    ("bypass_spliced", 240),
    ("caller", 10),
    ("catch", 303),
    ("gate", 584),
    ("hooks_count", 4_900),
    ("hooks_list", 6_694),
    ("inspect", 87),
    ("look", 2_590),
    ("mesh_inspect", 110),
    ("mesh_parser", 11_321),
    ("mesh_verdict", 3_132),
    ("quiet", 33),
    ("read_clock", 13),
    ("redirect", 2_759),
    ("redirect_received", 2_932),
    ("redirect_sent", 2_873),
    ("segment_asleep", 498),
    ("segment_egress", 9_734),
    ("segment_forget", 778),
    ("segment_ingress", 50_748),
    ("segment_inspect", 4_466),
    ("segment_release", 854),
    ("segment_tracked", 663),
    (AT_TRACEPOINT, 31_987),
    ("trace_entered", 39_756),
    ("trace_left", 5_794),
    ("trace_name", 26_884),
];

/// Every object that moves bytes, decides about them or records their way.
const OBJECTS: [(&str, &[u8]); 16] = [
    ("admit", objects::ADMIT),
    ("bypass", objects::BYPASS),
    ("bypass_control", objects::BYPASS_CONTROL),
    ("caller", objects::CALLER),
    ("catcher", objects::CATCHER),
    ("clock", objects::CLOCK),
    ("gate", objects::GATE),
    ("hooks", objects::HOOKS),
    ("inspect", objects::INSPECT),
    ("mesh", objects::MESH),
    ("redirect", objects::REDIRECT),
    ("redirections", objects::REDIRECTIONS),
    ("segment", objects::SEGMENT),
    ("trace", objects::TRACE),
    ("trace_live", objects::TRACE_LIVE),
    ("trace_stacks", objects::TRACE_STACKS),
];

/// A function that `spliced trace` records. The verifier does the same for each of them.
const TRACED: &str = "tcp_sendmsg";

/// What bounds the programs at tracepoints, which have one body: `trace_NAME` for each of [`trace_point::NAMES`].
const AT_TRACEPOINT: &str = "trace_POINT";

/// How many entries a map gets if the engines set its size. A ring buffer needs whole pages.
const ENTRIES: u32 = 4096;

/// The version of this kernel, without what is behind its second dot.
fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_str().expect("ASCII");
    let mut numbers = release.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn is_forbidden(error: &Error) -> bool {
    error
        .os_error()
        .is_some_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Objects that put sockets into maps, which Linux 7.3 allows no program of their types.
const CHANGES_MAPS_OF_SOCKETS: [&str; 3] = ["admit", "bypass_control", "gate"];

/// An object as the verifier has passed it. `None`: this kernel has no place for it.
fn verified(name: &'static str, bytes: &[u8]) -> Result<Option<Object>> {
    if name == "bypass" && kernel() < (6, 3) {
        println!("{name:12} needs the tracepoint sock_recv_length of Linux 6.3");
        return Ok(None);
    }
    let kernel_types = kernel_types()?;
    let loaded = load(name, bytes, |opened| {
        for mut map in opened.0.maps_mut() {
            if map.max_entries() == 0 && map.map_type() != libbpf_rs::MapType::SkStorage {
                map.set_max_entries(ENTRIES).expect("sized");
            }
        }
        // The helpers of one type of map reject the other.
        if name == "redirections" {
            let setting = RedirectionsSetting {
                is_hash: 1,
                ..RedirectionsSetting::default()
            };
            opened.set_constant(".rodata.setting", &setting)?;
        }
        if name == "trace" {
            opened.aim("trace_entered", TRACED)?;
            opened.aim("trace_left", TRACED)?;
        }
        if ["trace_live", "trace_stacks"].contains(&name) {
            leave_out_missing(opened, &kernel_types)?;
        }
        Ok(())
    });
    match loaded {
        // A kernel may forbid programs at its functions; `spliced trace` then uses tracepoints.
        Err(error) if name == "trace" && is_forbidden(&error) => {
            println!("{name:12} is not allowed here: {error}");
            Ok(None)
        }
        Err(error) if CHANGES_MAPS_OF_SOCKETS.contains(&name) && kernel() >= (7, 3) => {
            let Obstacle { reason, .. } = Obstacle::of_bpf(&error);
            assert!(reason.contains("since Linux 7.3"), "{reason}");
            println!("{name:12} is refused: {reason}");
            Ok(None)
        }
        loaded => loaded.map(Some),
    }
}

#[test]
fn the_verifier_goes_through_few_instructions() -> Result<()> {
    if !netlab::available(netlab::Need::Root) {
        return Ok(());
    }
    let mut beyond = Vec::new();
    for (name, bytes) in OBJECTS {
        let Some(object) = verified(name, bytes)? else {
            continue;
        };
        for of in object.0.progs_mut().filter(|of| of.autoload()) {
            let fd = of.as_fd().try_clone_to_owned().expect("a descriptor");
            let program = Program::new(name, fd);
            let (title, verified) = (of.name(), program.info().expect("told").verified_insns);
            let title = title.to_str().expect("ASCII");
            println!("{name:12} {title:17} {verified:7}");
            let point = title.strip_prefix("trace_").unwrap_or_default();
            let bounded_as = if trace_point::NAMES.contains(&point) {
                AT_TRACEPOINT
            } else {
                title
            };
            let bound = MOST_INSTRUCTIONS
                .iter()
                .find(|(bounded, _)| *bounded == bounded_as);
            let (_, most) = bound.unwrap_or_else(|| panic!("{title} has no bound"));
            if verified > *most {
                beyond.push(format!("{title}: {verified}, at most {most}"));
            }
        }
    }
    assert!(beyond.is_empty(), "{beyond:?}");
    Ok(())
}

#[test]
fn the_programs_fit_the_stack_of_the_oldest_kernel() -> Result<()> {
    if !netlab::available(netlab::Need::Root) {
        return Ok(());
    }
    for (name, bytes) in OBJECTS {
        let Some(object) = verified(name, bytes)? else {
            continue;
        };
        for of in object.0.progs().filter(|of| of.autoload()) {
            let title = of.name().to_str().expect("ASCII");
            let bytes = stack::deepest(of.insns());
            println!("{name:12} {title:17} {bytes:7}");
            assert!(bytes <= stack::MOST_BYTES, "{title}: {bytes} bytes");
        }
    }
    Ok(())
}
