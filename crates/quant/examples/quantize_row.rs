//! Quantizes a row to a block type (Q4_K unless one is named) and prints size and error.
//!
//! `cargo run -p realizar-quant --example quantize_row -- Q6_K`

use realizar_quant::{BlockType, dequantize, quantize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "Q4_K".to_owned());
    let ty = BlockType::from_name(&name).ok_or(format!("unknown block type {name}"))?;

    let values: Vec<f32> =
        (0..4096).map(|i| (i as f32 * 0.7).sin() + (i as f32 * 0.013).cos()).collect();
    let mut bytes = vec![0u8; ty.row_bytes(values.len())?];
    quantize(ty, &values, &mut bytes)?;
    let mut back = vec![0.0f32; values.len()];
    dequantize(ty, &bytes, &mut back)?;

    let square = |v: &f32| f64::from(*v) * f64::from(*v);
    let error: f64 = values.iter().zip(&back).map(|(a, b)| square(&(a - b))).sum();
    let power: f64 = values.iter().map(square).sum();
    println!("{ty}: {} values in {} bytes", values.len(), bytes.len());
    println!("relative root mean square error: {:.5}", (error / power).sqrt());
    Ok(())
}
