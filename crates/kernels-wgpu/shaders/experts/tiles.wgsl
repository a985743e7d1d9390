// A tile of pairs of one expert. A workgroup does nothing if the expert is in another piece of the
// matrices, or if there are fewer tiles.

@group(0) @binding(5) var<storage, read> pairs: array<u32>;

var<private> n_rows: u32; // pairs of the tile
var<private> n_groups: u32; // of columns that are multiplied
var<private> first_weight: u32;
var<private> first_pair: u32; // where the pairs of the tile begin

fn begin(tile: vec3<u32>) {
    let expert = pairs[tile_at(tile.y)];
    let at = expert - params.first_expert; // beyond the piece where it is below
    let has = tile.y < pairs[0] && at < params.n_experts;
    n_rows = select(0u, pairs[tile_at(tile.y) + 1u], has);
    n_groups = select(0u, params.groups, has);
    first_weight = select(0u, at, has) * params.n_outputs * params.row_words;
    first_pair = pairs_at(params.max_tiles) + tile.y * TILE_ROWS;
}

// The row of a pair, and the expert's index among those of the row.
fn of_pair(row: u32) -> vec2<u32> {
    let pair = pairs[first_pair + row];
    return vec2(batch[params.rows_at] + pair / params.n_chosen, pair % params.n_chosen);
}

fn x_start(row: u32) -> u32 {
    let pair = of_pair(row);
    return params.x.x + pair.x * params.x.y + pair.y * params.n_own;
}

fn store_tile(row: u32, col: u32, sum: f32) {
    let pair = of_pair(row);
    values[params.out.x + pair.x * params.out.y + pair.y * params.n_outputs + col] = sum;
}
