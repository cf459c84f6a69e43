//! What the echo servers have done, in words, tables and for the results.

use super::{Entry, REFERENCE, STALL, Setting, arguments, size};
use crate::reproduce::record::{
    Told, failed, in_brackets, parameter, print_absent, print_failed, quantity,
};
use crate::results::{
    Better, Candlestick, Candlesticks, Missing, Spread, Stalled, Stalls, Unit, Workload,
};
use crate::statistics::{Times, Values};
use crate::table::Table;

impl Setting<'_> {
    /// How it was measured.
    pub(super) fn words(&self) -> String {
        let (site, arguments) = (self.site, self.arguments);
        let cpu = arguments.shared.cpu;
        let cpus = arguments.server_cpu.map_or_else(
            || format!("Client and servers share CPU {cpu}"),
            |server| format!("Client on CPU {cpu}, servers on CPU {server}"),
        );
        let devices = if arguments.napi {
            "segments of one MTU and NAPI, as a network card has them"
        } else {
            "segments of up to 64 KiB and no NAPI, as a veth comes"
        };
        format!(
            "{cpus}, kept awake; devices with {devices}; congestion control {} (2019: cubic); {} \
             interleaved runs of {} bursts. Times in µs; in brackets the ratio to {} in the same run, \
             median over the runs and where it can be trusted to lie.",
            site.congestion_control,
            arguments.runs,
            arguments.bursts,
            REFERENCE.name(),
        )
    }
}

/// Prints everything.
pub(super) fn print(setting: &Setting<'_>, entries: &[Entry], absent: &[Missing]) {
    let arguments = setting.arguments;
    for (number, &block) in arguments.block.iter().enumerate() {
        for entry in entries {
            let measured = &entry.measured[number];
            println!("{}, bursts of {}", entry.name(), size(block));
            if let (Some(whole), Some(trimmed)) = (measured.times.whole(), measured.times.trimmed())
            {
                println!(
                    "{whole}\nwithout the worst 1 %: {trimmed}\n{}",
                    measured.times.bands()
                );
            }
        }
    }
    println!("{}", setting.words());
    for (number, &block) in arguments.block.iter().enumerate() {
        for busy_poll in [false, true] {
            let way = series(busy_poll);
            println!("\nBursts of {}, {way}", size(block));
            print!("{}", table(entries, number, busy_poll));
        }
    }
    print_absent(absent);
    for entry in entries {
        print_failed(&entry.name(), &entry.failures);
    }
}

fn table(entries: &[Entry], number: usize, busy_poll: bool) -> Table {
    let mut table = Table::new(&[
        "server",
        "med (ratio)",
        "avg",
        "dev",
        "max",
        "best 99 %: med",
        "avg",
        "dev",
        "max",
        "> 50 ms",
        "wake-ups/burst",
        "kworkers µs/burst",
        "packets/burst",
        "polled/burst",
    ]);
    let of_way = || entries.iter().filter(|entry| entry.busy_poll == busy_poll);
    let reference = of_way()
        .find(|entry| entry.server == REFERENCE)
        .map(|entry| &entry.measured[number].medians);
    for entry in of_way() {
        let measured = &entry.measured[number];
        let (Some(whole), Some(trimmed)) = (measured.times.whole(), measured.times.trimmed())
        else {
            continue;
        };
        let ratio = reference
            .map(|reference| in_brackets(&measured.medians.ratio_to(reference)))
            .unwrap_or_default();
        let mut row = vec![entry.server.name(), format!("{:.1}{ratio}", whole.med)];
        let values = |values: Values| [values.avg, values.dev, values.max];
        row.extend(values(whole).map(|value| format!("{value:.1}")));
        row.push(format!("{:.1}", trimmed.med));
        row.extend(values(trimmed).map(|value| format!("{value:.1}")));
        row.push(measured.times.longer_than(STALL).to_string());
        let [wake_ups, kworkers, packets, polled] = measured.per_burst().unwrap_or_default();
        row.push(format!("{wake_ups:.2}"));
        row.push(format!("{kworkers:.2}"));
        row.push(format!("{packets:.1}"));
        row.push(format!("{polled:.2}"));
        table.push(row);
    }
    table
}

/// What the runs with and without SO_BUSY_POLL are called.
fn series(busy_poll: bool) -> &'static str {
    if busy_poll { "busy poll" } else { "normal" }
}

/// Everything for the results: a workload for each size of a burst.
pub(super) fn workloads(arguments: &arguments::Echo, entries: &[Entry]) -> Vec<Workload> {
    let blocks = arguments.block.iter().enumerate();
    blocks
        .map(|(number, &block)| workload(arguments, entries, number, block))
        .collect()
}

fn workload(
    arguments: &arguments::Echo,
    entries: &[Entry],
    number: usize,
    block: usize,
) -> Workload {
    let title = format!("Echo, bursts of {}", size(block));
    let mut workload = Workload::new(
        &format!("echo-{block}"),
        &title,
        "A socket spliced to itself sends back what it gets. A burst is sent while what comes back is \
         received, and the time is that until all of it is back; the payload is compared.",
    );
    workload.parameters = vec![
        parameter("burst", size(block)),
        parameter("bursts of a run", arguments.bursts),
    ];
    for busy_poll in [false, true] {
        let of_way = || {
            entries
                .iter()
                .filter(move |entry| entry.busy_poll == busy_poll)
        };
        let medians: Vec<_> = of_way()
            .map(|entry| (entry.server.name(), entry.measured[number].medians.clone()))
            .collect();
        let told = Told {
            id: if busy_poll {
                "median-busy-poll"
            } else {
                "median"
            },
            title: &format!("Median time of a burst, {}", series(busy_poll)),
            unit: Unit::Microseconds,
            better: Better::Lower,
        };
        workload
            .quantities
            .push(quantity(told, &REFERENCE.name(), &medians));
    }
    let measured = || {
        entries
            .iter()
            .map(|entry| (entry, &entry.measured[number].times))
    };
    let stick = |(entry, times): (&Entry, &Times)| Candlestick {
        contestant: entry.server.name(),
        series: series(entry.busy_poll).into(),
        whole: times.whole().map(spread),
        trimmed: times.trimmed().map(spread),
        buckets: times
            .bands()
            .iter()
            .map(|(end, count)| (end as f64, count))
            .collect(),
    };
    workload.candlesticks = Some(Candlesticks {
        title: format!("Time until {} are back", size(block)),
        unit: Unit::Microseconds,
        trimmed_percent: Times::TRIMMED_PERCENT,
        sticks: measured().map(stick).collect(),
    });
    let stalled = |(entry, times): (&Entry, &Times)| Stalled {
        contestant: entry.server.name(),
        series: Some(series(entry.busy_poll).into()),
        stalls: times.longer_than(STALL) as u64,
        of: times.len() as u64,
        longest_milliseconds: times.whole().map_or(0.0, |values| values.max / 1e3),
    };
    workload.stalls = Some(Stalls {
        over_milliseconds: STALL.as_secs_f64() * 1e3,
        counted: measured().map(stalled).collect(),
    });
    for busy_poll in [false, true] {
        let of_way = entries.iter().filter(|entry| entry.busy_poll == busy_poll);
        let counted: Vec<String> = of_way.filter_map(|entry| counted(entry, number)).collect();
        let note = format!(
            "Counted by the kernel, per burst, {}: {}.",
            series(busy_poll),
            counted.join("; ")
        );
        workload.notes.push(note);
    }
    for entry in entries {
        let name = entry.name();
        workload.missing.extend(failed(&name, &entry.failures));
    }
    workload
}

/// What the kernel has counted of somebody, in words.
fn counted(entry: &Entry, number: usize) -> Option<String> {
    let measured = &entry.measured[number];
    let [wake_ups, kworkers, packets, polled] = measured.per_burst()?;
    Some(format!(
        "{} {wake_ups:.2} wake-ups of the server, {kworkers:.2} µs of kernel workers, {packets:.1} packets, \
         {polled:.2} of them polled",
        entry.server.name()
    ))
}

fn spread(values: Values) -> Spread {
    Spread {
        min: values.min,
        mean: Some(values.avg),
        median: values.med,
        max: values.max,
        deviation: values.dev,
        count: Some(values.count as u64),
    }
}
