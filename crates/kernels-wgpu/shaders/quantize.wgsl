// Quantizes rows of f32 to 8-bit integers in blocks of 32. An invocation has 4 columns, and 8 invocations
// share a block.
//
// scale = max|x| / 127, q = round(x / scale) with ties to even. A block whose scale would be subnormal is all
// zeros. A block with a value that is not finite has that value as scale, and zeros.

struct Params {
    n_blocks: u32,
    max_blocks: u32,
    rows_at: u32,
    max_rows: u32,
    x: vec2<u32>, // start, stride
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read_write> quants: array<u32>;
@group(0) @binding(4) var<storage, read_write> blocks: array<vec2<u32>>;

const WORKGROUP: u32 = 64u;
var<workgroup> largest: array<u32, WORKGROUP>;
var<workgroup> sums: array<i32, WORKGROUP>;

// x / 127, correctly rounded; the division of a device may be off by a few ULP. The remainder, halved so
// that nothing overflows, is exact whether or not the operation is fused.
fn over_127(x: f32) -> f32 {
    let q = x * (1.0 / 127.0);
    let half_rest = (0.5 * x - 64.0 * q) + 0.5 * q;
    return q + half_rest * (2.0 / 127.0);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = batch[params.rows_at] + group.y;
    let block = group.x * (WORKGROUP / 8u) + lane / 8u;
    let place = lane % 8u;
    let inside = block < params.n_blocks
        && group.y < batch[params.rows_at + 1u]
        && row < params.max_rows;

    var x = vec4<f32>();
    if inside {
        let at = params.x.x + row * params.x.y + block * 32u + place * 4u;
        x = vec4(values[at], values[at + 1u], values[at + 2u], values[at + 3u]);
    }
    // As integers, the bits of magnitudes compare like the magnitudes, with NaN above all others.
    let bits = bitcast<vec4<u32>>(x) & vec4(0x7fffffffu);
    largest[lane] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    workgroupBarrier();
    var top = 0u;
    for (var i = 0u; i < 8u; i++) {
        top = max(top, largest[lane - place + i]);
    }

    var q = vec4<i32>();
    var scale = 0u;
    if top >= 0x7f800000u { // infinite or NaN
        scale = top;
    } else if top >= 0x03fe0000u { // 127 times the smallest normal number
        let s = over_127(bitcast<f32>(top));
        scale = bitcast<u32>(s);
        q = clamp(vec4<i32>(round(x * (1.0 / s))), vec4(-127), vec4(127));
    }
    sums[lane] = q.x + q.y + q.z + q.w;
    workgroupBarrier();

    if inside {
        let at = row * params.max_blocks + block;
        let bytes = vec4<u32>(q) & vec4(0xffu);
        quants[at * 8u + place] = bytes.x | bytes.y << 8u | bytes.z << 16u | bytes.w << 24u;
        if place == 0u {
            let lower = sums[lane] + sums[lane + 1u] + sums[lane + 2u] + sums[lane + 3u];
            let upper = sums[lane + 4u] + sums[lane + 5u] + sums[lane + 6u] + sums[lane + 7u];
            blocks[at] = vec2(scale, (u32(lower) & 0xffffu) | u32(upper) << 16u);
        }
    }
}
