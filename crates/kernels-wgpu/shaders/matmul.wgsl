// out = x W^T for many rows. A workgroup computes 64 outputs of TILE_ROWS rows, which `begin` finds. For
// each group of 32 columns, every invocation decodes the weights of one output and loads some of x to
// workgroup memory, and then accumulates its PER_LANE outputs of PER_LANE rows. An element is one sum over
// the columns in ascending order, wherever it is in a tile.
//
// In both tiles, the four-column vectors of adjacent outputs, or rows, are adjacent, so that adjacent
// invocations read from different banks.

const WORKGROUP: u32 = 64u; // LANES_X * LANES_Y, and the outputs of a tile
const TILE_ROWS: u32 = LANES_Y * PER_LANE;

var<workgroup> w_tile: array<TileVec, 512>; // [8, 64]
var<workgroup> x_tile: array<vec4<f32>, 8u * TILE_ROWS>; // [8, TILE_ROWS]

// Rows are permuted within each vector of columns, so that the invocations that load the vectors of one row
// write to different banks.
fn x_place(k: u32, row: u32) -> u32 {
    return k * TILE_ROWS + (row ^ k);
}

// Elements past the columns belong to other data.
fn x_at(start: u32, col: u32) -> f32 {
    if col < params.n_cols {
        return values[start + col];
    }
    return 0.0;
}

// Four columns of four outputs, one vector per column.
fn load_w(k: u32, output: u32) -> mat4x4<f32> {
    let at = k * WORKGROUP + output;
    return transpose(mat4x4<f32>(
        vec4<f32>(w_tile[at]),
        vec4<f32>(w_tile[at + LANES_X]),
        vec4<f32>(w_tile[at + 2u * LANES_X]),
        vec4<f32>(w_tile[at + 3u * LANES_X])));
}

// Four columns of four rows, one vector per row.
fn load_x(k: u32, row: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        x_tile[x_place(k, row)],
        x_tile[x_place(k, row + LANES_Y)],
        x_tile[x_place(k, row + 2u * LANES_Y)],
        x_tile[x_place(k, row + 3u * LANES_Y)]);
}

fn add_row(sum: vec4<f32>, x: vec4<f32>, w: mat4x4<f32>) -> vec4<f32> {
    let first = fma(vec4(x.y), w[1], fma(vec4(x.x), w[0], sum));
    return fma(vec4(x.w), w[3], fma(vec4(x.z), w[2], first));
}

// Accumulates four columns for four outputs of four rows, one vector per row.
fn add_block(sums: mat4x4<f32>, x: mat4x4<f32>, w: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        add_row(sums[0], x[0], w), add_row(sums[1], x[1], w),
        add_row(sums[2], x[2], w), add_row(sums[3], x[3], w));
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) tile: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    begin(tile);
    let first_col = WORKGROUP * tile.x;
    let lane_x = lane % LANES_X;
    let lane_y = lane / LANES_X;

    // In halves of the outputs and of the rows; only the first ones if there are four.
    var s00 = mat4x4<f32>();
    var s01 = mat4x4<f32>();
    var s10 = mat4x4<f32>();
    var s11 = mat4x4<f32>();
    for (var group = 0u; group < n_groups; group++) {
        if first_col + lane < params.n_outputs {
            var w = decode(first_weight + (first_col + lane) * params.row_words, group);
            for (var k = 0u; k < 8u; k++) {
                w_tile[k * WORKGROUP + lane] = tile_vec(w[k]);
            }
        }
        for (var i = lane; i < 8u * TILE_ROWS; i += WORKGROUP) {
            let k = i % 8u;
            let row = i / 8u;
            var x = vec4<f32>();
            if row < n_rows {
                let start = x_start(row);
                let col = 32u * group + 4u * k;
                x = vec4(x_at(start, col), x_at(start, col + 1u),
                    x_at(start, col + 2u), x_at(start, col + 3u));
            }
            x_tile[x_place(k, row)] = x;
        }
        workgroupBarrier();
        for (var k = 0u; k < 8u; k++) {
            let w0 = load_w(k, lane_x);
            // In a tile of few rows an invocation has one row; the others are empty.
            if n_rows <= LANES_Y {
                let x = x_tile[x_place(k, lane_y)];
                s00[0] = add_row(s00[0], x, w0);
                if PER_LANE == 8u {
                    s10[0] = add_row(s10[0], x, load_w(k, lane_x + 4u * LANES_X));
                }
                continue;
            }
            let x0 = load_x(k, lane_y);
            s00 = add_block(s00, x0, w0);
            if PER_LANE == 8u {
                let w1 = load_w(k, lane_x + 4u * LANES_X);
                let x1 = load_x(k, lane_y + 4u * LANES_Y);
                s01 = add_block(s01, x1, w0);
                s10 = add_block(s10, x0, w1);
                s11 = add_block(s11, x1, w1);
            }
        }
        workgroupBarrier();
    }

    // A loop, because 64 copies of its body would take long to compile.
    var sums = array<mat4x4<f32>, 4>(s00, s01, s10, s11);
    for (var i = 0u; i < PER_LANE * PER_LANE; i++) {
        let j = i / 4u % PER_LANE; // of the rows
        let half = i / (4u * PER_LANE); // of the outputs
        let col = first_col + lane_x + LANES_X * (4u * half + i % 4u);
        let row = lane_y + LANES_Y * j;
        if row < n_rows && col < params.n_outputs {
            store_tile(row, col, sums[2u * half + j / 4u][j % 4u][i % 4u]);
        }
    }
}
