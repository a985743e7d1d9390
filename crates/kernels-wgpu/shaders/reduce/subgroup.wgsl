// Sums and maxima over a workgroup: first within subgroups of any size, then over the subgroups in order.

struct Invocation {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(num_subgroups) num_subgroups: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
}

// A subgroup has at least four invocations.
var<workgroup> reduce_partial: array<f32, WORKGROUP / 4u>;

fn workgroup_sum(x: f32, inv: Invocation) -> f32 {
    let own = subgroupAdd(x);
    if inv.subgroup_lane == 0u {
        reduce_partial[inv.subgroup_id] = own;
    }
    workgroupBarrier();
    var sum = reduce_partial[0];
    for (var i = 1u; i < inv.num_subgroups; i++) {
        sum += reduce_partial[i];
    }
    // All invocations must have read the result before the next reduction writes.
    workgroupBarrier();
    return sum;
}

fn workgroup_max(x: f32, inv: Invocation) -> f32 {
    let own = subgroupMax(x);
    if inv.subgroup_lane == 0u {
        reduce_partial[inv.subgroup_id] = own;
    }
    workgroupBarrier();
    var largest = reduce_partial[0];
    for (var i = 1u; i < inv.num_subgroups; i++) {
        largest = max(largest, reduce_partial[i]);
    }
    workgroupBarrier();
    return largest;
}
