//! Prints the integer scale by which devices weigh logits at a temperature (1 unless one is given).
//!
//! `cargo run -p realizar-types --example share_scale -- 0.7`

use realizar_types::ShareScale;

fn main() -> Result<(), std::num::ParseFloatError> {
    let temperature: f32 = std::env::args().nth(1).unwrap_or_else(|| "1".to_owned()).parse()?;
    let ShareScale { factor, range } = ShareScale::new(1.0 / temperature);
    println!(
        "temperature {temperature}: factor {factor} * 2^-32, logits within 2^{range} of the largest"
    );
    Ok(())
}
