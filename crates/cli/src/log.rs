//! Where log records and panics go: standard error, which may be closed, full, or read by nobody.
//!
//! What logs never waits and never fails. Records go through a queue of limited length to a thread
//! that writes them; one that finds the queue full, or that cannot be written, is dropped and
//! counted. How many were lost is written as soon as writing works again.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::screen::{self, Out};
use crate::status;

/// Records that may wait to be written.
const QUEUE: usize = 1024;
/// Bytes of a record; a longer one is cut.
const MAX_RECORD: usize = 16 << 10;
/// How long the end of the program waits for records that were not written yet.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Records that were lost.
static LOST: LazyLock<Arc<AtomicU64>> = LazyLock::new(Arc::default);
/// The queue, once there is one; before that, records are written at once.
static QUEUED: OnceLock<SyncSender<Entry>> = OnceLock::new();

enum Entry {
    Record(Vec<u8>),
    /// Signals when everything before it was handled.
    Flush(SyncSender<()>),
}

/// The number of records that were lost, to be reported.
pub(crate) fn lost() -> Arc<AtomicU64> {
    LOST.clone()
}

/// From now on what logs does not wait for standard error: for a program that runs for long and must
/// not stop because nobody reads its log.
pub(crate) fn queue() {
    let (sender, entries) = sync_channel(QUEUE);
    let writer = std::thread::Builder::new().name("log".to_owned());
    let spawned = writer.spawn(move || write_all(&entries, screen::stderr(), &LOST));
    if spawned.is_ok() {
        // A queue that was there before goes on.
        let _ = QUEUED.set(sender);
    }
}

/// Makes panics records: their messages may hold text from a file.
pub(crate) fn panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let backtrace = Backtrace::capture();
        let mut text = format!("thread '{name}' {panic}\n");
        if backtrace.status() == BacktraceStatus::Captured {
            text.push_str(&format!("{backtrace}\n"));
        }
        put(text.into_bytes());
    }));
}

/// Waits, for a short time, until the records that were queued are written.
pub(crate) fn flush() {
    let Some(queue) = QUEUED.get() else { return };
    let (done, wait) = sync_channel(1);
    // A full queue is one that nobody empties.
    if queue.try_send(Entry::Flush(done)).is_ok() {
        let _ = wait.recv_timeout(LAST_WORDS);
    }
}

/// Takes one record.
fn put(mut record: Vec<u8>) {
    if record.len() > MAX_RECORD {
        record.truncate(MAX_RECORD);
        record.extend_from_slice("… (cut)\n".as_bytes());
    }
    let taken = match QUEUED.get() {
        Some(queue) => queue.try_send(Entry::Record(record)).is_ok(),
        None => {
            status::clear();
            screen::stderr().formatted(&record).is_ok()
        }
    };
    if !taken {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes records until there is nobody left to send any.
fn write_all(entries: &Receiver<Entry>, mut out: Out<impl Write>, lost: &AtomicU64) {
    let mut told = 0;
    let mut broken = false; // the last record was not written to its end
    for entry in entries {
        let record = match entry {
            Entry::Record(record) => record,
            Entry::Flush(done) => {
                let _ = done.try_send(());
                continue;
            }
        };
        let now = lost.load(Ordering::Relaxed);
        if now > told {
            let start = if broken { "\n" } else { "" };
            let text =
                format!("{start}{} log records were lost: they could not be written\n", now - told);
            if out.write_all(text.as_bytes()).is_ok() {
                (told, broken) = (now, false);
            }
        }
        status::clear();
        if out.formatted(&record).is_err() {
            broken = true;
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What the formatter of records writes into: one record, which is put when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Record(Vec<u8>);

impl Write for Record {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            put(std::mem::take(&mut self.0));
        }
    }
}

/// Makes a [`Record`] for each record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Records;

impl MakeWriter<'_> for Records {
    type Writer = Record;

    fn make_writer(&self) -> Record {
        Record::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Takes `room` bytes and then fails, until there is more room.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Disk {
        fn set_room(&self, room: usize) {
            self.0.lock().expect("the lock").0 = room;
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (room, text) = &mut *self.0.lock().expect("the lock");
            let n = bytes.len().min(*room);
            if n == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *room -= n;
            text.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_told_later() {
        let (disk, lost) = (Disk::default(), Arc::new(AtomicU64::new(0)));
        let (sender, entries) = sync_channel(8);
        let (out, count) = (Out::new(disk.clone(), false), lost.clone());
        let writer = std::thread::spawn(move || write_all(&entries, out, &count));
        let put = |text: &str| {
            sender.send(Entry::Record(text.as_bytes().to_vec())).expect("the writer is there");
            let (done, wait) = sync_channel(1);
            sender.send(Entry::Flush(done)).expect("the writer is there");
            wait.recv().expect("the writer goes on");
        };
        disk.set_room(9);
        put("first\n");
        put("second\n"); // of which three bytes find room
        put("third\n");
        assert_eq!(lost.load(Ordering::Relaxed), 2);
        disk.set_room(1000);
        put("fourth\n");
        put("fifth\n");
        drop(sender);
        writer.join().expect("the writer does not panic");
        let text = String::from_utf8(disk.0.lock().expect("the lock").1.clone()).expect("text");
        let want = "first\nsec\n2 log records were lost: they could not be written\n\
                    fourth\nfifth\n";
        assert_eq!(text, want);
    }
}
