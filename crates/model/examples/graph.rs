//! Prints the graph of a GGUF file or a Hugging Face directory: `graph MODEL`.

use realizar_model::checkpoint::Checkpoint;
use realizar_model::{ModelOutput, architectures};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: graph MODEL")?;
    let checkpoint = Checkpoint::open(Path::new(&path))?;
    let config = architectures::config(&checkpoint)?;
    let context = config.max_seq_len;
    let model = architectures::record(&checkpoint, config, context, ModelOutput::Logits, false)?;
    println!("{}", model.graph);
    Ok(())
}
