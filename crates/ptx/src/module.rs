//! A loaded module: its variables in global memory, its kernels decoded.

use std::collections::HashMap;

use crate::Error;
use crate::decode::decode;
use crate::exec::memory::Memory;
use crate::exec::program::Program;
use crate::syntax::{Global, Initial, Number, Tree, parse};

/// A module on a device.
pub(crate) struct Module {
    pub(crate) programs: Vec<Program>,
    /// Address and size of each variable in global or constant memory.
    pub(crate) variables: HashMap<String, (u64, usize)>,
    text: String,
}

impl Module {
    /// Reads a module and gives its variables their memory.
    pub(crate) fn load(text: &str, memory: &mut Memory) -> Result<Self, Error> {
        let tree = parse(text)?;
        let mut variables = HashMap::new();
        let mut addresses = HashMap::new();
        for global in tree.globals.iter().filter(|g| g.variable.space != "shared") {
            let address = memory.allocate(global.variable.bytes);
            addresses.insert(global.variable.name.clone(), address);
            variables.insert(global.variable.name.clone(), (address, global.variable.bytes));
        }
        let loaded = Self::fill(&tree, &addresses, memory).and_then(|()| {
            let entries = tree.functions.iter().filter(|f| f.is_entry && f.body.is_some());
            entries.map(|entry| decode(&tree, &addresses, entry)).collect()
        });
        match loaded {
            Ok(programs) => Ok(Self { programs, variables, text: text.to_owned() }),
            Err(error) => {
                for address in addresses.values() {
                    memory.free(*address).map_err(Error::Memory)?;
                }
                Err(error)
            }
        }
    }

    /// Writes the variables' first content; what has none is zero.
    fn fill(
        tree: &Tree,
        addresses: &HashMap<String, u64>,
        memory: &mut Memory,
    ) -> Result<(), Error> {
        for Global { variable, element, initial } in &tree.globals {
            let Some(&address) = addresses.get(&variable.name) else { continue };
            let mut bytes = vec![0; variable.bytes];
            for (value, to) in initial.iter().zip(bytes.chunks_mut(*element)) {
                let value = match value {
                    Initial::Number(Number::Integer(n)) => *n as u64,
                    Initial::Number(Number::F32(bits)) => u64::from(*bits),
                    Initial::Number(Number::F64(bits)) if *element == 4 => {
                        u64::from((f64::from_bits(*bits) as f32).to_bits())
                    }
                    Initial::Number(Number::F64(bits)) => *bits,
                    Initial::Address(name, offset) => match addresses.get(name) {
                        Some(address) => address.wrapping_add_signed(*offset),
                        None => {
                            let message = format!("there is no variable `{name}` to point to");
                            return Err(Error::Syntax { line: variable.line, message });
                        }
                    },
                };
                let n = to.len().min(8);
                to[..n].copy_from_slice(&value.to_le_bytes()[..n]);
            }
            memory.slice(address, bytes.len()).map_err(Error::Memory)?.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// The text of a line, from 1.
    pub(crate) fn line(&self, line: u32) -> &str {
        self.text.lines().nth(line as usize - 1).unwrap_or_default().trim()
    }
}
