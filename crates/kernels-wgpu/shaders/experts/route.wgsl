// Selects the experts of each row from its router's scores: writes their indices, ascending, then their
// factors. One workgroup per row. Sums have a fixed order, and among equal keys the first wins.

const SOFTMAX: u32 = 0u;
const SIGMOID: u32 = 1u;
const SOFTMAX_OF_CHOSEN: u32 = 2u;
const SPARSE_MIXER: u32 = 3u;

const HAS_BIAS: u32 = 1u;
const NORMALIZE: u32 = 2u;

struct Params {
    n_experts: u32,
    n_chosen: u32,
    rows_at: u32,
    scoring: u32,
    flags: u32,
    bias: u32, // start in vectors
    scale: f32,
    n_groups: u32, // of neighbouring experts, 0 where all are one
    x: vec2<u32>, // start, stride
    out: vec2<u32>,
    n_open: u32, // groups that are chosen from
    n_best: u32, // keys that are added up to what a group is worth, 1 or 2
    margin: f32, // of SPARSE_MIXER
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
@group(0) @binding(3) var<storage, read> vectors: array<f32>;

const WORKGROUP: u32 = 64u;
const CLOSED: u32 = 2u;
const NONE: u32 = 0xffffffffu;

var<workgroup> factors: array<f32, 1024>;
var<workgroup> taken: array<u32, 1024>;
var<workgroup> totals: array<f32, 1024>; // of groups
var<workgroup> best_key: array<f32, WORKGROUP>;
var<workgroup> best_expert: array<u32, WORKGROUP>;
var<workgroup> partial: array<f32, WORKGROUP>;
var<workgroup> total: f32;

// For exponents far below zero the result is zero on every device.
fn exponential(x: f32) -> f32 {
    return exp(max(x, -87.0));
}

fn key(expert: u32) -> f32 {
    if (params.flags & HAS_BIAS) != 0u {
        return factors[expert] + vectors[params.bias + expert];
    }
    return factors[expert];
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = batch[params.rows_at] + group.y;
    let start = params.x.x + row * params.x.y;
    let out = params.out.x + row * params.out.y;

    // Load the scores, and find the largest of each lane.
    var largest = -3.4028235e38;
    for (var e = lane; e < params.n_experts; e += WORKGROUP) {
        let score = values[start + e];
        factors[e] = score;
        taken[e] = 0u;
        largest = max(largest, score);
    }
    partial[lane] = largest;
    workgroupBarrier();
    if lane == 0u {
        total = partial[0];
        for (var i = 1u; i < WORKGROUP; i++) {
            total = max(total, partial[i]);
        }
    }
    workgroupBarrier();

    // Compute factors; those of a softmax are divided by their sum.
    let top = total;
    var sum = 0.0;
    for (var e = lane; e < params.n_experts; e += WORKGROUP) {
        if params.scoring == SOFTMAX {
            factors[e] = exponential(factors[e] - top);
            sum += factors[e];
        } else if params.scoring == SIGMOID {
            factors[e] = 1.0 / (1.0 + exp(clamp(-factors[e], -87.0, 87.0)));
        }
    }
    partial[lane] = sum;
    workgroupBarrier();
    if lane == 0u {
        total = 0.0;
        for (var i = 0u; i < WORKGROUP; i++) {
            total += partial[i];
        }
    }
    workgroupBarrier();
    if params.scoring == SOFTMAX {
        for (var e = lane; e < params.n_experts; e += WORKGROUP) {
            factors[e] = factors[e] / total;
        }
    }
    workgroupBarrier();

    // Groups are ranked by the sum of their best keys. The experts of the other groups are marked as taken
    // without being results.
    if params.n_groups > 0u {
        let len = params.n_experts / params.n_groups;
        for (var g = lane; g < params.n_groups; g += WORKGROUP) {
            var first = -3.4028235e38;
            var second = -3.4028235e38;
            for (var e = g * len; e < g * len + len; e++) {
                let k = key(e);
                if k > first {
                    second = first;
                    first = k;
                } else if k > second {
                    second = k;
                }
            }
            totals[g] = first;
            if min(len, params.n_best) > 1u {
                totals[g] = first + second;
            }
        }
        workgroupBarrier();
        for (var g = lane; g < params.n_groups; g += WORKGROUP) {
            // The number of groups ranked before it; the group is open if these are fewer than `n_open`.
            var n_better = 0u;
            for (var other = 0u; other < params.n_groups; other++) {
                let is_better = totals[other] > totals[g] || (totals[other] == totals[g] && other < g);
                n_better += select(0u, 1u, is_better);
            }
            for (var e = g * len; e < g * len + len; e++) {
                taken[e] = select(CLOSED, 0u, n_better < params.n_open);
            }
        }
        workgroupBarrier();
    }

    // Repeatedly select the best remaining expert; the first among equals.
    for (var i = 0u; i < params.n_chosen; i++) {
        var best = NONE;
        var largest_key = 0.0;
        for (var e = lane; e < params.n_experts; e += WORKGROUP) {
            if taken[e] == 0u && (best == NONE || key(e) > largest_key) {
                best = e;
                largest_key = key(e);
            }
        }
        best_expert[lane] = best;
        best_key[lane] = largest_key;
        workgroupBarrier();
        if lane == 0u {
            for (var l = 1u; l < WORKGROUP; l++) {
                let other = best_expert[l];
                let is_better = best_key[l] > largest_key
                    || (best_key[l] == largest_key && other < best);
                if other != NONE && (best == NONE || is_better) {
                    best = other;
                    largest_key = best_key[l];
                }
            }
            if params.scoring == SPARSE_MIXER && best != NONE {
                // Its term of a softmax over the remaining experts near it. This scoring has no groups.
                var near = 0.0;
                for (var e = 0u; e < params.n_experts; e++) {
                    let score = factors[e];
                    let distance = (largest_key - score) / max(abs(score), largest_key);
                    if taken[e] == 0u && !(distance > params.margin) {
                        near += exponential(score - largest_key);
                    }
                }
                totals[best] = 1.0 / near;
            }
            // There are at least as many experts as are selected.
            taken[min(best, params.n_experts - 1u)] = 1u;
        }
        workgroupBarrier();
    }

    if lane == 0u && group.y < batch[params.rows_at + 1u] {
        let n = params.n_chosen;
        var at = 0u;
        for (var e = 0u; e < params.n_experts; e++) {
            if taken[e] == 1u && at < n {
                values[out + at] = f32(e);
                values[out + n + at] = select(factors[e], totals[e], params.scoring == SPARSE_MIXER);
                at++;
            }
        }
        if params.scoring == SOFTMAX_OF_CHOSEN {
            var chosen = 0.0;
            for (var i = 0u; i < n; i++) {
                let factor = exponential(values[out + n + i] - top);
                values[out + n + i] = factor;
                chosen += factor;
            }
            for (var i = 0u; i < n; i++) {
                values[out + n + i] = values[out + n + i] / chosen;
            }
        }
        var factor = params.scale;
        if (params.flags & NORMALIZE) != 0u {
            var all = 0.0;
            for (var i = 0u; i < n; i++) {
                all += values[out + n + i];
            }
            factor = params.scale / all;
        }
        for (var i = 0u; i < n; i++) {
            values[out + n + i] = values[out + n + i] * factor;
        }
    }
}
