// The sum of the results of a row's experts, weighted by their factors, in the router's order, one element
// per invocation.

struct Params {
    width: u32,
    rows_at: u32,
    n_chosen: u32,
    _pad: u32,
    x: vec2<u32>, // start, stride
    routes: vec2<u32>,
    out: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.width || id.y >= batch[params.rows_at + 1u] {
        return;
    }
    let row = batch[params.rows_at] + id.y;
    let x = params.x.x + row * params.x.y + id.x;
    let factors = params.routes.x + row * params.routes.y + params.n_chosen;
    var sum = values[factors] * values[x];
    for (var i = 1u; i < params.n_chosen; i++) {
        sum = fma(values[factors + i], values[x + i * params.width], sum);
    }
    values[params.out.x + row * params.out.y + id.x] = sum;
}
