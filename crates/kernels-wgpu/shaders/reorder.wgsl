// Copies rows with their columns in another order, one element per invocation.

struct Params {
    width: u32,
    rows_at: u32,
    order: u32, // where the order begins in `vectors`
    padding: u32,
    x: vec2<u32>, // start, stride
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
    let from_col = u32(vectors[params.order + id.x]);
    values[params.out.x + row * params.out.y + id.x] =
        values[params.x.x + row * params.x.y + from_col];
}
