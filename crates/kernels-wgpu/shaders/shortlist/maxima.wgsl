// The largest key of each block of 64 logits, four blocks per workgroup.

var<workgroup> partial: array<u32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let want = wanted(group.y);
    let id = group.x * 256u + lane;
    partial[lane] = key(want, id);
    for (var half = BLOCK / 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane % BLOCK < half {
            partial[lane] = max(partial[lane], partial[lane + half]);
        }
    }
    workgroupBarrier();
    let block = id / BLOCK;
    if lane % BLOCK == 0u && block < params.n_blocks {
        maxima[group.y * params.n_blocks + block] = partial[lane];
    }
}
