// Attention of decode rows, second kernel: a workgroup merges the splits of one row and query head, in
// ascending order, and adds the sink.
//
// Comes after common.wgsl.

@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read> scratch: array<f32>;
@group(0) @binding(4) var<storage, read> vectors: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = group.x;
    let row = batch[params.waves_at + 1u] + group.y;
    if row >= batch[params.rows_at] + batch[params.rows_at + 1u] {
        return;
    }
    let position = batch[params.positions_at + row];
    let n = position / SPLIT - first_visible(position) / SPLIT + 1u;
    // Indices of the head's maximum, sum and values in the row's first split, and words from one split to the
    // next.
    let item = batch[params.first_item_at + row] - batch[params.waves_at];
    let at = (item * params.n_heads + head) * (params.head_dim + 2u);
    let stride = params.n_heads * (params.head_dim + 2u);

    var sink = LOWEST;
    if params.has_sinks != 0u {
        sink = vectors[params.sinks + head];
    }
    var largest = sink;
    for (var i = 0u; i < n; i++) {
        largest = max(largest, scratch[at + i * stride]);
    }
    var sum = 0.0;
    for (var i = 0u; i < n; i++) {
        let split = at + i * stride;
        sum = fma(scratch[split + 1u], decay(scratch[split] - largest), sum);
    }
    if params.has_sinks != 0u {
        sum += decay(sink - largest);
    }
    for (var col = lane; col < params.head_dim; col += 64u) {
        var x = 0.0;
        for (var i = 0u; i < n; i++) {
            let split = at + i * stride;
            x = fma(scratch[split + 2u + col], decay(scratch[split] - largest), x);
        }
        values[params.out.x + row * params.out.y + head * params.head_dim + col] = x / sum;
    }
}
