//! The pages of a run: `report.html`, `summary.md` and the charts, all made from [`Results`].

mod bars;
mod candlesticks;
mod chart;
mod curves;
mod headline;
#[cfg(test)]
mod legible;
mod listing;
mod page;
mod scale;
#[cfg(test)]
pub(crate) mod specimen;
mod summary;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use self::chart::Chart;
pub(crate) use self::headline::headline;
use self::scale::tick_words;
use crate::results::{Placement, Results, Unit, Workload, number};

/// Where the charts go, as files of their own.
const CHARTS: &str = "charts";

/// Writes everything into `directory`, over what an earlier call has written.
pub(crate) fn write(directory: &Path, results: &Results) -> Result<()> {
    let charts_directory = directory.join(CHARTS);
    fs::create_dir_all(&charts_directory)
        .with_context(|| format!("cannot create {}", charts_directory.display()))?;
    let save = |name: &str, text: String| {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let of_workloads = results.workloads.iter();
    let all = of_workloads.flat_map(|workload| charts(results, workload));
    for chart in overview(results).into_iter().chain(all) {
        save(&chart_file(&chart), chart.standalone())?;
    }
    save("summary.md", summary::summary(results))?;
    save("report.html", page::page(results))
}

fn chart_file(chart: &Chart) -> String {
    format!("{CHARTS}/{}.svg", chart.id)
}

/// Marks a run that was interrupted.
const INTERRUPTED: &str = "interrupted: incomplete";

/// Charts of several workloads together.
fn overview(results: &Results) -> Vec<Chart> {
    curves::families(results)
}

/// All charts of a workload.
fn charts(results: &Results, workload: &Workload) -> Vec<Chart> {
    let bars = workload
        .quantities
        .iter()
        .filter_map(|quantity| bars::draw(results, workload, quantity));
    let latencies = workload
        .latencies
        .iter()
        .flat_map(|all| curves::latencies(results, workload, all));
    let series = workload
        .series
        .iter()
        .flat_map(|all| curves::series(results, workload, all));
    let candlesticks = workload
        .candlesticks
        .iter()
        .flat_map(|all| candlesticks::draw(results, workload, all));
    latencies
        .chain(series)
        .chain(candlesticks)
        .chain(bars)
        .collect()
}

/// The facts at the top: where, how and for how long.
fn facts(results: &Results) -> Vec<(&'static str, String)> {
    let (run, machine) = (&results.run, &results.machine);
    let mut facts = vec![
        ("CPU", format!("{} × {}", machine.cpus, machine.cpu_model)),
        ("Memory", Unit::Bytes.tell(machine.memory_bytes as f64)),
        (
            "Virtualised",
            machine
                .virtualisation
                .clone()
                .unwrap_or_else(|| "no".into()),
        ),
        (
            "Kernel",
            format!("{} {}", machine.kernel_release, machine.kernel_version),
        ),
    ];
    if let Some(distribution) = &machine.distribution {
        facts.push(("Distribution", distribution.clone()));
    }
    let placement = match run.placement {
        Placement::OneCpu { cpu } => format!("client, relay and server share CPU {cpu}"),
        Placement::Spread { cpus } => format!("spread over {cpus} CPUs"),
    };
    facts.push(("Placement", placement));
    facts.push((
        "CPUs kept awake",
        if run.spinner {
            "yes, by a SCHED_IDLE spinner"
        } else {
            "no"
        }
        .into(),
    ));
    let control = results
        .sysctls
        .iter()
        .find(|one| one.name == "net.ipv4.tcp_congestion_control");
    if let Some(control) = control {
        facts.push(("Congestion control", control.value.clone()));
    }
    facts.push((
        "Rounds",
        format!("{}, interleaved; median counts", run.rounds),
    ));
    facts.push(("Warm-up", run.warm_up.clone()));
    facts.push((
        "Intervals",
        format!(
            "{} %, bootstrap of {} resamples",
            tick_words(run.confidence * 100.0),
            number(f64::from(run.resamples))
        ),
    ));
    let took = minutes(run.duration_seconds);
    facts.push((
        "Took",
        if run.complete {
            took
        } else {
            format!("{took}, then {INTERRUPTED}")
        },
    ));
    facts
}

fn minutes(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    if whole < 60 {
        format!("{whole} s")
    } else {
        format!("{} min {} s", whole / 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use netlab::Scratch;

    use super::{charts, overview, specimen, write};
    use crate::results::Results;

    /// Keeps the files where a person can look at them: `SPECIMEN=DIR cargo test specimen`.
    fn written(results: &Results, name: &str) -> Scratch {
        let scratch = Scratch::new(name).expect("a directory");
        write(scratch.path(), results).expect("it is writable");
        if let Some(kept) = std::env::var_os("SPECIMEN") {
            write(&Path::new(&kept).join(name), results).expect("it is writable");
        }
        scratch
    }

    #[test]
    fn the_summary_has_every_figure_and_what_is_missing() {
        let summary = super::summary::summary(&specimen::full());
        for part in [
            "splice-bench compare --spliced",
            "2 × Imagined(R) Processor",
            "| spliced copy | 24.8 | 24.6 to 25.3 | 0.485 | 0.481 to 0.495 | worse |",
            "| direct again | 50.9 | 50.4 to 51.9 | 0.996 | 0.986 to 1.02 | no difference |",
            "| spliced sockmap | normal | 10 | 100\u{202f}000 | 65.0 |",
            "| Contestant | Series | to 64 | to 128 | to 256 | to 512 | to 65\u{202f}536 |",
            "| spliced aio | busy poll | 10 | 90\u{202f}000 | 9980 | 0 | 10 |",
            "| spliced pipe: Gb/s over HAProxy splice | >= 1.4 | 1.34 | missed |",
            "| HAProxy splice-request | not installed: apt install haproxy |",
            "| net.ipv4.tcp\\_congestion\\_control | reno | client, relay, server |",
        ] {
            assert!(summary.contains(part), "{part:?} is not in\n{summary}");
        }
    }

    #[test]
    fn an_interrupted_run_says_so() {
        let results = specimen::awkward();
        assert!(!results.run.complete);
        for text in [
            super::summary::summary(&results),
            super::page::page(&results),
        ] {
            assert!(text.contains(super::INTERRUPTED), "{text}");
        }
    }

    #[test]
    fn cells_keep_to_their_column() {
        let mut results = specimen::empty();
        results.checks[0].title = "a|b\nc".into();
        let summary = super::summary::summary(&results);
        assert!(summary.contains("| a\\|b c | 1 within"), "{summary}");
    }

    #[test]
    fn every_chart_is_a_file_and_on_the_page_and_in_the_summary() {
        for (results, name) in [(specimen::full(), "full"), (specimen::awkward(), "awkward")] {
            let scratch = written(&results, name);
            let read = |name: &str| {
                fs::read_to_string(scratch.path().join(name)).expect("it has been written")
            };
            let (page, summary) = (read("report.html"), read("summary.md"));
            let of_workloads = results.workloads.iter();
            let of_workloads = of_workloads.map(|workload| charts(&results, workload));
            for charts in of_workloads.chain([overview(&results)]) {
                for chart in charts {
                    let file = format!("charts/{}.svg", chart.id);
                    assert!(summary.contains(&format!("({file})")), "{file}");
                    assert!(page.contains(&format!("id=\"{}\"", chart.id)), "{file}");
                    let image = read(&file);
                    for broken in ["NaN", "inf", "undefined"] {
                        let place = image.find(&format!("\"{broken}"));
                        assert_eq!(place, None, "{file} has {broken}");
                    }
                }
            }
        }
    }
}
