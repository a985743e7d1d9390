// A tile of consecutive rows.

var<private> n_rows: u32; // of the tile
var<private> n_groups: u32; // of columns that are multiplied
var<private> first_weight: u32;
var<private> first_row: u32;

fn begin(tile: vec3<u32>) {
    let before = TILE_ROWS * tile.y;
    let all = batch[params.rows_at + 1u];
    n_rows = all - min(before, all);
    n_groups = params.groups;
    first_weight = 0u;
    first_row = batch[params.rows_at] + before;
}

fn x_start(row: u32) -> u32 {
    return params.x.x + (first_row + row) * params.x.y;
}

fn store_tile(row: u32, col: u32, sum: f32) {
    store(first_row + row, col, sum);
}
