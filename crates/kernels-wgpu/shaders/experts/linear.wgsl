// Constants and buffers of the products with experts. A piece of the matrices has whole experts.

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
    max_tiles: u32, // of the pairs
    n_chosen: u32, // experts of a row
    _pad: u32,
    x: vec2<u32>, // start, stride
    routes: vec2<u32>,
    out: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read> vectors: array<f32>; // none of them is read
