// out = x W^T (+ bias) (+ residual) for few rows of x. A workgroup has TEAMS teams of LANES invocations. A
// team computes OUTPUTS rows of the matrix for up to four rows of x, which share the reads of the matrix; its
// invocations stride over the groups of 32 columns. The arithmetic of a result does not depend on the other
// rows.

const WORKGROUP: u32 = 64u;
const ROWS: u32 = 4u; // of x
const OUTPUTS: u32 = 2u; // of a team

// A sum per invocation and result. The sums of a result take one word more than LANES, so that the
// invocations that add them read from different banks.
var<workgroup> partial: array<f32, ROWS * OUTPUTS * (WORKGROUP + WORKGROUP / 16u)>;

// The first row of the matrix for a team; rows past the last one are clamped.
fn first_output(chunk: u32, lane: u32) -> u32 {
    return (TEAMS * chunk + lane / LANES) * OUTPUTS;
}

// Adds the sums of a team per output and row of x, and writes the results of the rows [first, first + n) of x.
fn finish(sums: array<vec4<f32>, OUTPUTS>, lane: u32, chunk: u32, first: u32, n: u32) {
    var all = sums;
    let own = lane / LANES * OUTPUTS;
    for (var o = 0u; o < OUTPUTS; o++) {
        for (var r = 0u; r < ROWS; r++) {
            let result = r * TEAMS * OUTPUTS + own + o;
            partial[result * (LANES + 1u) + lane % LANES] = all[o][r];
        }
    }
    workgroupBarrier();
    let output = TEAMS * OUTPUTS * chunk + lane % (TEAMS * OUTPUTS);
    let r = lane / (TEAMS * OUTPUTS);
    if r < n && output < params.n_outputs {
        let base = lane * (LANES + 1u);
        var sum = partial[base];
        for (var i = 1u; i < LANES; i++) {
            sum += partial[base + i];
        }
        store(first + r, output, sum);
    }
}
