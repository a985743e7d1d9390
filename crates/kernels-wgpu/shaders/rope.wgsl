// Rotates pairs of each head by the row's cosines and sines. An invocation has one pair, or one of the
// columns at the head's end that are only copied.

struct Params {
    head_dim: u32,
    n_pairs: u32,
    width: u32,
    interleaved: u32, // 1: pairs are neighbours, 0: half the rotary columns apart
    x: vec2<u32>, // start, stride
    out: vec2<u32>,
    table: vec2<u32>,
    rows_at: u32,
    n_copies: u32, // columns of a head to copy
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let per_head = params.n_pairs + params.n_copies;
    let head = id.x / per_head;
    let item = id.x % per_head;
    let first = head * params.head_dim;
    if first >= params.width || id.y >= batch[params.rows_at + 1u] {
        return;
    }
    let row = batch[params.rows_at] + id.y;
    let x = params.x.x + row * params.x.y + first;
    let out = params.out.x + row * params.out.y + first;
    if item >= params.n_pairs {
        let col = item + params.n_pairs;
        values[out + col] = values[x + col];
        return;
    }
    var pair = vec2<u32>(item, item + params.n_pairs);
    if params.interleaved == 1u {
        pair = vec2<u32>(2u * item, 2u * item + 1u);
    }
    let at = params.table.x + row * params.table.y + item;
    let c = values[at];
    let s = values[at + params.n_pairs];
    let a = values[x + pair.x];
    let b = values[x + pair.y];
    values[out + pair.x] = fma(a, c, -(b * s));
    values[out + pair.y] = fma(b, c, a * s);
}
