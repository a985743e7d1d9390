// Copies the logits of the listed tokens to the list, and replaces them by minus infinity in the row, so that
// they are not among the best. No token is listed twice.

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let want = wanted(group.y);
    let i = group.x * 256u + lane;
    if i < want.n_listed {
        let at = params.x.x + want.row * params.x.y + wants[want.listed + i];
        lists[want.out + 1u + i] = values[at];
        values[at] = MINUS_INFINITY;
    }
}
