//! `realizar doctor`: what this machine has, and what of it a model will use.

use std::io::Write;

use anyhow::Result;
use realizar_runtime::ByteSize;
use realizar_runtime::device::{Cores, Devices, Machine, devices_in_hardware, machine};
use serde::Serialize;

use crate::ui;

/// No driver of a GPU is loaded where the system reports no GPU.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    #[serde(flatten)]
    machine: Machine,
    #[serde(flatten)]
    devices: Devices,
}

pub(crate) fn execute(args: &Args) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let report = Report { version, machine: machine(), devices: devices_in_hardware() };
    if args.json {
        return ui::json(&report);
    }
    let mut out = ui::out();
    ui::table(&mut out, &rows(&report), &[])?;
    for note in &report.devices.notes {
        writeln!(out, "note: {note}")?;
    }
    out.flush()?;
    Ok(())
}

/// Subject and text, a line each.
fn rows(report: &Report) -> Vec<Vec<String>> {
    let Machine { processor, architecture, cores, caches, features, tiers, .. } = &report.machine;
    let Machine { memory, nodes, huge_pages, .. } = &report.machine;
    let caches = caches.iter().map(|cache| {
        let kind = if cache.kind == "unified" { "" } else { &cache.kind };
        let name = format!("L{} {kind}", cache.level);
        let shared = match cache.shared_by {
            1 => String::new(),
            n => format!(" for {n} hardware threads"),
        };
        format!("{} {}{shared}", name.trim_end(), ByteSize::from(cache.bytes))
    });
    let size = |bytes: Option<u64>| {
        bytes.map_or_else(|| "unknown".to_owned(), |n| ByteSize(n).to_string())
    };
    let huge_pages = match (huge_pages.mode, huge_pages.used) {
        (None, _) => "none".to_owned(),
        (Some(mode), true) => format!("{mode}; used for large memory, not for mapped files"),
        (Some(mode), false) => format!("{mode}; not used"),
    };
    let nodes = match nodes.len() {
        0 => "unknown".to_owned(),
        1 => "1".to_owned(),
        n => {
            let cpus: Vec<String> = nodes.iter().map(|node| node.logical.to_string()).collect();
            let cpus = cpus.join(", ");
            format!(
                "{n}, with {cpus} hardware threads; memory is placed on the node that first \
                 touches it"
            )
        }
    };
    let mut rows = vec![
        ("version", report.version.to_owned()),
        ("processor", format!("{processor} ({architecture})")),
        ("cores", cores_text(cores)),
        ("threads", format!("{} by default", cores.default_threads)),
        ("caches", list(caches)),
        ("features", list(features.iter().map(|&name| name.to_owned()))),
        ("tier", format!("{} (available: {})", tiers.chosen, tiers.available.join(", "))),
        (
            "memory",
            format!("{}, {} available", size(memory.total_bytes), size(memory.available_bytes)),
        ),
        ("nodes", nodes),
        ("huge pages", huge_pages),
        ("auto device", report.devices.auto.clone()),
    ];
    // The first device is the processor.
    for gpu in report.devices.devices.iter().skip(1) {
        let memory = gpu.memory_bytes.map_or_else(String::new, |n| format!(", {}", ByteSize(n)));
        let text = format!("{}: {} ({}, {}{memory})", gpu.name, gpu.title, gpu.kind, gpu.api);
        rows.push(("gpu", text));
    }
    rows.into_iter().map(|(subject, text)| vec![subject.to_owned(), text]).collect()
}

fn cores_text(cores: &Cores) -> String {
    let known = |n: Option<usize>| n.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
    let limit = cores.limit.map_or_else(String::new, |n| format!(", limited to {n:.2} processors"));
    format!(
        "{} physical, {} hardware threads of {}{limit}",
        known(cores.physical),
        known(cores.logical),
        cores.machine
    )
}

fn list(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "none known".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_described() {
        let cores = |physical, limit| Cores {
            physical,
            logical: physical.map(|n| 2 * n),
            machine: 16,
            limit,
            default_threads: 1,
        };
        let text = cores_text(&cores(Some(4), Some(1.5)));
        assert_eq!(text, "4 physical, 8 hardware threads of 16, limited to 1.50 processors");
        let text = cores_text(&cores(None, None));
        assert_eq!(text, "unknown physical, unknown hardware threads of 16");
    }
}
