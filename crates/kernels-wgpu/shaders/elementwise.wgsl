// out = op(x, y), one element per invocation. Comes after shaders/activations.wgsl.

// Elementwise::code. It is a constant, because devices may execute all taken branches of a switch in every
// invocation.
override op: u32;

struct Params {
    width: u32,
    rows_at: u32,
    constants: vec2<f32>,
    x: vec2<u32>, // start, stride
    y: vec2<u32>,
    out: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let col = id.x;
    if col >= params.width || id.y >= batch[params.rows_at + 1u] {
        return;
    }
    let row = batch[params.rows_at] + id.y;
    let x = values[params.x.x + row * params.x.y + col];
    var result = 0.0;
    if op < 16u {
        result = activation(op, x);
    } else {
        let y = values[params.y.x + row * params.y.y + col];
        switch op {
            case 32u: { result = x + y; }
            case 33u: { result = x * params.constants.x; }
            case 34u: { result = params.constants.x * safe_tanh(x / params.constants.x); }
            case 35u: { result = clamp(x, params.constants.x, params.constants.y); }
            case 36u: { result = x * y; }
            default: { result = activation(op - 16u, x) * y; }
        }
    }
    values[params.out.x + row * params.out.y + col] = result;
}
