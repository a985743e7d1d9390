// Cosines, then sines, of position * inv_freq, times mscale: one pair of columns
// of one row per invocation.
//
// WGSL does not bound the errors of sin and cos for large arguments, and fma need not be fused. So angles are
// reduced in integers: the mantissa times the bits of 1 / 2 pi that matter at its exponent (M. Payne and
// R. Hanek, 1983).

struct Params {
    n_pairs: u32,
    inv_freq: u32, // start in vectors
    mscale: f32,
    positions_at: u32, // batch[positions_at + row]
    rows_at: u32,
    // 0 if positions have one component; otherwise the words from one component to the next.
    component_stride: u32,
    out: vec2<u32>, // start, stride
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
@group(0) @binding(3) var<storage, read_write> values: array<f32>;

// A word of zeros, then the first fractional bits of 1 / 2 pi.
var<private> inverse_turn: array<u32, 6> =
    array<u32, 6>(0u, 0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u);

// The 32 bits of 1 / 2 pi that follow bit `at`, counted from the word of zeros.
fn inverse_turn_bits(at: u32) -> u32 {
    let i = min(at >> 5u, 4u);
    let shift = at & 31u;
    // Two shifts, because a shift by 32 is not defined.
    return (inverse_turn[i] << shift) | ((inverse_turn[i + 1u] >> 1u) >> (31u - shift));
}

// The upper half of a * b for a below 2^24; at most 2 too small.
fn multiply_high(a: u32, b: u32) -> u32 {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    return a1 * b1 + ((a0 * b1) >> 16u) + ((a1 * b0) >> 16u);
}

struct Reduced {
    angle: f32, // in [-pi / 4, pi / 4]
    quadrant: u32,
}

// Reduces an angle of at least 0 by `quadrant` quarter turns and whole turns.
fn reduce_angle(angle: f32) -> Reduced {
    if angle < 0.78 {
        return Reduced(angle, 0u);
    }
    // The angle is mantissa * 2^e. Fractional bits of 1 / 2 pi before bit e contribute whole turns. The word
    // of zeros serves e down to -32.
    let bits = bitcast<u32>(angle);
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    let at = (bits >> 23u) + 32u - 150u; // e + 32
    // The fraction of a turn in units of 2^-32, with an error of at most 3 units.
    let turn = mantissa * inverse_turn_bits(at) + multiply_high(mantissa, inverse_turn_bits(at + 32u));
    let quadrant = (turn + 0x20000000u) >> 30u;
    let rest = bitcast<i32>(turn - (quadrant << 30u));
    return Reduced(f32(rest) * 1.4629180792671596e-9, quadrant & 3u); // 2 pi / 2^32
}

// Taylor series; the first omitted term is below 3e-9.
fn sine(x: f32) -> f32 {
    let z = x * x;
    let p = fma(z, fma(z, fma(z, 2.7557319e-6, -1.9841270e-4), 8.3333333e-3), -1.6666667e-1);
    return fma(x * z, p, x);
}

fn cosine(x: f32) -> f32 {
    let z = x * x;
    let p = fma(z, fma(z, fma(z, -2.7557319e-7, 2.4801587e-5), -1.3888889e-3), 4.1666667e-2);
    return fma(z * z, p, fma(z, -0.5, 1.0));
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.n_pairs || id.y >= batch[params.rows_at + 1u] {
        return;
    }
    let row = batch[params.rows_at] + id.y;
    var position_at = params.positions_at + row;
    if params.component_stride != 0u {
        // The index of a pair's component follows the frequencies.
        let component = u32(vectors[params.inv_freq + params.n_pairs + id.x]);
        position_at += component * params.component_stride;
    }
    let signed_angle = f32(batch[position_at]) * vectors[params.inv_freq + id.x];
    let reduced = reduce_angle(abs(signed_angle));
    let s = sine(reduced.angle);
    let c = cosine(reduced.angle);
    let odd = (reduced.quadrant & 1u) == 1u;
    var cos_angle = select(c, s, odd);
    var sin_angle = select(s, c, odd);
    cos_angle = select(cos_angle, -cos_angle, reduced.quadrant == 1u || reduced.quadrant == 2u);
    sin_angle = select(sin_angle, -sin_angle, (reduced.quadrant >= 2u) != (signed_angle < 0.0));
    let at = params.out.x + row * params.out.y + id.x;
    values[at] = cos_angle * params.mscale;
    values[at + params.n_pairs] = sin_angle * params.mscale;
}
