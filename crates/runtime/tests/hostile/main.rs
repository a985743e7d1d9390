//! Damages a small model in every way a table can list and takes it from path to logits and text.
//!
//! Whatever is wrong with a file, loading and running it must not panic, must not allocate beyond
//! a bound, and must end in finite logits or in an error of one line that names the file.

mod gguf;
mod grammars;
mod hf;
#[path = "../it/common/random.rs"]
mod random;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::template::{Message, RenderOptions};
use realizar_runtime::tokenizer::EncodeOptions;
use realizar_runtime::{Error, GenerateParams, LoadOptions, Model};

/// Counts what the current thread holds, and the most it held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// Bytes of the key-value cache of the model that was loaded last.
    static CACHE: Cell<usize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let held = HELD.get() + change;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call is passed on to the system allocator unchanged; the counters are plain cells
// of the thread and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `ptr` came from this allocator with the same layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What loading and running the tiny model may hold beside its key-value cache: arena, tokenizer, weights. The cache is
/// as large as the model's context, within half of the memory that is free, and takes memory only where it is written.
const ALLOC_LIMIT: usize = 64 << 20;

/// From path to logits and text. Gives the error of loading apart, which must name the file.
fn run(path: &Path) -> Result<Result<(), Error>, Error> {
    let backend = CpuBackend::new(Some(1), None).expect("a backend");
    let mut model = Model::load(path, &backend, &LoadOptions::default())?;
    CACHE.set(model.memory().kv);
    Ok(run_model(&mut model))
}

fn run_model(model: &mut Model) -> Result<(), Error> {
    for row in model.logits(&[1, 2, 3], &[0, 2], 2)? {
        assert!(row.iter().all(|x| x.is_finite()), "logits are not finite");
    }
    let tokenizer = model.tokenizer()?;
    let options = EncodeOptions { add_special: true, parse_special: true };
    let ids = tokenizer.encode("ab <s> w\u{f6}rld", options)?;
    tokenizer.decode(&ids, false)?;
    if let Some(template) = model.chat_template()? {
        template.render(&[Message::new("user", "hi")], &RenderOptions::default())?;
    }
    let params = GenerateParams { max_tokens: Some(3), logprobs: Some(2), ..Default::default() };
    let mut session = model.new_session();
    session.generate(model, &ids, &params, &mut |_| ControlFlow::Continue(()))?;
    session.close(model);
    Ok(())
}

/// Collects what went wrong over a table of cases.
struct Table {
    dir: tempfile::TempDir,
    n_cases: usize,
    failures: Vec<String>,
}

impl Table {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { dir, n_cases: 0, failures: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs what lies at `path`; returns the error, if there was one.
    fn check(&mut self, what: &str, path: &Path) -> Option<String> {
        self.n_cases += 1;
        let before = HELD.get();
        PEAK.set(before);
        CACHE.set(0);
        let result = catch_unwind(AssertUnwindSafe(|| run(path)));
        let peak = usize::try_from(PEAK.get() - before).unwrap_or(0);
        let cache = CACHE.get();
        if peak > ALLOC_LIMIT + cache {
            self.failures.push(format!("{what}: {peak} bytes at most, {cache} of them cached"));
        }
        let (error, names_file) = match result {
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or(panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                self.failures.push(format!("{what}: panicked: {}", text.unwrap_or_default()));
                return None;
            }
            Ok(Err(error)) => (error, true),
            Ok(Ok(Err(error))) => {
                // What a request asks for is not in the file.
                let names_file = matches!(error, Error::Tokenizer { .. } | Error::Template { .. });
                (error, names_file)
            }
            Ok(Ok(Ok(()))) => return None,
        };
        let text = error.to_string();
        let dir = self.dir.path().display().to_string();
        if text.chars().any(char::is_control) || text.len() > 2000 {
            self.failures.push(format!("{what}: not one short line: {text:.3000}"));
        }
        if names_file && !text.starts_with(&dir) {
            self.failures.push(format!("{what}: names no file: {text}"));
        }
        Some(text)
    }

    fn finish(self) {
        let (n, failures) = (self.failures.len(), self.failures.join("\n"));
        assert!(n == 0, "{n} of {} cases failed:\n{failures}", self.n_cases);
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs").join(name)
}

#[test]
fn paths_that_are_no_model() {
    let mut table = Table::new();
    let empty = table.path("empty");
    fs::create_dir(&empty).expect("create");
    fs::write(table.path("empty.gguf"), []).expect("write");
    fs::write(table.path("only.safetensors"), [0; 8]).expect("write");
    for name in ["empty", "empty.gguf", "only.safetensors", "nothing", "nothing/at/all"] {
        let path = table.path(name);
        assert!(table.check(name, &path).is_some(), "{name}");
    }
    #[cfg(unix)]
    {
        let pipe = table.path("pipe.gguf");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if made.is_ok_and(|status| status.success()) {
            assert!(table.check("a pipe", &pipe).is_some());
        }
        let dir = table.path("piped");
        fs::create_dir(&dir).expect("create");
        let made = std::process::Command::new("mkfifo").arg(dir.join("config.json")).status();
        if made.is_ok_and(|status| status.success()) {
            assert!(table.check("a piped config.json", &dir).is_some());
        }
        assert!(table.check("a device", Path::new("/dev/zero")).is_some());
        table.failures.retain(|failure| !failure.contains("names no file"));
    }
    table.finish();
}
