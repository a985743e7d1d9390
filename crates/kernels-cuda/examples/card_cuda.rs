//! Says which card there is, and with `rates` what it does at best: copies, launches in a graph, and what comes down
//! of rows of logits; with `launches` what a launch and a small copy to the card take of the host, beside work that keeps the
//! card busy. One JSON object.
//!
//! Usage: `card_cuda [rates|launches]`. Without a card it prints why, in one line, and fails. Times are medians of replays of a
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
    let what = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => What::Card,
        ["rates"] => What::Rates,
        ["launches"] => What::Launches,
        _ => {
            println!("usage: card_cuda [rates|launches]");
            return ExitCode::FAILURE;
        }
    };
    match run(what) {
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

/// What is requested.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Card,
    Rates,
    Launches,
}

fn run(what: What) -> Result<String, Error> {
    let device = Arc::new(Driver::open(0)?);
    let Card { name, capability, n_bytes, .. } = device.card().clone();
    let mut json = format!(r#""name": "{name}", "capability": "{capability}", "bytes": {n_bytes}"#);
    if what == What::Rates {
        let start = Instant::now();
        let kernels = Kernels::load(&device)?;
        json += &format!(r#", "load_s": {:.3}"#, start.elapsed().as_secs_f64());
        json += &copies(&device)?;
        json += &lists(&kernels)?;
    }
    if what == What::Launches {
        json += &launches(&device, "")?;
        // A card that has no such launches is measured without.
        match Driver::open(0)?.with_early_launches() {
            Ok(early) => json += &launches(&Arc::new(early), "early_")?,
            Err(Error::NoEarlyLaunches { .. }) => {}
            Err(error) => return Err(error),
        }
        json += &small_copies(&device)?;
    }
    Ok(format!("{{{json}}}"))
}

/// Microseconds of a launch that does almost nothing: what it takes of the host while the card is busy, and of both one after
/// the other, outside of a graph and in one.
fn launches(device: &Arc<Driver>, name: &str) -> Result<String, Error> {
    const N: usize = 500;
    let (kernels, stream) = (Kernels::load(device)?, device.stream()?);
    let logits = Buffer::with(device, &stream, "logits", &[1.0f32; 64])?;
    let greedy = Greedy::new(device, &stream, 1)?;
    let queue = || greedy.queue(&kernels, &stream, Rows::vector(&logits, 64), 64, None);
    let busy = Busy::new(device)?;
    queue()?;
    let mut of_host = Vec::new();
    for _ in 0..RUNS {
        device.synchronize(&stream)?;
        busy.queue(&stream)?;
        let start = Instant::now();
        (0..N).try_for_each(|_| queue())?;
        of_host.push(start.elapsed().as_secs_f64() / N as f64);
    }
    of_host.sort_by(f64::total_cmp);
    device.synchronize(&stream)?;
    let plain = median(|| {
        (0..N).try_for_each(|_| queue())?;
        device.synchronize(&stream)
    })? / N as f64;
    let graph = in_graph(&**device, &stream, N, queue)?;
    Ok(format!(
        r#", "{name}launch_host_us": {:.2}, "{name}launch_alone_us": {:.2}, "{name}launch_in_graph_us": {:.2}"#,
        of_host[RUNS / 2] * 1e6,
        plain * 1e6,
        graph * 1e6
    ))
}

/// Microseconds that small copies to the card take of the host, while it is idle and while it is busy: they are to wait for no
/// work in front of them. Each has numbers of its own, and all arrive as they were.
fn small_copies(device: &Arc<Driver>) -> Result<String, Error> {
    // As many as the driver's queue takes without a wait, and more than the ring of pinned memory has places.
    const N: usize = 32;
    const WORDS: usize = 1024;
    let stream = device.stream()?;
    let to = Buffer::new(device, "small copies", 4 * N * WORDS)?;
    let busy = Busy::new(device)?;
    let mut json = String::new();
    for (name, is_busy, n) in [("idle", false, N), ("busy", true, N), ("busy_4", true, 4)] {
        let mut times = Vec::new();
        for run in 0..RUNS {
            let numbers: Vec<Vec<u32>> = (0..n)
                .map(|i| (0..WORDS).map(|w| (run * N + i) as u32 * 7919 + w as u32).collect())
                .collect();
            device.synchronize(&stream)?;
            if is_busy {
                busy.queue(&stream)?;
            }
            let start = Instant::now();
            for (i, numbers) in numbers.iter().enumerate() {
                to.write(&stream, 4 * i * WORDS, numbers)?;
            }
            times.push(start.elapsed().as_secs_f64() / n as f64);
            let mut found = vec![0u32; n * WORDS];
            to.read(&stream, 0, &mut found)?;
            assert!(found == numbers.concat(), "small copies arrive as they were");
        }
        times.sort_by(f64::total_cmp);
        json += &format!(r#", "upload_{name}_us": {:.2}"#, times[RUNS / 2] * 1e6);
    }
    Ok(json + r#", "uploads_intact": true"#)
}

/// Work that keeps a card busy for some milliseconds.
struct Busy {
    device: Arc<Driver>,
    buffers: [Buffer<Driver>; 2],
}

impl Busy {
    fn new(device: &Arc<Driver>) -> Result<Self, Error> {
        let buffer = || Buffer::new(device, "work", COPY_BYTES);
        Ok(Self { device: Arc::clone(device), buffers: [buffer()?, buffer()?] })
    }

    fn queue(&self, stream: &<Driver as Device>::Stream) -> Result<(), Error> {
        let [from, to] = &self.buffers;
        (0..IN_GRAPH).try_for_each(|_| {
            // SAFETY: both buffers have this many bytes, and live as long as this, which callers keep until the stream is waited for.
            unsafe { self.device.copy(stream, to.address(), from.address(), COPY_BYTES) }
        })
    }
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
        // SAFETY: both buffers have this many bytes.
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
