//! Dequantization of every weight type, compared with an independent implementation: `make_blocks.py`
//! wrote `blocks.bin`.

use realizar_kernels_cpu::{
    Epilogue, MatrixRef, PanelScratch, Rows, RowsMut, Team, Tier, matmul_f32,
};
use realizar_quant::BlockType::{self, *};

/// In the order of the file.
const TYPES: [BlockType; 22] = [
    F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, TQ1_0,
    TQ2_0, IQ1_S, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S,
];

#[test]
fn products_with_the_identity_are_the_weights() {
    let team = Team::new(1);
    let scratch = PanelScratch::new(&team);
    let mut identity = vec![0.0; 256 * 256];
    identity.iter_mut().step_by(257).for_each(|v| *v = 1.0);
    let mut rest = include_bytes!("blocks.bin").as_slice();
    for ty in TYPES {
        let (data, tail) = rest.split_at(256 / ty.block_len() * ty.block_bytes());
        let (expected, tail) = tail.split_at(256 * 4);
        rest = tail;
        let expected = expected.as_chunks::<4>().0.iter().map(|&v| f32::from_le_bytes(v));
        for tier in Tier::available() {
            let mut out = vec![0.0; 256];
            let view = RowsMut::new(&mut out, 256, 1);
            let matrix = MatrixRef::new(ty, 1, 256, data);
            let x = Rows::new(&identity, 256, 256);
            matmul_f32(&team, tier, &[matrix], x, view, &scratch, &Epilogue::default());
            for (i, (&value, expected)) in out.iter().zip(expected.clone()).enumerate() {
                let error = (value - expected).abs();
                assert!(
                    error <= 2e-7 * expected.abs().max(0.1),
                    "{ty} {tier} {i}: {value} {expected}"
                );
            }
        }
    }
    assert!(rest.is_empty());
}
