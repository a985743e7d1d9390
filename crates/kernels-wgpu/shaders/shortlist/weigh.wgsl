// Sums the shares of blocks of 64 logits, 64 blocks per workgroup. Each workgroup finds the largest logit of
// the row itself.

var<workgroup> largest: array<u32, 256>;
var<workgroup> partial: array<vec2<u32>, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let want = wanted(group.y);
    let first = group.y * params.n_blocks;
    var most = 0u;
    if want.factor != 0u {
        for (var b = lane; b < params.n_blocks; b += 256u) {
            most = max(most, maxima[first + b]);
        }
    }
    largest[lane] = most;
    for (var half = 128u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            largest[lane] = max(largest[lane], largest[lane + half]);
        }
    }
    workgroupBarrier();
    let by = shares_beside(bits_of(largest[0]), want);
    for (var part = 0u; part < 16u; part++) {
        let id = (group.x * 16u + part) * 256u + lane;
        var own = vec2(0u);
        if want.factor != 0u && id < params.n_logits {
            own = share_of_key(by, key(want, id));
        }
        partial[lane] = own;
        for (var half = BLOCK / 2u; half > 0u; half >>= 1u) {
            workgroupBarrier();
            if lane % BLOCK < half {
                partial[lane] = plus(partial[lane], partial[lane + half]);
            }
        }
        let block = id / BLOCK;
        if lane % BLOCK == 0u && block < params.n_blocks {
            sums[first + block] = partial[lane];
        }
        workgroupBarrier();
    }
}
