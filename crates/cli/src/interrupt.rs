//! Ctrl-C: ends the program with exit code 130, or stops the generation that is running.

use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};
use tokio::sync::Notify;

use crate::status;

/// Exit code of an interrupted program, 128 + SIGINT.
pub(crate) const EXIT_CODE: u8 = 130;

const IDLE: u8 = 0; // Ctrl-C ends the program
const GUARDED: u8 = 1; // Ctrl-C asks the generation to stop
const ASKED: u8 = 2; // it was asked; the next Ctrl-C ends the program

static STATE: AtomicU8 = AtomicU8::new(IDLE);
static WAITING: Notify = Notify::const_new();

/// Installs the handler; called once, from `main`.
pub(crate) fn install() -> Result<()> {
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
