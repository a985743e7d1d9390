// For products with one matrix: the rows of x of a workgroup, and their places.

// The first row of x and the number of rows.
fn span(group: vec3<u32>) -> vec2<u32> {
    let n_rows = batch[params.rows_at + 1u];
    let first = batch[params.rows_at] + ROWS * group.y;
    return vec2(first, min(max(n_rows, ROWS * group.y) - ROWS * group.y, ROWS));
}

fn x_start(row: u32) -> u32 {
    return params.x.x + row * params.x.y;
}

fn x_block(row: u32) -> u32 {
    return row * params.x_blocks;
}

fn weights_row(output: u32) -> u32 {
    return min(output, params.n_outputs - 1u) * params.row_words;
}
