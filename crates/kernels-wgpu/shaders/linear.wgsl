// Shared by the products of rows with a piece of a matrix: constants, buffers, and the epilogue of an
// element. Other parts declare the weights, which are binding 4, and how they are read.

const HAS_BIAS: u32 = 1u;
const HAS_RESIDUAL: u32 = 2u;

struct Params {
    groups: u32,    // of 32 columns, in a row of the matrix
    row_words: u32, // of a row of the matrix
    n_outputs: u32, // rows of the piece
    n_cols: u32,
    rows_at: u32,
    flags: u32,
    bias: u32, // start in vectors
    x_blocks: u32, // quantized blocks from one row of x to the next
    x: vec2<u32>, // start, stride
    residual: vec2<u32>,
    out: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read> vectors: array<f32>;

// Writes output `col` of a row, whose product is `sum`. The residual may be the output's place.
fn store(row: u32, col: u32, sum: f32) {
    var result = sum;
    if (params.flags & HAS_BIAS) != 0u {
        result += vectors[params.bias + col];
    }
    if (params.flags & HAS_RESIDUAL) != 0u {
        result += values[params.residual.x + row * params.residual.y + col];
    }
    values[params.out.x + row * params.out.y + col] = result;
}
