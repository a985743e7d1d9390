// out[row] = scale * table[batch[ids_at + row]], 32 columns per invocation, for the rows whose ids are in
// this piece of the table. Another part defines `decode`.

struct Params {
    groups: u32,
    row_words: u32,
    first_row: u32,
    n_rows: u32,
    rows_at: u32,
    ids_at: u32,
    scale: f32,
    width: u32,
    out: vec2<u32>, // start, stride
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read> weights: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) invocation: vec3<u32>) {
    let group = invocation.x;
    if group >= params.groups || invocation.y >= batch[params.rows_at + 1u] {
        return;
    }
    let row = batch[params.rows_at] + invocation.y;
    let id = batch[params.ids_at + row];
    if id < params.first_row || id - params.first_row >= params.n_rows {
        return;
    }
    var w = decode((id - params.first_row) * params.row_words, group);
    let out = params.out.x + row * params.out.y;
    for (var i = 0u; i < 32u; i++) {
        let col = 32u * group + i;
        if col < params.width {
            values[out + col] = params.scale * w[i / 4u][i % 4u];
        }
    }
}
