
// The product with f32 activations. Those of a tile of columns are first brought to
// the memory of the workgroup, where every team reads them.

@group(0) @binding(3) var<storage, read> weights: array<u32>;

const LANES: u32 = 16u;
const TEAMS: u32 = WORKGROUP / LANES;

// LANES groups of columns of each row. A group takes 9 vectors, of which the last
// is unused: so neighbouring lanes read from different banks.
const TILE: u32 = 9u * LANES;
var<workgroup> tile: array<vec4<f32>, ROWS * TILE>;

fn x_at(start: u32, col: u32) -> f32 {
    if col < params.x.z {
        return values[start + col];
    }
    return 0.0;
}

fn total(v: vec4<f32>) -> f32 {
    return (v.x + v.z) + (v.y + v.w);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let n_rows = batch[params.rows_at + 1u];
    let first = batch[params.rows_at] + ROWS * group.y;
    let n = min(max(n_rows, ROWS * group.y) - ROWS * group.y, ROWS);
    let chunk = group.x + group.z * params.grid_x;
    let col = TEAMS * chunk + lane / LANES;
    let row = col * params.row_words;
    let own = 9u * (lane % LANES);
    var a = vec4<f32>();
    var b = vec4<f32>();
    var c = vec4<f32>();
    var d = vec4<f32>();
    for (var g0 = 0u; g0 < params.groups; g0 += LANES) {
        for (var i = lane; i < n * LANES * 8u; i += WORKGROUP) {
            let r = i / (LANES * 8u);
            let v = i % (LANES * 8u);
            let start = params.x.x + (first + r) * params.x.y;
            let k = 32u * g0 + 4u * v;
            tile[r * TILE + (v / 8u) * 9u + v % 8u] =
                vec4(x_at(start, k), x_at(start, k + 1u), x_at(start, k + 2u), x_at(start, k + 3u));
        }
        workgroupBarrier();
        let g = g0 + lane % LANES;
        if col < params.n_out && g < params.groups && n > 0u {
            let w = decode(row, g);
            for (var i = 0u; i < 8u; i++) {
                let part = w[i];
                a = fma(part, tile[own + i], a);
                if n > 1u {
                    b = fma(part, tile[own + TILE + i], b);
                }
                if n > 2u {
                    c = fma(part, tile[own + 2u * TILE + i], c);
                }
                if n > 3u {
                    d = fma(part, tile[own + 3u * TILE + i], d);
                }
            }
        }
        workgroupBarrier();
    }
    finish(vec4(total(a), total(b), total(c), total(d)), lane, chunk, first, n);
}
