// Adds the experts' biases to the results of a row's experts, which are side by side, one element per
// invocation. `out` may be `x`.

struct Params {
    width: u32, // of all results of a row
    rows_at: u32,
    n_outputs: u32, // of an expert
    biases: u32, // where they begin in `vectors`
    x: vec2<u32>, // start, stride
    routes: vec2<u32>,
    out: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read> vectors: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.width || id.y >= batch[params.rows_at + 1u] {
        return;
    }
    let row = batch[params.rows_at] + id.y;
    let slot = id.x / params.n_outputs;
    let expert = u32(values[params.routes.x + row * params.routes.y + slot]);
    let bias = vectors[params.biases + expert * params.n_outputs + id.x % params.n_outputs];
    values[params.out.x + row * params.out.y + id.x] = values[params.x.x + row * params.x.y + id.x] + bias;
}
