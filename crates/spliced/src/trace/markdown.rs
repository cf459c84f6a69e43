//! Trials as a page of documentation.

use std::fmt::Write as _;

use splice::trace::Means;

use super::text::{Braces, add_tree, micros};
use super::{Observed, Traced, What};

pub(super) fn of(observed: &Observed, traces: &[Traced]) -> String {
    let mut text = format!(
        "# One message, engine by engine\n\n\
         Printed by `spliced trace --demo` on Linux {}: 1000 bytes from a client to a server. The client, the relay and the \
         server are each in a network namespace of its own, with a veth pair from one to the next; `direct`, \
         `send-to-local` and `bypass` have no relay. {}\n\n\
         | way | calls | functions | wake-ups | copies | us from device to device |\n|---|---|---|---|---|---|\n",
        rustix::system::uname().release().to_string_lossy(),
        match observed.means {
            Means::Functions => "Observed at the entries and exits of functions.",
            Means::Stacks =>
                "Observed by the stacks at tracepoints: a function that meets none is missing, and times are those of the first and \
                 the last one.",
        }
    );
    for traced in traces {
        let name = name(traced);
        // Writing to a string cannot fail.
        let _ = match &traced.trace {
            Err(error) => writeln!(text, "| {name} | not traced: {error:#} | | | | |"),
            Ok(trace) => {
                let summary = trace.summary();
                let devices = summary.device_to_device_ns;
                writeln!(
                    text,
                    "| {name} | {} | {} | {} | {} | {} |",
                    summary.calls,
                    summary.functions,
                    summary.wakeups,
                    summary.copies,
                    devices.map_or_else(|| "-".into(), micros)
                )
            }
        };
    }
    text += "\nThe times include what tracing takes. In the trees, IRQ is `s` in a softirq and `h` in a hard interrupt, `+` marks a \
             function that copies the message, and a name behind `#` is that of the socket.\n";
    for traced in traces {
        if let Ok(trace) = &traced.trace {
            let _ = write!(text, "\n## {}\n\n```", name(traced));
            add_tree(&mut text, trace, &traced.places, Braces::None);
            text += "```\n";
        }
    }
    text
}

fn name(traced: &Traced) -> &'static str {
    match traced.what {
        What::Trial(way) => way.as_str(),
        What::Message(_) => "message",
    }
}
