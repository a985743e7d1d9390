//! Ctrl-C, which ends the program with exit code 130 or stops the generation that is running, and SIGTERM,
//! which ends it with 143 or stops the server.

#[cfg(unix)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};
use tokio::sync::Notify;

use crate::status;

/// Exit code of an interrupted program, 128 + SIGINT.
pub(crate) const EXIT_CODE: u8 = 130;

/// Exit code of a program that was told to end, 128 + SIGTERM.
#[cfg(unix)]
const TERMINATED: i32 = 143;

const IDLE: u8 = 0; // Ctrl-C ends the program
const GUARDED: u8 = 1; // Ctrl-C asks the generation to stop
const ASKED: u8 = 2; // it was asked; the next Ctrl-C ends the program

static STATE: AtomicU8 = AtomicU8::new(IDLE);
static WAITING: Notify = Notify::const_new();

/// True once the server waits for SIGTERM.
#[cfg(unix)]
static TERMINATION_IS_AWAITED: AtomicBool = AtomicBool::new(false);

/// Installs the handlers; called once, from `main`.
pub(crate) fn install() -> Result<()> {
    end_on_termination()?;
    ctrlc::set_handler(|| {
        let asked = STATE.compare_exchange(GUARDED, ASKED, Ordering::SeqCst, Ordering::SeqCst);
        if asked.is_err() {
            status::clear();
            std::process::exit(i32::from(EXIT_CODE));
        }
        WAITING.notify_one();
    })
    .context("cannot install the Ctrl-C handler")
}

/// Ends the program on SIGTERM while nobody waits for it. The first process of a container needs that: the
/// system ends it by no signal that it does not handle.
#[cfg(unix)]
fn end_on_termination() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.context("cannot wait for SIGTERM")?;
    let mut wish = runtime.block_on(async { listen_for_termination() })?;
    let wait = move || {
        runtime.block_on(async {
            while wish.recv().await.is_some() {
                if !TERMINATION_IS_AWAITED.load(Ordering::SeqCst) {
                    status::clear();
                    std::process::exit(TERMINATED);
                }
            }
        });
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    thread.map(drop).context("cannot start the thread that waits for SIGTERM")
}

/// Systems without SIGTERM end a program without asking it.
#[cfg(not(unix))]
fn end_on_termination() -> Result<()> {
    Ok(())
}

#[cfg(unix)]
fn listen_for_termination() -> Result<tokio::signal::unix::Signal> {
    use tokio::signal::unix::{SignalKind, signal};
    signal(SignalKind::terminate()).context("cannot wait for SIGTERM")
}

/// The wish that the process ends, which from now on no longer ends it.
#[cfg(unix)]
pub(crate) fn termination() -> Result<impl Future<Output = ()>> {
    let mut wish = listen_for_termination()?;
    TERMINATION_IS_AWAITED.store(true, Ordering::SeqCst);
    Ok(async move {
        wish.recv().await;
    })
}

/// Systems without SIGTERM have no such wish that a process could wait for.
#[cfg(not(unix))]
pub(crate) fn termination() -> Result<impl Future<Output = ()>> {
    Ok(std::future::pending())
}

/// While this value lives, the first Ctrl-C only sets [`Guard::asked`].
pub(crate) struct Guard;

impl Guard {
    pub(crate) fn new() -> Self {
        STATE.store(GUARDED, Ordering::SeqCst);
        Self
    }

    /// True once Ctrl-C was pressed.
    pub(crate) fn asked(&self) -> bool {
        STATE.load(Ordering::SeqCst) == ASKED
    }

    /// Waits for Ctrl-C.
    pub(crate) async fn wait(&self) {
        while !self.asked() {
            WAITING.notified().await;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        STATE.store(IDLE, Ordering::SeqCst);
    }
}
