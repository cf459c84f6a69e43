//! `[process]`.

use std::path::PathBuf;

use crate::config::listener::number_of;
use crate::config::value::{Table, Value};
use crate::control_args::{ControlArgs, metrics};
use crate::file_access::group;

/// Where the control socket of the process is, and who may ask there.
pub(super) fn read(table: &Table<'_>) -> ControlArgs {
    let mut control = ControlArgs::default();
    let section = table
        .get("process")
        .and_then(|value| value.section("process", "[process]"));
    let Some(section) = section else {
        return control;
    };
    section.set_some("control", &mut control.control, path);
    section.set_some("control_group", &mut control.control_group, |value| {
        number_of(value, group)
    });
    section.set_some("control_read", &mut control.control_read, path);
    section.set_some(
        "control_read_group",
        &mut control.control_read_group,
        |value| number_of(value, group),
    );
    section.set_some("metrics", &mut control.metrics, |value| {
        let text = value.text()?;
        metrics(text).map_or_else(
            |why| value.refuse(format!("{text:?} cannot be used: {why}")),
            Some,
        )
    });
    if control.control_read.is_none() && section.get("control_read_group").is_some() {
        section.notes.mistake(
            &section.at("control_read_group"),
            "control_read_group is that of the socket control_read; add that, or remove this",
        );
    }
    if control.control_read.is_some() && control.control_read == control.control {
        section.notes.mistake(
            &section.at("control_read"),
            "control_read is a socket of its own; choose another path than that of control",
        );
    }
    section.finish();
    control
}

/// Relative paths start at the directory of the file.
fn path(value: &Value<'_>) -> Option<PathBuf> {
    let path = PathBuf::from(value.text()?);
    if path.file_name().is_none() {
        return value.refuse("is no path of a file; write one such as \"/run/spliced/web.sock\"");
    }
    Some(match value.notes.path().parent() {
        Some(directory) => directory.join(path),
        None => path,
    })
}
