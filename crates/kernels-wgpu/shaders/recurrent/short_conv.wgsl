// A causal depthwise convolution: one channel of one row per invocation. Inputs before the rows of the batch
// are in the state: the last `n_taps - 1` input rows, oldest first. Comes after shaders/activations.wgsl.

// An index of Activation::ALL; no activation if it is larger.
override act: u32;

struct Params {
    width: u32,
    n_taps: u32,
    rows_at: u32,
    seq_of_row_at: u32,
    seqs_at: u32,
    writes_at: u32,
    taps: u32, // start in vectors
    bias: u32, // start in vectors, or NONE
    x: vec2<u32>, // start, stride
    out: vec2<u32>,
}

const NONE = 0xffffffffu;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
@group(0) @binding(3) var<storage, read_write> values: array<f32>;
@group(0) @binding(4) var<storage, read_write> states: array<f32>;

// Channel `col` of the input `back` rows before a row. The row is `done` rows after its sequence's first row
// in the batch, and the sequence continues from state `before`. Zero before the sequence's start.
fn input(row: u32, done: u32, back: u32, before: u32, col: u32) -> f32 {
    if back <= done {
        return values[params.x.x + (row - back) * params.x.y + col];
    }
    if before == NONE {
        return 0.0;
    }
    let kept = params.n_taps - 1u;
    return states[(before * kept + kept + done - back) * params.width + col];
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let col = id.x;
    if col >= params.width || id.y >= batch[params.rows_at + 1u] {
        return;
    }
    let row = batch[params.rows_at] + id.y;
    let seq = params.seqs_at + 3u * batch[params.seq_of_row_at + row];
    let done = row - batch[seq];
    let before = batch[seq + 2u];

    var sum = 0.0;
    if params.bias != NONE {
        sum = vectors[params.bias + col];
    }
    for (var i = 0u; i < params.n_taps; i++) {
        let tap = vectors[params.taps + i * params.width + col];
        sum = fma(tap, input(row, done, params.n_taps - 1u - i, before, col), sum);
    }
    if act < 16u {
        sum = activation(act, sum);
    }
    values[params.out.x + row * params.out.y + col] = sum;

    let after = batch[params.writes_at + row];
    if after != NONE {
        let kept = params.n_taps - 1u;
        for (var i = 0u; i < kept; i++) {
            // The state begins with the oldest row that the next row needs.
            states[(after * kept + i) * params.width + col] =
                input(row, done, kept - 1u - i, before, col);
        }
    }
}
