// out = x W^T (+ bias) (+ residual) for few rows of x. A workgroup serves TEAMS rows
// of the matrix, each with a team of LANES invocations that stride over its groups
// of 32 columns, and up to four rows of x, which share what is read of the matrix.
// A row's arithmetic is the same whatever is beside it.

struct Params {
    groups: u32,      // of 32 columns
    row_words: u32,
    n_out: u32,       // rows of this piece of the matrix
    grid_x: u32,      // workgroups in the first dimension
    rows_at: u32,
    bias: u32,        // 0xffffffff for none
    x_blocks: u32,    // quantized blocks from one row of x to the next
    add: u32,         // 1 to add the residual
    x: vec4<u32>,     // start, stride, width
    out: vec2<u32>,   // start, stride
    residual: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(4) var<storage, read> vectors: array<f32>;

const WORKGROUP: u32 = 64u;
const ROWS: u32 = 4u; // of x

// A sum per invocation and row of x. Teams of a row lie one word more than LANES
// apart, so that invocations that add them up read from different banks.
var<workgroup> partial: array<f32, ROWS * (WORKGROUP + WORKGROUP / 16u)>;

// Adds up the teams' sums and writes the results: of the rows [first, first + n) of
// x, with the matrix rows [TEAMS * chunk, TEAMS * chunk + TEAMS).
fn finish(sums: vec4<f32>, lane: u32, chunk: u32, first: u32, n: u32) {
    let own = (lane / LANES) * (LANES + 1u) + lane % LANES;
    for (var r = 0u; r < ROWS; r++) {
        partial[r * TEAMS * (LANES + 1u) + own] = sums[r];
    }
    workgroupBarrier();
    let col = TEAMS * chunk + lane % TEAMS;
    let r = lane / TEAMS;
    if r < n && col < params.n_out {
        let base = lane * (LANES + 1u);
        var sum = partial[base];
        for (var i = 1u; i < LANES; i++) {
            sum += partial[base + i];
        }
        if params.bias != 0xffffffffu {
            sum += vectors[params.bias + col];
        }
        let row = first + r;
        if params.add == 1u {
            sum += values[params.residual.x + row * params.residual.y + col];
        }
        values[params.out.x + row * params.out.y + col] = sum;
    }
}
