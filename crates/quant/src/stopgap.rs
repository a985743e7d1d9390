//! stopgap
use crate::{BlockType, Error};
use half::{bf16, f16};
fn h(b: &[u8]) -> f32 {
    f16::from_le_bytes([b[0], b[1]]).to_f32()
}
pub fn dequantize(ty: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    let n = out.len();
    let expected = ty.row_bytes(n)?;
    if bytes.len() != expected {
        return Err(Error::Size { ty, n_elements: n, expected, found: bytes.len() });
    }
    for (b, o) in bytes.chunks_exact(ty.block_bytes()).zip(out.chunks_exact_mut(ty.block_len())) {
        block(ty, b, o);
    }
    Ok(())
}
fn scale_min(j: usize, q: &[u8]) -> (f32, f32) {
    let (d, m) = if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        ((q[j + 4] & 15) | ((q[j - 4] >> 6) << 4), (q[j + 4] >> 4) | ((q[j] >> 6) << 4))
    };
    (f32::from(d), f32::from(m))
}
fn block(ty: BlockType, b: &[u8], o: &mut [f32]) {
    match ty {
        BlockType::F32 => o[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        BlockType::F16 => o[0] = h(b),
        BlockType::BF16 => o[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        BlockType::Q4_0 => {
            let d = h(b);
            for i in 0..16 {
                o[i] = (i32::from(b[2 + i] & 15) - 8) as f32 * d;
                o[i + 16] = (i32::from(b[2 + i] >> 4) - 8) as f32 * d;
            }
        }
        BlockType::Q4_1 => {
            let (d, m) = (h(b), h(&b[2..]));
            for i in 0..16 {
                o[i] = f32::from(b[4 + i] & 15) * d + m;
                o[i + 16] = f32::from(b[4 + i] >> 4) * d + m;
            }
        }
        BlockType::Q5_0 => {
            let d = h(b);
            let qh = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
            for i in 0..16 {
                let lo = (b[6 + i] & 15) as u32 | (((qh >> i) & 1) << 4);
                let hi = (b[6 + i] >> 4) as u32 | (((qh >> (i + 16)) & 1) << 4);
                o[i] = (lo as i32 - 16) as f32 * d;
                o[i + 16] = (hi as i32 - 16) as f32 * d;
            }
        }
        BlockType::Q5_1 => {
            let (d, m) = (h(b), h(&b[2..]));
            let qh = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
            for i in 0..16 {
                let lo = (b[8 + i] & 15) as u32 | (((qh >> i) & 1) << 4);
                let hi = (b[8 + i] >> 4) as u32 | (((qh >> (i + 16)) & 1) << 4);
                o[i] = lo as f32 * d + m;
                o[i + 16] = hi as f32 * d + m;
            }
        }
        BlockType::Q8_0 => {
            let d = h(b);
            for i in 0..32 {
                o[i] = f32::from(b[2 + i] as i8) * d;
            }
        }
        BlockType::Q4_K => {
            let (d, dm) = (h(b), h(&b[2..]));
            let s = &b[4..16];
            let q = &b[16..];
            for j in 0..8 {
                let (sc, m) = scale_min(j, s);
                for l in 0..32 {
                    let v = q[(j / 2) * 32 + l];
                    let v = if j % 2 == 0 { v & 15 } else { v >> 4 };
                    o[j * 32 + l] = d * sc * f32::from(v) - dm * m;
                }
            }
        }
        BlockType::Q5_K => {
            let (d, dm) = (h(b), h(&b[2..]));
            let s = &b[4..16];
            let qh = &b[16..48];
            let q = &b[48..];
            for j in 0..8 {
                let (sc, m) = scale_min(j, s);
                for l in 0..32 {
                    let v = q[(j / 2) * 32 + l];
                    let v = (if j % 2 == 0 { v & 15 } else { v >> 4 }) | (((qh[l] >> j) & 1) << 4);
                    o[j * 32 + l] = d * sc * f32::from(v) - dm * m;
                }
            }
        }
        BlockType::Q6_K => {
            let (ql, qh, sc) = (&b[..128], &b[128..192], &b[192..208]);
            let d = h(&b[208..]);
            for i in 0..256 {
                let (half, r) = (i / 128, i % 128);
                let (quarter, l) = (r / 32, r % 32);
                let low = ql[half * 64 + (quarter % 2) * 32 + l];
                let low = if quarter < 2 { low & 15 } else { low >> 4 };
                let high = (qh[half * 32 + l] >> (2 * quarter)) & 3;
                let q = i32::from(low | (high << 4)) - 32;
                o[i] = d * f32::from(sc[i / 16] as i8) * q as f32;
            }
        }
        _ => unimplemented!("stopgap"),
    }
}
