// The product with f32 activations, which are loaded to workgroup memory a tile of columns at a time and
// shared by all teams.

const LANES: u32 = 16u;
const TEAMS: u32 = WORKGROUP / LANES;

// LANES groups of columns of each row. A group takes 9 vectors, with the last one unused, so that adjacent
// lanes read from different banks.
const TILE: u32 = 9u * LANES;
var<workgroup> tile: array<vec4<f32>, ROWS * TILE>;

fn x_at(start: u32, col: u32) -> f32 {
    if col < params.n_cols {
        return values[start + col];
    }
    return 0.0;
}

// The sums of the components.
fn totals(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> vec4<f32> {
    let m = transpose(mat4x4(a, b, c, d));
    return (m[0] + m[2]) + (m[1] + m[3]);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let rows = span(group);
    let first = rows.x;
    let n = rows.y;
    let chunk = group.x;
    let output = first_output(chunk, lane);
    let own = 9u * (lane % LANES);
    // Per row of x (a to d) and output (0, 1).
    var a0 = vec4<f32>();
    var a1 = vec4<f32>();
    var b0 = vec4<f32>();
    var b1 = vec4<f32>();
    var c0 = vec4<f32>();
    var c1 = vec4<f32>();
    var d0 = vec4<f32>();
    var d1 = vec4<f32>();
    for (var g0 = 0u; g0 < params.groups; g0 += LANES) {
        for (var i = lane; i < n * LANES * 8u; i += WORKGROUP) {
            let r = i / (LANES * 8u);
            let v = i % (LANES * 8u);
            let start = x_start(first + r);
            let k = 32u * g0 + 4u * v;
            tile[r * TILE + (v / 8u) * 9u + v % 8u] =
                vec4(x_at(start, k), x_at(start, k + 1u), x_at(start, k + 2u), x_at(start, k + 3u));
        }
        workgroupBarrier();
        let g = g0 + lane % LANES;
        if output < params.n_outputs && g < params.groups && n > 0u {
            let w0 = decode(weights_row(output), g);
            let w1 = decode(weights_row(output + 1u), g);
            for (var i = 0u; i < 8u; i++) {
                let x = tile[own + i];
                a0 = fma(w0[i], x, a0);
                a1 = fma(w1[i], x, a1);
                if n > 1u {
                    let x = tile[own + TILE + i];
                    b0 = fma(w0[i], x, b0);
                    b1 = fma(w1[i], x, b1);
                }
                if n > 2u {
                    let x = tile[own + 2u * TILE + i];
                    c0 = fma(w0[i], x, c0);
                    c1 = fma(w1[i], x, c1);
                }
                if n > 3u {
                    let x = tile[own + 3u * TILE + i];
                    d0 = fma(w0[i], x, d0);
                    d1 = fma(w1[i], x, d1);
                }
            }
        }
        workgroupBarrier();
    }
    let sums = array(totals(a0, b0, c0, d0), totals(a1, b1, c1, d1));
    finish(sums, lane, chunk, first, n);
}
