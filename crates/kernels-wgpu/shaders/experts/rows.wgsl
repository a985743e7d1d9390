// Of the products with experts: constants, buffers, and where a row of x and its result lie. A
// workgroup has one row and one of its experts, whose index it reads from the routes. A piece of the
// matrices holds whole experts; where the expert lies in another piece there is nothing to do.

struct Params {
    groups: u32,    // of 32 columns, in a row of a matrix
    row_words: u32, // of a row of a matrix
    n_outputs: u32, // rows of a matrix
    n_cols: u32,
    rows_at: u32,
    n_own: u32,     // columns of x of each of a row's experts, 0 where they share it
    first_expert: u32,
    n_experts: u32, // of the piece
    x_blocks: u32,  // quantized blocks from one row of x to the next
    _pad: u32,
    x: vec2<u32>, // start, stride
    routes: vec2<u32>,
    out: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read> vectors: array<f32>; // none of them is read

var<private> slot: u32;
var<private> first_weight: u32;

// The first row of x and how many there are: one or none.
fn span(group: vec3<u32>) -> vec2<u32> {
    let row = batch[params.rows_at] + group.y;
    slot = group.z;
    let expert = u32(values[params.routes.x + row * params.routes.y + slot]);
    let at = expert - params.first_expert; // beyond the piece where it is below
    let has = group.y < batch[params.rows_at + 1u] && at < params.n_experts;
    first_weight = select(0u, at, has) * params.n_outputs * params.row_words;
    return vec2(row, select(0u, 1u, has));
}

fn x_start(row: u32) -> u32 {
    return params.x.x + row * params.x.y + slot * params.n_own;
}

fn x_block(row: u32) -> u32 {
    return row * params.x_blocks + slot * (params.n_own / 32u);
}

fn weights_row(output: u32) -> u32 {
    return first_weight + min(output, params.n_outputs - 1u) * params.row_words;
}

fn store(row: u32, col: u32, sum: f32) {
    values[params.out.x + row * params.out.y + slot * params.n_outputs + col] = sum;
}
