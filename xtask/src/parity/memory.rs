//! Peak resident memory of a run against what the model cannot do without: its file, its
//! key-value cache and one row of logits. The pages of the program's own file do not count, which
//! are code and differ from build to build. Read from `/proc`, so on Linux alone.

use std::process::Stdio;
use std::thread;
use std::time::Duration;
use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Args;
use super::engine::Engine;
use crate::setup::MODELS;
use crate::totals::Totals;
use crate::{shell, table};

/// Times what cannot be done without: the most that a run may hold.
const FACTOR: f64 = 1.125;
/// The context of the run.
const CTX: u64 = 256;
/// Bytes of an element of the key-value cache.
const KV_BYTES: u64 = 2;
/// Between two looks at the process. Its peak only grows, and it frees nothing before it ends.
const INTERVAL: Duration = Duration::from_millis(1);

/// What one run showed.
struct Measured {
    file: u64,
    kv: u64,
    logits: u64,
    peak: u64,
    load_ms: f64,
}

impl Measured {
    fn limit(&self) -> u64 {
        ((self.file + self.kv + self.logits) as f64 * FACTOR) as u64
    }
}

/// Measure every real model and print the table.
pub(super) fn run(engine: &Engine, args: &Args) -> Result<Totals> {
    let mut totals = Totals::default();
    if !cfg!(target_os = "linux") {
        println!("Peak memory is measured on Linux alone: skipped\n");
        return Ok(totals);
    }
    let mut rows = Vec::new();
    for &alias in MODELS.iter().filter(|alias| args.wants(alias)) {
        rows.push(match measure(engine, alias) {
            Ok(m) => {
                let mb = |n: u64| format!("{:.1} MB", n as f64 / 1e6);
                let result = totals.count(m.peak <= m.limit());
                let load = format!("{:.0} ms", m.load_ms);
                let sizes = [m.file, m.kv, m.logits, m.peak, m.limit()].map(mb);
                [vec![(*alias).to_owned()], sizes.to_vec(), vec![load, result]].concat()
            }
            Err(error) => {
                let result = format!("{}: {error:#}", totals.count(false));
                [vec![(*alias).to_owned()], vec!["-".to_owned(); 6], vec![result]].concat()
            }
        });
    }
    let header = ["model", "file", "KV cache", "logits", "peak", "limit", "load", "result"];
    println!("Peak resident memory at context {CTX}\n\n{}", table::render(&header, &rows));
    Ok(totals)
}

fn measure(engine: &Engine, alias: &str) -> Result<Measured> {
    let report = engine.json(&["inspect", alias, "--json"])?;
    let path = report["path"].as_str().context("no `path`")?;
    let file = fs::metadata(Path::new(path)).with_context(|| path.to_owned())?.len();
    let metadata = &report["metadata"];
    let architecture = metadata["general.architecture"].as_str().context("no architecture")?;
    let number = |key: &str| metadata[format!("{architecture}.{key}")].as_u64();
    let needed = |key: &str| number(key).with_context(|| format!("no `{key}`"));
    let head_dim = match number("attention.key_length") {
        Some(head_dim) => head_dim,
        None => needed("embedding_length")? / needed("attention.head_count")?.max(1),
    };
    let kv_dim = needed("attention.head_count_kv")? * head_dim;
    let kv = 2 * needed("block_count")? * kv_dim * KV_BYTES * CTX;
    let tensors = report["tensors"].as_array().context("no `tensors`")?;
    let embedding = tensors.iter().find(|t| t["name"] == "token_embd.weight");
    let logits = 4 * embedding.and_then(|t| t["shape"][0].as_u64()).context("no embedding")?;

    let ctx = CTX.to_string();
    let mut command = engine.command(&["run", alias, "--raw", "--ignore-eos", "-n", "32"]);
    command.args(["--temp", "0", "--ctx", &ctx, "--json", "The capital of France is"]);
    // The answer is short, so the process never waits for a reader.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let [status, smaps] = ["status", "smaps"].map(|name| format!("/proc/{}/{name}", child.id()));
    let program = Path::new(command.get_program()).canonicalize()?;
    let program = program.to_str().context("the program's path")?;
    let mut peak = Peak::default();
    while child.try_wait()?.is_none() {
        let read = |path| fs::read_to_string(path).unwrap_or_default(); // gone when it has ended
        peak.see(program, [&read(&status), &read(&smaps), &read(&status)]);
        thread::sleep(INTERVAL);
    }
    let peak = peak.bytes;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{} exited with {}", shell::show(&command), output.status);
    ensure!(peak > 0, "{status} reported no peak");
    let json: Value = serde_json::from_slice(&output.stdout).context("output of the run")?;
    let load_ms = json["timings"]["load_ms"].as_f64().context("no `load_ms`")?;
    Ok(Measured { file, kv, logits, peak, load_ms })
}

/// The most that a process held besides its program's own file.
#[derive(Default)]
struct Peak {
    bytes: u64,
    /// The most of the program's file that was resident, which the system may reclaim at any time.
    program: u64,
}

impl Peak {
    /// Takes the process's `status`, `smaps` and once more `status`, read in this order: a process
    /// that ends meanwhile leaves a list of mappings that is cut off, and has no memory after it.
    fn see(&mut self, program: &str, [before, smaps, after]: [&str; 3]) {
        let (Some(all), Some(_)) = (high_water_mark(before), high_water_mark(after)) else {
            return;
        };
        self.program = self.program.max(resident(smaps, program));
        self.bytes = self.bytes.max(all.saturating_sub(self.program));
    }
}

/// Bytes of the line `VmHWM: 1234 kB`.
fn high_water_mark(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Resident bytes of the mappings of the file `path`, in the form of `/proc/PID/smaps`.
fn resident(smaps: &str, path: &str) -> u64 {
    let mut is_of_path = false;
    let mut kib = 0;
    for line in smaps.lines() {
        // A mapping begins with its addresses; a field's name ends with a colon.
        if line.split(' ').next().is_some_and(|word| !word.ends_with(':')) {
            is_of_path = line.ends_with(path);
        } else if is_of_path && let Some(rest) = line.strip_prefix("Rss:") {
            kib += rest.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        }
    }
    kib * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read() {
        assert_eq!(high_water_mark("Name:\tx\nVmHWM:\t    1234 kB\n"), Some(1234 * 1024));
        assert_eq!(high_water_mark("Name:\tx\n"), None);
    }

    #[test]
    fn the_programs_pages_are_read() {
        let smaps = "5f0-5f1 r-xp 00000000 fe:00 12  /bin/x\nSize:  8 kB\nRss:   4 kB\nPss: 4 kB\n\
                     5f1-5f2 rw-p 00000000 00:00 0 \nRss:   16 kB\n\
                     5f2-5f3 rw-p 00001000 fe:00 12  /bin/x\nRss:   8 kB\n\
                     5f3-5f4 rw-p 00001000 fe:00 13  /bin/y\nRss:   32 kB\n";
        assert_eq!(resident(smaps, "/bin/x"), 12 * 1024);
    }

    #[test]
    fn a_process_that_ends_meanwhile_is_not_counted() {
        let alive = "VmHWM:\t 100 kB\n";
        let smaps = "5f0-5f1 r-xp 00000000 fe:00 12  /bin/x\nRss: 40 kB\n";
        let mut peak = Peak::default();
        peak.see("/bin/x", [alive, smaps, alive]);
        assert_eq!(peak.bytes, 60 * 1024);
        peak.see("/bin/x", [alive, "", ""]); // the mappings were gone before they were read
        assert_eq!(peak.bytes, 60 * 1024);
        peak.see("/bin/x", ["VmHWM:\t 101 kB\n", "", alive]); // the program's pages were reclaimed
        assert_eq!(peak.bytes, 61 * 1024);
    }

    #[test]
    fn the_limit_is_an_eighth_above_what_is_needed() {
        let m = Measured { file: 100, kv: 60, logits: 40, peak: 0, load_ms: 0.0 };
        assert_eq!(m.limit(), 225);
    }
}
