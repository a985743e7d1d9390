// Normalizes each run of `group` columns: one run of one row per workgroup. Columns are distributed to the
// invocations round-robin, so the order of a run's sums depends on its length alone. Each element is read
// and written by the same invocation, so `out` may be `x`.

struct Params {
    group: u32,
    layer: u32, // 1: LayerNorm, 0: RMSNorm
    eps: f32,
    rows_at: u32,
    x: vec2<u32>, // start, stride
    out: vec2<u32>,
    weight: u32, // start in vectors, or NONE
    bias: u32,
    step: u32, // from the vectors of a run to those of the next
}

const NONE = 0xffffffffu;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
@group(0) @binding(3) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(inv: Invocation) {
    if inv.group.y >= batch[params.rows_at + 1u] {
        return;
    }
    let row = batch[params.rows_at] + inv.group.y;
    let first = inv.group.x * params.group;
    let x = params.x.x + row * params.x.y + first;
    let out = params.out.x + row * params.out.y + first;
    let n = f32(params.group);

    var mean = 0.0;
    if params.layer == 1u {
        var sum = 0.0;
        for (var c = inv.lane; c < params.group; c += WORKGROUP) {
            sum += values[x + c];
        }
        mean = workgroup_sum(sum, inv) / n;
    }
    var squares = 0.0;
    for (var c = inv.lane; c < params.group; c += WORKGROUP) {
        let apart = values[x + c] - mean;
        squares = fma(apart, apart, squares);
    }
    let vector = inv.group.x * params.step;
    let scale = inverseSqrt(workgroup_sum(squares, inv) / n + params.eps);

    for (var c = inv.lane; c < params.group; c += WORKGROUP) {
        var y = (values[x + c] - mean) * scale;
        if params.weight != NONE {
            y *= vectors[params.weight + vector + c];
        }
        if params.bias != NONE {
            y += vectors[params.bias + vector + c];
        }
        values[out + c] = y;
    }
}
