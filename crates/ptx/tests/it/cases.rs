//! What tests ran, written down for a card: with `REALIZAR_PTX_CASES` in the environment each launch that a test compares the
//! results of becomes a file in that folder. `opcodes`, a program of `gpu-tools`, runs these files on a card and compares.
//!
//! A file has a line for each fact, and the module's text after the last of them. Left out are launches with dynamic shared
//! memory or parameters that are neither of 4 nor of 8 bytes, tests with several launches, and sums that are read before
//! they are there.

use std::fmt::Write;
use std::path::PathBuf;

use realizar_ptx::Address;

/// The folder, where there is one.
fn folder() -> Option<PathBuf> {
    std::env::var_os("REALIZAR_PTX_CASES").map(PathBuf::from)
}

/// What one test does, as far as it can be written down.
#[derive(Default)]
pub(crate) struct Case {
    folder: Option<PathBuf>,
    ptx: String,
    buffers: Vec<(Address, Vec<u8>)>,
    /// The lines of a launch; nothing where one cannot be written.
    launches: Vec<Option<String>>,
}

impl Case {
    pub(crate) fn new(ptx: &str) -> Self {
        Self { folder: folder(), ptx: ptx.to_owned(), ..Self::default() }
    }

    pub(crate) fn put(&mut self, address: Address, bytes: &[u8]) {
        if self.folder.is_some() {
            self.buffers.push((address, bytes.to_vec()));
        }
    }

    pub(crate) fn launch(
        &mut self,
        name: &str,
        grid: u32,
        block: [u32; 3],
        shared: usize,
        arguments: &[&[u8]],
    ) {
        let [x, y, z] = block;
        let mut lines = Some(format!("kernel {name}\ngrid {grid} 1 1\nblock {x} {y} {z}\n"));
        for argument in arguments {
            let line = match **argument {
                [a, b, c, d] => Some(format!("word {}\n", u32::from_le_bytes([a, b, c, d]))),
                [a, b, c, d, e, f, g, h] => {
                    let value = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
                    let inside = |(at, bytes): &(Address, Vec<u8>)| {
                        (*at..=*at + bytes.len() as u64).contains(&value)
                    };
                    Some(match self.buffers.iter().position(inside) {
                        Some(i) => format!("address {i} {}\n", value - self.buffers[i].0),
                        None => format!("long {value}\n"),
                    })
                }
                _ => None,
            };
            lines = lines.zip(line).map(|(lines, line)| lines + &line);
        }
        self.launches.push(lines.filter(|_| shared == 0));
    }

    /// Results that a test reads.
    pub(crate) fn expect(&self, from: Address, bytes: &[u8]) {
        let is_early = (1..4).any(|n| self.ptx.contains(&format!("wait_group.sync.aligned {n}")));
        let (Some(folder), [Some(launch)]) = (&self.folder, &self.launches[..]) else { return };
        let Some(buffer) = self.buffers.iter().position(|(at, _)| *at == from) else { return };
        if is_early {
            return;
        }
        let hex = |bytes: &[u8]| {
            bytes.iter().fold(String::new(), |mut text, byte| {
                write!(text, "{byte:02x}").expect("strings take everything");
                text
            })
        };
        let mut text = String::new();
        for (_, bytes) in &self.buffers {
            text += &format!("buffer {}\n", hex(bytes));
        }
        text += &format!("{launch}expected {buffer} {}\nptx\n{}", hex(bytes), self.ptx);
        // The same case has the same name in every run.
        let name = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        std::fs::create_dir_all(folder).expect("the folder of cases");
        std::fs::write(folder.join(format!("{name:016x}.case")), text).expect("a case is written");
    }
}
