// out = x W^T for many rows. A workgroup computes 64 outputs of TILE_ROWS rows. Of
// each group of 32 columns it decodes the weights and loads x into its memory, and
// then every invocation adds up its 4 outputs of ROWS_PER_LANE rows. An element is
// one sum over the columns in rising order, wherever it lies in a tile.
//
// In both tiles vectors of four columns of neighbouring outputs, or rows, are
// neighbours, so that neighbouring invocations read from different banks.

const TILE_OUTPUTS: u32 = 64u;
const LANES_X: u32 = 16u; // invocations along the outputs, each with every 16th
const TILE_ROWS: u32 = LANES_Y * ROWS_PER_LANE;
const WORKGROUP: u32 = LANES_X * LANES_Y;
const N_LOADERS: u32 = WORKGROUP - FIRST_LOADER;

var<workgroup> w_tile: array<TileVec, 512>; // [8, TILE_OUTPUTS]
var<workgroup> x_tile: array<vec4<f32>, 8u * TILE_ROWS>; // [8, TILE_ROWS]

// Rows change places within each vector of columns, so that the invocations which
// load the vectors of one row write to different banks.
fn x_place(k: u32, row: u32) -> u32 {
    return k * TILE_ROWS + (row ^ k);
}

// Beyond the columns lies what belongs to something else.
fn x_at(start: u32, col: u32) -> f32 {
    if col < params.n_cols {
        return values[start + col];
    }
    return 0.0;
}

// Four columns more for four outputs of a row; w[c] is column c of the outputs.
fn add_four(sum: vec4<f32>, x: vec4<f32>, w: mat4x4<f32>) -> vec4<f32> {
    let first = fma(vec4(x.y), w[1], fma(vec4(x.x), w[0], sum));
    return fma(vec4(x.w), w[3], fma(vec4(x.z), w[2], first));
}

fn store_four(first: u32, n_rows: u32, row: u32, col: u32, sum: vec4<f32>) {
    if row >= n_rows {
        return;
    }
    for (var i = 0u; i < 4u; i++) {
        if col + LANES_X * i < params.n_outputs {
            store(first + row, col + LANES_X * i, sum[i]);
        }
    }
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) tile: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = batch[params.rows_at];
    let n_rows = batch[params.rows_at + 1u];
    let first_col = TILE_OUTPUTS * tile.x;
    let first_row = TILE_ROWS * tile.y;
    let lane_x = lane % LANES_X;
    let lane_y = lane / LANES_X;

    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    var s4 = vec4<f32>();
    var s5 = vec4<f32>();
    var s6 = vec4<f32>();
    var s7 = vec4<f32>();
    for (var group = 0u; group < params.groups; group++) {
        if lane < TILE_OUTPUTS && first_col + lane < params.n_outputs {
            var w = decode((first_col + lane) * params.row_words, group);
            for (var k = 0u; k < 8u; k++) {
                w_tile[k * TILE_OUTPUTS + lane] = TileVec(w[k]);
            }
        }
        if lane >= FIRST_LOADER {
            for (var i = lane - FIRST_LOADER; i < 8u * TILE_ROWS; i += N_LOADERS) {
                let k = i % 8u;
                let row = first_row + i / 8u;
                var x = vec4<f32>();
                if row < n_rows {
                    let start = params.x.x + (first + row) * params.x.y;
                    let col = 32u * group + 4u * k;
                    x = vec4(x_at(start, col), x_at(start, col + 1u),
                        x_at(start, col + 2u), x_at(start, col + 3u));
                }
                x_tile[x_place(k, i / 8u)] = x;
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < 8u; k++) {
            let at = k * TILE_OUTPUTS + lane_x;
            let w = transpose(mat4x4<f32>(
                vec4<f32>(w_tile[at]), vec4<f32>(w_tile[at + LANES_X]),
                vec4<f32>(w_tile[at + 2u * LANES_X]), vec4<f32>(w_tile[at + 3u * LANES_X])));
            s0 = add_four(s0, x_tile[x_place(k, lane_y)], w);
            s1 = add_four(s1, x_tile[x_place(k, lane_y + LANES_Y)], w);
            s2 = add_four(s2, x_tile[x_place(k, lane_y + 2u * LANES_Y)], w);
            s3 = add_four(s3, x_tile[x_place(k, lane_y + 3u * LANES_Y)], w);
            if ROWS_PER_LANE == 8u {
                s4 = add_four(s4, x_tile[x_place(k, lane_y + 4u * LANES_Y)], w);
                s5 = add_four(s5, x_tile[x_place(k, lane_y + 5u * LANES_Y)], w);
                s6 = add_four(s6, x_tile[x_place(k, lane_y + 6u * LANES_Y)], w);
                s7 = add_four(s7, x_tile[x_place(k, lane_y + 7u * LANES_Y)], w);
            }
        }
        workgroupBarrier();
    }

    let col = first_col + lane_x;
    let row = first_row + lane_y;
    store_four(first, n_rows, row, col, s0);
    store_four(first, n_rows, row + LANES_Y, col, s1);
    store_four(first, n_rows, row + 2u * LANES_Y, col, s2);
    store_four(first, n_rows, row + 3u * LANES_Y, col, s3);
    if ROWS_PER_LANE == 8u {
        store_four(first, n_rows, row + 4u * LANES_Y, col, s4);
        store_four(first, n_rows, row + 5u * LANES_Y, col, s5);
        store_four(first, n_rows, row + 6u * LANES_Y, col, s6);
        store_four(first, n_rows, row + 7u * LANES_Y, col, s7);
    }
}
