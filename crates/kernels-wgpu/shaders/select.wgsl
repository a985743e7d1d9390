// Copies rows, all or those that `batch` selects, one element per invocation.

struct Params {
    width: u32,
    rows_at: u32,
    by_id: u32, // 1: row r of out is row batch[ids_at + r] of x, 0: row r
    ids_at: u32,
    x: vec2<u32>, // start, stride
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
    var from_row = row;
    if params.by_id == 1u {
        from_row = batch[params.ids_at + row];
    }
    values[params.out.x + row * params.out.y + id.x] =
        values[params.x.x + from_row * params.x.y + id.x];
}
