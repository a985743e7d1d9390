// Places of a row of x and its result. A workgroup has one row and one of its experts, whose index it reads
// from the routes. It does nothing if the expert is in another piece of the matrices.

var<private> slot: u32;
var<private> first_weight: u32;

// The first row of x and the number of rows: one or none.
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
