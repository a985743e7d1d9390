// Sums and maxima over a workgroup, by a tree in shared memory.
// WORKGROUP is a power of two, defined before this part.

struct Invocation {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

var<workgroup> reduce_partial: array<f32, WORKGROUP>;

fn workgroup_sum(x: f32, inv: Invocation) -> f32 {
    reduce_partial[inv.lane] = x;
    for (var half = WORKGROUP / 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if inv.lane < half {
            reduce_partial[inv.lane] += reduce_partial[inv.lane + half];
        }
    }
    workgroupBarrier();
    let sum = reduce_partial[0];
    // All invocations must have read the result before the next reduction writes.
    workgroupBarrier();
    return sum;
}

fn workgroup_max(x: f32, inv: Invocation) -> f32 {
    reduce_partial[inv.lane] = x;
    for (var half = WORKGROUP / 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if inv.lane < half {
            reduce_partial[inv.lane] = max(reduce_partial[inv.lane], reduce_partial[inv.lane + half]);
        }
    }
    workgroupBarrier();
    let largest = reduce_partial[0];
    workgroupBarrier();
    return largest;
}
