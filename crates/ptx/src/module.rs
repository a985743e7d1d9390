//! Modules: their text, parsed once per process, and their variables on a device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::Error;
use crate::decode::{Source, check, decode};
use crate::exec::memory::Memory;
use crate::program::Program;
use crate::syntax::{Function, Global, Initial, Number, parse};

/// Modules of up to this many bytes are decoded when they are loaded. Kernels of larger modules are decoded on first
/// use, because most programs use few of them.
const EAGER: usize = 1 << 16;

/// Number of parsed modules that are cached for other devices.
const KEPT: usize = 256;
const TINY: usize = 1 << 12;

static KEEP: Mutex<Vec<Arc<Image>>> = Mutex::new(Vec::new());

/// A parsed module, independent of a device.
pub(crate) struct Image {
    source: Source,
    kernels: Vec<Kernel>,
}

/// A kernel of a module.
struct Kernel {
    /// Index among the functions of the module.
    function: usize,
    program: OnceLock<Result<Box<Program>, Error>>,
}

impl Image {
    /// Parses a module, or finds it in the cache.
    fn of(text: &str) -> Result<Arc<Self>, Error> {
        if text.len() <= TINY {
            return Self::new(text).map(Arc::new);
        }
        // The list holds complete images even if a thread panicked.
        let mut kept = KEEP.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.iter().find(|image| *image.source.text == *text) {
            return Ok(Arc::clone(found));
        }
        let image = Arc::new(Self::new(text)?);
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(Arc::clone(&image));
        Ok(image)
    }

    fn new(text: &str) -> Result<Self, Error> {
        let source = Source { tree: parse(text)?, text: text.into() };
        let functions = source.tree.functions.iter().enumerate();
        let kernels = functions.filter(|(_, f)| f.is_entry && f.body.is_some());
        let kernels = kernels.map(|(function, _)| Kernel { function, program: OnceLock::new() });
        let image = Self { kernels: kernels.collect(), source };
        // Detects references to undefined variables, whatever their later addresses.
        initial(&image.source, &vec![0; image.source.tree.in_global_memory().count()])?;
        for function in &image.source.tree.functions {
            check(&image.source, function)?;
        }
        for at in 0..image.kernels.len() {
            let calls = image.function(at).body.as_ref().is_some_and(|b| b.sample.calls);
            if calls || text.len() <= EAGER {
                image.program(at)?;
            }
        }
        Ok(image)
    }

    fn function(&self, kernel: usize) -> &Function {
        &self.source.tree.functions[self.kernels[kernel].function]
    }

    /// A decoded kernel.
    pub(crate) fn program(&self, kernel: usize) -> Result<&Program, Error> {
        let program = &self.kernels[kernel].program;
        let made =
            program.get_or_init(|| decode(&self.source, self.function(kernel)).map(Box::new));
        made.as_deref().map_err(Clone::clone)
    }

    /// Names of the kernels in the order of the text.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        (0..self.kernels.len()).map(|at| self.function(at).name.as_str())
    }

    /// The text of a line, from 1.
    pub(crate) fn line(&self, line: u32) -> &str {
        self.source.text.lines().nth(line as usize - 1).unwrap_or_default().trim()
    }
}

/// A module on a device.
pub(crate) struct Module {
    pub(crate) image: Arc<Image>,
    /// Address and size of each variable in global or constant memory.
    pub(crate) variables: HashMap<String, (u64, usize)>,
    /// Addresses of the variables in the order of the text.
    pub(crate) addresses: Vec<u64>,
}

impl Module {
    /// Parses a module and allocates its variables.
    pub(crate) fn load(text: &str, memory: &mut Memory) -> Result<Self, Error> {
        let image = Image::of(text)?;
        let globals = image.source.tree.in_global_memory();
        let mut variables = HashMap::new();
        let mut addresses = Vec::new();
        for Global { variable, .. } in globals {
            let address = memory.allocate(variable.bytes);
            addresses.push(address);
            variables.insert(variable.name.clone(), (address, variable.bytes));
        }
        for (bytes, &address) in initial(&image.source, &addresses)?.iter().zip(&addresses) {
            memory.slice(address, bytes.len()).map_err(Error::Memory)?.copy_from_slice(bytes);
        }
        Ok(Self { image, variables, addresses })
    }
}

/// Initial contents of the variables at `addresses`; zero without an initializer.
fn initial(source: &Source, addresses: &[u64]) -> Result<Vec<Vec<u8>>, Error> {
    let globals: Vec<&Global> = source.tree.in_global_memory().collect();
    let mut contents = Vec::new();
    for (idx, Global { variable, element, initial }) in globals.iter().enumerate() {
        // Like ptxas, requires that a variable is declared before others refer to it.
        let declared = &globals[..idx];
        let address_of = |name: &str| {
            declared.iter().position(|g| g.variable.name == name).map(|i| addresses[i])
        };
        let mut bytes = vec![0; variable.bytes];
        for (value, to) in initial.iter().zip(bytes.chunks_mut(*element)) {
            let value = match value {
                Initial::Number(Number::Integer(n)) => *n as u64,
                Initial::Number(Number::F32(bits)) => u64::from(*bits),
                Initial::Number(Number::F64(bits)) if *element == 4 => {
                    u64::from((f64::from_bits(*bits) as f32).to_bits())
                }
                Initial::Number(Number::F64(bits)) => *bits,
                Initial::Address(name, offset) => match address_of(name) {
                    Some(address) => address.wrapping_add_signed(*offset),
                    None => {
                        let message = format!("no variable `{name}` was declared before");
                        return Err(Error::Syntax { line: variable.line, message });
                    }
                },
            };
            let n = to.len().min(8);
            to[..n].copy_from_slice(&value.to_le_bytes()[..n]);
        }
        contents.push(bytes);
    }
    Ok(contents)
}
