//! Reads the beginning of a file as a model's file is read: regular, up to a limit, printed on one line.
//!
//! `cargo run -p realizar-base --example inspect_file -- README.md`

use realizar_base::printable::shown;
use realizar_base::{ByteSize, MAX_JSON, read_regular};

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "README.md".to_owned());
    let bytes = read_regular(path.as_ref(), MAX_JSON)?;
    println!("{path}: {}", ByteSize::from(bytes.len()));
    println!("{}", shown(&String::from_utf8_lossy(&bytes)));
    Ok(())
}
