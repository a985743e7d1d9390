//! Lists the metadata and tensors of a GGUF or safetensors file or directory.
//!
//! `cargo run -p realizar-formats --example inspect -- model.gguf`

use std::path::Path;

use realizar_formats::{Error, Gguf, SafeTensors, TensorInfo, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: inspect FILE")?;
    let path = Path::new(&path);
    if path.extension().is_some_and(|ext| ext == "gguf") {
        inspect_gguf(path)?;
    } else {
        inspect_safetensors(path)?;
    }
    Ok(())
}

fn inspect_gguf(path: &Path) -> Result<(), Error> {
    let gguf = Gguf::open(path)?;
    println!("GGUF version {}, {} file(s)", gguf.version(), gguf.shard_paths().count());
    for (key, value) in gguf.metadata().iter() {
        match value {
            Value::Array(array) => {
                let first: Vec<Value> = array.iter().take(4).collect();
                println!("{key} = {} x {} {first:?}", array.len(), array.elem_type());
            }
            Value::Str(s) => println!("{key} = {:?}", s.chars().take(80).collect::<String>()),
            other => println!("{key} = {other:?}"),
        }
    }
    print_tensors(gguf.tensors());
    Ok(())
}

fn inspect_safetensors(path: &Path) -> Result<(), Error> {
    let file = SafeTensors::open(path)?;
    for (key, value) in file.metadata() {
        println!("{key} = {value:?}");
    }
    print_tensors(file.tensors());
    Ok(())
}

fn print_tensors(tensors: &[TensorInfo]) {
    for t in tensors {
        println!("{:8} {:?} {} bytes, file {}: {}", t.ty, t.shape, t.n_bytes, t.shard, t.name);
    }
    let total: usize = tensors.iter().map(|t| t.n_bytes).sum();
    println!("{} tensors, {total} bytes", tensors.len());
}
