//! `realizar devices`: what `--device` can name on this machine.

use std::io::Write;

use anyhow::Result;
use realizar_runtime::ByteSize;
use realizar_runtime::device::{DeviceInfo, devices};

use crate::ui;

/// The names are those that --device takes. Notes say what is missing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(args: &Args) -> Result<()> {
    let found = devices();
    if args.json {
        return ui::json(&found);
    }
    let header = ["DEVICE", "NAME", "KIND", "API", "MEMORY", "DRIVER", "FEATURES"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(found.devices.iter().map(row));
    let mut out = ui::out();
    ui::table(&mut out, &rows, &[4])?;
    writeln!(out, "\n--device auto tries {} first", found.auto)?;
    for note in &found.notes {
        writeln!(out, "note: {note}")?;
    }
    out.flush()?;
    Ok(())
}

fn row(device: &DeviceInfo) -> Vec<String> {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    vec![
        device.name.clone(),
        device.title.clone(),
        device.kind.to_owned(),
        device.api.to_owned(),
        device.memory_bytes.map_or_else(|| "-".to_owned(), |n| ByteSize(n).to_string()),
        or_dash(&device.driver),
        or_dash(&device.features.join(", ")),
    ]
}
