//! The computer that figures are taken on: what of it bears on them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::results::{Machine, Mitigation};

/// One file per defect of CPUs (Documentation/admin-guide/hw-vuln).
const VULNERABILITIES: &str = "/sys/devices/system/cpu/vulnerabilities";

/// What the kernel writes of a CPU that a defect does not concern.
const UNAFFECTED: &str = "Not affected";

/// Beginnings of the kernel's parameters that bear on speed: defences against defects, CPUs that are
/// set apart, idle states, clocks and preemption (Documentation/admin-guide/kernel-parameters.txt).
/// The others, console and devices, do not, and may tell more of a machine than its owner likes.
const PARAMETERS: [&str; 30] = [
    "clocksource",
    "cpuidle",
    "gather_data_sampling",
    "haltpoll",
    "idle",
    "intel_idle",
    "intel_pstate",
    "irqaffinity",
    "isolcpus",
    "l1tf",
    "maxcpus",
    "mds",
    "mitigations",
    "mmio_stale_data",
    "no_hz",
    "nohz",
    "nopti",
    "nosmt",
    "nospectre",
    "pcie_aspm",
    "preempt",
    "processor",
    "pti",
    "rcu_nocbs",
    "rcupdate",
    "retbleed",
    "spec",
    "threadirqs",
    "transparent_hugepage",
    "tsc",
];

impl Machine {
    /// The one that this program runs on.
    pub(crate) fn this() -> Result<Self> {
        let uname = rustix::system::uname();
        let text = |field: &std::ffi::CStr| field.to_string_lossy().into_owned();
        let cpu = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
        let memory = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
        let kibibytes = field(&memory, "MemTotal")
            .and_then(|value| value.strip_suffix("kB")?.trim().parse::<u64>().ok())
            .context("/proc/meminfo does not say MemTotal")?;
        Ok(Self {
            cpu_model: field(&cpu, "model name").unwrap_or("unknown").into(),
            cpus: count_of_cpus(&cpu),
            memory_bytes: kibibytes << 10,
            virtualisation: virtualisation(&cpu),
            mitigations: mitigations(Path::new(VULNERABILITIES)),
            kernel_release: text(uname.release()),
            kernel_version: text(uname.version()),
            kernel_parameters: line("/proc/cmdline").map_or_else(Vec::new, |all| parameters(&all)),
            cpu_governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clock_source: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            distribution: distribution(),
        })
    }
}

/// The only line of a small file.
fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The value behind `name` and a colon.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// All of them: this thread may be pinned, so what it may use is not what there is.
fn count_of_cpus(cpuinfo: &str) -> usize {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count()
}

fn virtualisation(cpuinfo: &str) -> Option<String> {
    let guest = field(cpuinfo, "flags")?
        .split(' ')
        .any(|flag| flag == "hypervisor");
    // lscpu (util-linux, on every Debian) asks the CPU which hypervisor it is.
    let vendor = || {
        let output = Command::new("lscpu").env("LC_ALL", "C").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        field(&text, "Hypervisor vendor").map(str::to_owned)
    };
    guest.then(|| vendor().unwrap_or_else(|| "a hypervisor that does not say which".into()))
}

fn mitigations(directory: &Path) -> Vec<Mitigation> {
    let mut all: Vec<Mitigation> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path()).ok()?.trim().to_owned();
            let defect = entry.file_name().to_string_lossy().into_owned();
            (state != UNAFFECTED).then_some(Mitigation { defect, state })
        })
        .collect();
    all.sort_by(|one, other| one.defect.cmp(&other.defect));
    all
}

fn parameters(command_line: &str) -> Vec<String> {
    command_line
        .split_whitespace()
        // What follows is for init.
        .take_while(|&word| word != "--")
        .filter(|word| PARAMETERS.iter().any(|known| word.starts_with(known)))
        .map(str::to_owned)
        .collect()
}

fn distribution() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use netlab::Scratch;

    use super::{Machine, mitigations, parameters};

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::this().expect("/proc is there");
        assert!(machine.cpus > 0 && machine.memory_bytes > 1 << 20);
        assert!(!machine.kernel_release.is_empty());
    }

    #[test]
    fn parameters_that_bear_on_speed_are_told_and_no_others() {
        let line = "mitigations=auto console=ttyS0 isolcpus=1-3 root=/dev/sda1 -- idle=poll";
        assert_eq!(parameters(line), ["mitigations=auto", "isolcpus=1-3"]);
    }

    #[test]
    fn defects_that_do_not_concern_the_cpu_are_left_out() {
        let scratch = Scratch::new("vulnerabilities").expect("a directory");
        for (name, state) in [
            ("b", "Vulnerable\n"),
            ("a", "Mitigation: X\n"),
            ("c", "Not affected\n"),
        ] {
            fs::write(scratch.path().join(name), state).expect("it is ours");
        }
        let found: Vec<String> = mitigations(scratch.path())
            .into_iter()
            .map(|one| format!("{}: {}", one.defect, one.state))
            .collect();
        assert_eq!(found, ["a: Mitigation: X", "b: Vulnerable"]);
        assert!(mitigations(&scratch.path().join("none")).is_empty());
    }
}
