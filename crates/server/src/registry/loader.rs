//! A program's models: which there are, how each is loaded, and how many may be.

use super::keep_alive::KeepAlive;
use crate::registry::served::ServedModel;
use realizar_runtime::{MemoryUse, ModelOutput};
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

/// Loads configured models. Its functions may take long: they run on threads of their own, for
/// different models at the same time.
pub trait ModelLoader: Send + Sync {
    /// The memory that the model of this name will take.
    ///
    /// # Errors
    /// If the model cannot be found or read.
    fn memory(&self, name: &str) -> Result<MemoryUse, Box<dyn Error + Send + Sync>>;

    /// Loads the model of this name. Its own name and aliases become those of its [`ModelSpec`].
    ///
    /// # Errors
    /// If the model cannot be loaded.
    fn load(&self, name: &str) -> Result<ServedModel, Box<dyn Error + Send + Sync>>;

    /// The path of the files of the model of this name, if they are on this machine. Must be quick.
    fn path(&self, _name: &str) -> Option<PathBuf> {
        None
    }

    /// Further models that can be loaded now and that are offered beside those that were made known: called
    /// before models are listed, and where a name is unknown. Must be quick.
    fn discover(&self) -> Vec<ModelSpec> {
        Vec::new()
    }
}

/// A model that can be loaded.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    /// The name that answers and lists show, and that the loader is given.
    pub name: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Where it comes from, to show.
    pub source: String,
    /// What it is loaded for.
    pub output: ModelOutput,
}

/// How many models are loaded, and when.
#[derive(Debug, Clone)]
pub struct ModelsConfig {
    /// Bytes that all loaded models may take together.
    pub memory_limit: Option<usize>,
    /// Models that may be loaded together.
    pub max_loaded: Option<usize>,
    /// Whether a request loads the model that it names.
    pub autoload: bool,
    /// How long a model that is only [offered](super::Models::offer) stays loaded without a request.
    pub keep_alive: KeepAlive,
    /// How long a load waits for models that are in use and would have to make room.
    pub room_wait: Duration,
    /// How long the requests of a model being unloaded may continue.
    pub unload_grace: Duration,
}

impl Default for ModelsConfig {
    fn default() -> Self {
        Self {
            memory_limit: None,
            max_loaded: None,
            autoload: true,
            keep_alive: KeepAlive::default(),
            room_wait: Duration::from_secs(30),
            unload_grace: Duration::from_secs(30),
        }
    }
}
