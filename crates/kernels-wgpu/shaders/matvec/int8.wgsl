
// The product with quantized activations, by sums of integers.

@group(0) @binding(5) var<storage, read> quants: array<vec4<u32>>; // 16 to a vector
@group(0) @binding(6) var<storage, read> blocks: array<vec2<u32>>; // scale, sums

override LANES: u32 = 16u;
override TEAMS: u32 = WORKGROUP / LANES;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let n_rows = batch[params.rows_at + 1u];
    let first = batch[params.rows_at] + ROWS * group.y;
    let n = min(max(n_rows, ROWS * group.y) - ROWS * group.y, ROWS);
    let chunk = group.x + group.z * params.grid_x;
    let col = TEAMS * chunk + lane / LANES;
    var sums = vec4<f32>();
    if col < params.n_out && n > 0u {
        let row = col * params.row_words;
        let x = first * params.x_blocks;
        for (var g = lane % LANES; g < params.groups; g += LANES) {
            let w = levels(row, g);
            let at = x + g;
            sums.x = add_product(w, at, sums.x);
            if n > 1u {
                sums.y = add_product(w, at + params.x_blocks, sums.y);
            }
            if n > 2u {
                sums.z = add_product(w, at + 2u * params.x_blocks, sums.z);
            }
            if n > 3u {
                sums.w = add_product(w, at + 3u * params.x_blocks, sums.w);
            }
        }
    }
    finish(sums, lane, chunk, first, n);
}
