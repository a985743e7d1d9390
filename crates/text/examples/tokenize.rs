//! Prints the token ids of a text: `tokenize MODEL.gguf TEXT`.

use std::path::Path;

use realizar_formats::Gguf;
use realizar_text::tokenizer::{EncodeOptions, Tokenizer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(text)) = (args.next(), args.next()) else {
        return Err("usage: tokenize MODEL.gguf TEXT".into());
    };
    let gguf = Gguf::open(Path::new(&model))?;
    let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
    let options = EncodeOptions { add_special: true, parse_special: true };
    for id in tokenizer.encode(&text, options)? {
        println!("{id:>7}  {:?}", tokenizer.token_text(id)?);
    }
    Ok(())
}
