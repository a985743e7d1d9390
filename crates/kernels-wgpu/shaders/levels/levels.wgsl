// 32 columns of a quantized row as integers, and their product with a block of
// quantized activations. `levels(row, group)`, a part of its own for each type,
// gives the columns [32 * group, 32 * group + 32) of the packed row that begins at
// word `row`.

// Column c of half h is scale[h] * level[c] + offset[h].
struct Levels {
    lower: vec4<u32>, // levels 0 to 15, four signed bytes to a word
    upper: vec4<u32>, // levels 16 to 31
    scale: vec2<f32>,
    offset: vec2<f32>,
}

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4(a.x, b.x) + dot4(a.y, b.y) + dot4(a.z, b.z) + dot4(a.w, b.w);
}

// acc + the product of the columns with block `at` of the activations. The sums of
// integers are exact.
fn add_product(w: Levels, at: u32, acc: f32) -> f32 {
    let block = blocks[at];
    let sums = unpack_sums(block.y);
    let lower = f32(dot16(w.lower, quants[2u * at]));
    let upper = f32(dot16(w.upper, quants[2u * at + 1u]));
    let offsets = fma(w.offset.x, sums.x, w.offset.y * sums.y);
    let product = fma(w.scale.x, lower, fma(w.scale.y, upper, offsets));
    return fma(bitcast<f32>(block.x), product, acc);
}

// The sums of the quants of the two halves of a block.
fn unpack_sums(packed: u32) -> vec2<f32> {
    return vec2<f32>((vec2(bitcast<i32>(packed)) << vec2(16u, 0u)) >> vec2(16u));
}
