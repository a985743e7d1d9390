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

// 32 quantized activations: x[c] is scale * quant[c].
struct Block {
    lower: vec4<u32>, // quants 0 to 15
    upper: vec4<u32>, // quants 16 to 31
    scale: f32,
    sums: vec2<f32>,  // of the quants of each half
}

fn block(at: u32) -> Block {
    let b = blocks[at];
    let sums = (vec2(bitcast<i32>(b.y)) << vec2(16u, 0u)) >> vec2(16u);
    return Block(quants[2u * at], quants[2u * at + 1u], bitcast<f32>(b.x), vec2<f32>(sums));
}

// acc + the product of the columns with a block. The sums of integers are exact.
fn add_product(w: Levels, x: Block, acc: f32) -> f32 {
    let lower = f32(dot16(w.lower, x.lower));
    let upper = f32(dot16(w.upper, x.upper));
    let offsets = fma(w.offset.x, x.sums.x, w.offset.y * x.sums.y);
    return fma(x.scale, fma(w.scale.x, lower, fma(w.scale.y, upper, offsets)), acc);
}
