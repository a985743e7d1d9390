// Attention of decode rows, first kernel: a workgroup computes the visible positions of one split, for the
// query heads of a group that share them, and writes the maximum, the sum and the weighted values of each
// head to `scratch` (Dao et al. 2023, "Flash-Decoding").
//
// It processes 64 positions at a time. For the scores, eight invocations share four positions, each with
// every eighth word of columns; their partial sums are added in order. For the values, an invocation has
// one word of columns and every PARTS-th position; with more than 128 words it has all words that are 128
// apart.
//
// Comes after a part that defines HEADS, the query heads per workgroup, and WORDS, the maximum number of
// four-column words of a head (a power of two, or more than 128); a part of shaders/kv; and common.wgsl.

const STEP: u32 = 64u; // positions
const PARTS: u32 = max(128u / WORDS, 1u);
const TURNS: u32 = (WORDS + 127u) / 128u; // words of an invocation
const PAIRS: u32 = (HEADS + 1u) / 2u;

@group(0) @binding(2) var<storage, read> values: array<f32>;
@group(0) @binding(3) var<storage, read> keys: array<KvWord>;
@group(0) @binding(4) var<storage, read> vals: array<KvWord>;
@group(0) @binding(5) var<storage, read_write> scratch: array<f32>;

var<workgroup> queries: array<vec4<f32>, HEADS * WORDS>;
var<workgroup> partial: array<vec4<f32>, 256>;
var<workgroup> weights: array<f32, HEADS * STEP>;
var<workgroup> places: array<u32, STEP>;
var<workgroup> maxima: array<f32, HEADS * 16u>;
var<workgroup> sums: array<f32, HEADS * 16u>;
var<workgroup> keeps: array<f32, HEADS>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let kv_head = group.x;
    let item = group.y; // of the wave
    let work = params.work_at + 2u * (batch[params.waves_at] + item);
    let group_heads = params.n_heads / params.n_kv_heads;
    // The workgroup's heads. A group may have several workgroups.
    let first_head = kv_head * group_heads + group.z * HEADS;
    let n_heads = min(HEADS, group_heads - group.z * HEADS);
    let row = batch[work];
    let split = batch[work + 1u];
    let position = batch[params.positions_at + row];
    let base = batch[params.bases_at + batch[params.seq_of_row_at + row]];
    let first = max(first_visible(position), split * SPLIT);
    let last = min(position, split * SPLIT + SPLIT - 1u);

    // The scaled queries; zero for missing heads.
    for (var i = lane; i < HEADS * WORDS; i += 128u) {
        let head = i / WORDS;
        let col = 4u * (i % WORDS);
        let at = params.q.x + row * params.q.y + (first_head + head) * params.head_dim + col;
        var x = vec4<f32>();
        for (var j = 0u; j < 4u; j++) {
            if head < n_heads && col + j < params.head_dim {
                x[j] = values[at + j] * params.scale;
            }
        }
        queries[i] = x;
    }
    workgroupBarrier();

    let own = lane % 8u;
    let line = lane / 8u; // 0..16: four positions of the scores
    let first_word = lane % WORDS; // of the values
    let part = lane / WORDS;
    // Sixteen invocations compute the softmax of a head, four positions each.
    let soft_head = lane / 16u;
    let soft_at = 4u * lane; // in weights
    var running_max = LOWEST;
    var running_sum = 0.0;
    var acc = array<vec4<f32>, HEADS * TURNS>();

    for (var start = first / STEP * STEP; start <= last; start += STEP) {
        // Partial scores of four positions, over this invocation's words.
        let here = vec4<u32>(start + 4u * line) + vec4<u32>(0u, 1u, 2u, 3u);
        let sees = (here >= vec4<u32>(first)) & (here <= vec4<u32>(last));
        var place = 0u;
        if any(sees) {
            place = kv_place(base, kv_head, here.x);
        }
        if own == 0u {
            for (var i = 0u; i < 4u; i++) {
                places[4u * line + i] = place + i;
            }
        }
        var scores = array<vec4<f32>, HEADS>();
        for (var i = own; i < params.row_words; i += 8u) {
            var k = array<vec4<f32>, 4>();
            for (var j = 0u; j < 4u; j++) {
                if sees[j] {
                    k[j] = kv_key(place + j, i);
                }
            }
            let kx = vec4<f32>(k[0].x, k[1].x, k[2].x, k[3].x);
            let ky = vec4<f32>(k[0].y, k[1].y, k[2].y, k[3].y);
            let kz = vec4<f32>(k[0].z, k[1].z, k[2].z, k[3].z);
            let kw = vec4<f32>(k[0].w, k[1].w, k[2].w, k[3].w);
            for (var head = 0u; head < HEADS; head++) {
                let q = queries[head * WORDS + i];
                var s = fma(vec4<f32>(q.x), kx, scores[head]);
                s = fma(vec4<f32>(q.y), ky, s);
                s = fma(vec4<f32>(q.z), kz, s);
                scores[head] = fma(vec4<f32>(q.w), kw, s);
            }
        }

        // Add the partial scores, two heads at a time: head own / 4 of them, position own % 4.
        for (var pair = 0u; pair < PAIRS; pair++) {
            partial[2u * lane] = scores[2u * pair];
            if 2u * pair + 1u < HEADS {
                partial[2u * lane + 1u] = scores[min(2u * pair + 1u, HEADS - 1u)];
            }
            workgroupBarrier();
            let head = 2u * pair + own / 4u;
            if head < HEADS {
                var score = 0.0;
                for (var i = 0u; i < 8u; i++) {
                    score += partial[2u * (8u * line + i) + own / 4u][own % 4u];
                }
                weights[head * STEP + 4u * line + own % 4u] =
                    select(LOWEST, capped(score), sees[own % 4u]);
            }
            workgroupBarrier();
        }

        // Weights.
        var four = vec4<f32>(LOWEST);
        if soft_head < HEADS {
            for (var i = 0u; i < 4u; i++) {
                four[i] = weights[soft_at + i];
            }
            maxima[lane] = max(max(four.x, four.y), max(four.z, four.w));
        }
        workgroupBarrier();
        if soft_head < HEADS {
            var largest = running_max;
            for (var i = 0u; i < 16u; i++) {
                largest = max(largest, maxima[16u * soft_head + i]);
            }
            let keep = decay(running_max - largest);
            running_max = largest;
            running_sum *= keep;
            for (var i = 0u; i < 4u; i++) {
                let seen = start + (soft_at + i) % STEP;
                let weight = decay(four[i] - largest);
                four[i] = select(0.0, weight, seen >= first && seen <= last);
                weights[soft_at + i] = four[i];
            }
            sums[lane] = (four.x + four.y) + (four.z + four.w);
            if lane % 16u == 0u {
                keeps[soft_head] = keep;
            }
        }
        workgroupBarrier();
        if soft_head < HEADS {
            var sum = 0.0;
            for (var i = 0u; i < 16u; i++) {
                sum += sums[16u * soft_head + i];
            }
            running_sum += sum;
        }

        // Values.
        for (var turn = 0u; turn < TURNS; turn++) {
            let word = first_word + 128u * turn;
            if word >= params.row_words {
                break;
            }
            let at = turn * HEADS;
            for (var head = 0u; head < HEADS; head++) {
                acc[at + head] *= keeps[head];
            }
            for (var i = part; i < STEP; i += PARTS) {
                if start + i >= first && start + i <= last {
                    let v = kv_value(places[i], word);
                    for (var head = 0u; head < HEADS; head++) {
                        let weight = vec4<f32>(weights[head * STEP + i]);
                        acc[at + head] = fma(weight, v, acc[at + head]);
                    }
                }
            }
        }
        // All invocations must have read these before any of them writes the next ones.
        workgroupBarrier();
    }

    // Add the parts of the positions, in order.
    let head_stride = params.head_dim + 2u;
    let out = (item * params.n_heads + first_head) * head_stride;
    for (var sum = 0u; sum < HEADS * TURNS; sum++) {
        let head = sum % HEADS;
        let word = first_word + 128u * (sum / HEADS);
        partial[lane] = acc[sum];
        workgroupBarrier();
        if part == 0u && head < n_heads {
            var x = partial[lane];
            for (var i = 1u; i < PARTS; i++) {
                x += partial[i * WORDS + lane];
            }
            for (var i = 0u; i < 4u; i++) {
                if 4u * word + i < params.head_dim {
                    scratch[out + head * head_stride + 2u + 4u * word + i] = x[i];
                }
            }
        }
        workgroupBarrier();
    }
    if soft_head < n_heads && lane % 16u == 0u {
        scratch[out + soft_head * head_stride] = running_max;
        scratch[out + soft_head * head_stride + 1u] = running_sum;
    }
}
