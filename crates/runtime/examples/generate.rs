//! Continues a text, printing each piece as it is made: `generate MODEL TEXT [MAX_TOKENS]`.
//!
//! MODEL is a GGUF file or a Hugging Face directory.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::tokenizer::EncodeOptions;
use realizar_runtime::{Event, GenerateParams, LoadOptions, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(text)) = (args.next(), args.next()) else {
        return Err("usage: generate MODEL TEXT [MAX_TOKENS]".into());
    };
    let max_tokens = args.next().map_or(Ok(64), |n| n.parse())?;

    let backend = CpuBackend::new(None, None)?;
    let mut model = Model::load(Path::new(&path), &backend, &LoadOptions::default())?;
    let ids = model.tokenizer()?.encode(&text, EncodeOptions::default())?;

    let params = GenerateParams { max_tokens: Some(max_tokens), ..GenerateParams::default() };
    let mut session = model.new_session();
    print!("{text}");
    let generation = session.generate(&mut model, &ids, &params, &mut |event| {
        if let Event::Token(token) = event {
            print!("{}", token.text);
        }
        // A closed pipe ends the generation.
        match std::io::stdout().flush() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    println!("{}", generation.tail);
    let rate = generation.ids.len() as f64 / generation.timings.generate.as_secs_f64();
    println!("[{} tokens, {rate:.1} tokens/s]", generation.ids.len());
    Ok(())
}
