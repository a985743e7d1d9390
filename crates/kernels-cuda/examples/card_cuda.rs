//! Says which card there is, and with `rates` what it does at best: copies, launches in a graph, and what comes down
//! of rows of logits. One JSON object.
//!
//! Usage: `card_cuda [rates]`. Without a card it prints why, in one line, and fails. Times are medians of replays of a
//! captured graph; a copy on the device counts the bytes that are read and those that are written.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use realizar_kernels_cuda::{
    Buffer, Card, Device, Driver, Error, Greedy, Kernels, Rows, SharesOf, ShortlistLimits,
    ShortlistRow, ShortlistScratch, Shortlists,
};

/// Bytes of a copy, more than a card's cache holds.
const COPY_BYTES: usize = 1 << 30;
/// How often a thing is in a graph, and how often that is replayed.
const IN_GRAPH: usize = 20;
const RUNS: usize = 11;
/// Logits of a row.
const N_LOGITS: usize = 128_256;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rates = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["rates"] => true,
        _ => {
            println!("usage: card_cuda [rates]");
            return ExitCode::FAILURE;
        }
    };
    match run(rates) {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(rates: bool) -> Result<String, Error> {
    let device = Arc::new(Driver::open(0)?);
    let Card { name, capability, n_bytes, .. } = device.card().clone();
    let mut json = format!(r#""name": "{name}", "capability": "{capability}", "bytes": {n_bytes}"#);
    if rates {
        let start = Instant::now();
        let kernels = Kernels::load(&device)?;
        json += &format!(r#", "load_s": {:.3}"#, start.elapsed().as_secs_f64());
        json += &copies(&device)?;
        json += &lists(&kernels)?;
    }
    Ok(format!("{{{json}}}"))
}

/// The median of several times, in seconds.
fn median(mut once: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        once()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

/// The time of something that is queued `n` times in a captured graph.
fn in_graph<D: Device>(
    device: &D,
    stream: &D::Stream,
    n: usize,
    queue: impl Fn() -> Result<(), Error>,
) -> Result<f64, Error> {
    device.begin_capture(stream)?;
    (0..n).try_for_each(|_| queue())?;
    let graph = device.end_capture(stream)?;
    let time = median(|| {
        // SAFETY: what is queued lives in the caller, and the stream is waited for.
        unsafe { device.replay(stream, &graph) }?;
        device.synchronize(stream)
    })?;
    Ok(time / n as f64)
}

fn copies(device: &Arc<Driver>) -> Result<String, Error> {
    let stream = device.stream()?;
    let mut host = vec![1u8; COPY_BYTES / 4];
    let from = Buffer::new(device, "a copy", COPY_BYTES)?;
    let to = Buffer::new(device, "a copy", COPY_BYTES)?;
    let up = median(|| from.write(&stream, 0, &host))?;
    let down = median(|| from.read(&stream, 0, &mut host))?;
    let both = in_graph(&**device, &stream, IN_GRAPH, || {
        // SAFETY: both buffers have so many bytes.
        unsafe { device.copy(&stream, to.address(), from.address(), COPY_BYTES) }
    })?;
    let rate = |bytes: usize, time: f64| bytes as f64 / time / 1e9;
    Ok(format!(
        r#", "copy_gb_per_s": {:.1}, "upload_gb_per_s": {:.2}, "download_gb_per_s": {:.2}"#,
        rate(2 * COPY_BYTES, both),
        rate(host.len(), up),
        rate(host.len(), down)
    ))
}

/// Microseconds of a launch that does almost nothing, of the best tokens of rows, and of lists as top-p asks for them.
fn lists(kernels: &Kernels<Driver>) -> Result<String, Error> {
    let device = kernels.device();
    let stream = device.stream()?;
    let max_rows = 128;
    let values: Vec<f32> =
        (0..max_rows * N_LOGITS).map(|i| ((i * 7919) % 10_007) as f32 / 500.0).collect();
    let logits = Buffer::with(device, &stream, "logits", &values)?;
    let greedy = Greedy::new(device, &stream, max_rows)?;
    let scratch = ShortlistScratch::new(device, &stream, N_LOGITS as u32, max_rows)?;
    let limits = ShortlistLimits { rows: max_rows, listed: 0, draws: 1, masks: false };
    let mut lists = Shortlists::new(device, N_LOGITS as u32, limits)?;
    // Shares at a temperature of one.
    let shares = Some(SharesOf { factor: 3_098_164_009, range: 5, draws: &[1 << 31] });
    for row in 0..max_rows as u32 {
        let (n_best, n_tokens) = (Shortlists::<Driver>::MAX_BEST, u32::MAX);
        lists.push(&ShortlistRow { row, n_best, n_tokens, listed: &[], mask: None, shares });
    }
    lists.upload(&stream)?;
    let one = Rows::vector(&logits, 64);
    let launch =
        in_graph(&**device, &stream, 500, || greedy.queue(kernels, &stream, one, 64, None))?;
    let mut json = format!(r#", "launch_us": {:.2}"#, launch * 1e6);
    for n_rows in [1, 8, max_rows] {
        let rows = Rows::new(&logits, 0, n_rows, N_LOGITS, N_LOGITS);
        let best = in_graph(&**device, &stream, IN_GRAPH, || {
            greedy.queue(kernels, &stream, rows, N_LOGITS, None)
        })?;
        json += &format!(r#", "greedy_{n_rows}_us": {:.2}"#, best * 1e6);
    }
    let rows = Rows::new(&logits, 0, max_rows, N_LOGITS, N_LOGITS);
    let time = in_graph(&**device, &stream, IN_GRAPH, || {
        lists.queue(kernels, &stream, rows, &scratch, max_rows, true)
    })?;
    json += &format!(r#", "lists_{max_rows}_us": {:.2}"#, time * 1e6);
    lists.clear();
    let (n_best, n_tokens) = (Shortlists::<Driver>::MAX_BEST, u32::MAX);
    lists.push(&ShortlistRow { row: 0, n_best, n_tokens, listed: &[], mask: None, shares });
    lists.upload(&stream)?;
    let rows = Rows::new(&logits, 0, 1, N_LOGITS, N_LOGITS);
    let time = in_graph(&**device, &stream, IN_GRAPH, || {
        lists.queue(kernels, &stream, rows, &scratch, 1, true)
    })?;
    Ok(json + &format!(r#", "lists_1_us": {:.2}"#, time * 1e6))
}
