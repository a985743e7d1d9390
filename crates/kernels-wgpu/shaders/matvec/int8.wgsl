// The product with quantized activations, by integer sums.

@group(0) @binding(5) var<storage, read> quants: array<vec4<u32>>; // 16 to a vector
@group(0) @binding(6) var<storage, read> blocks: array<vec2<u32>>; // scale, sums

override LANES: u32 = 16u;
override TEAMS: u32 = WORKGROUP / LANES;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let rows = span(group);
    let first = rows.x;
    let n = rows.y;
    let chunk = group.x;
    let output = first_output(chunk, lane);
    var sums: array<vec4<f32>, OUTPUTS>;
    if output < params.n_outputs && n > 0u {
        for (var g = lane % LANES; g < params.groups; g += LANES) {
            let at = x_block(first) + g;
            var x: array<Block, ROWS>;
            x[0] = block(at);
            if n > 1u {
                x[1] = block(at + params.x_blocks);
            }
            if n > 2u {
                x[2] = block(at + 2u * params.x_blocks);
            }
            if n > 3u {
                x[3] = block(at + 3u * params.x_blocks);
            }
            for (var o = 0u; o < OUTPUTS; o++) {
                let w = levels(weights_row(output + o), g);
                sums[o].x = add_product(w, x[0], sums[o].x);
                if n > 1u {
                    sums[o].y = add_product(w, x[1], sums[o].y);
                }
                if n > 2u {
                    sums[o].z = add_product(w, x[2], sums[o].z);
                }
                if n > 3u {
                    sums[o].w = add_product(w, x[3], sums[o].w);
                }
            }
        }
    }
    finish(sums, lane, chunk, first, n);
}
