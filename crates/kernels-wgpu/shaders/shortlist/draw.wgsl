// Sums the shares of a row, and finds the tokens at the requested points of their cumulative sum, in order of
// ids.

var<workgroup> largest: array<u32, 256>;
var<workgroup> scan: array<vec2<u32>, 256>; // sums up to a lane's blocks

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let want = wanted(group.y);
    let first = group.y * params.n_blocks;
    let n_own = (params.n_blocks + 255u) / 256u;
    let begin = min(lane * n_own, params.n_blocks);
    let end = min(begin + n_own, params.n_blocks);
    var most = 0u;
    var own = vec2(0u);
    if want.factor != 0u {
        for (var b = begin; b < end; b++) {
            most = max(most, maxima[first + b]);
            own = plus(own, sums[first + b]);
        }
    }
    largest[lane] = most;
    for (var half = 128u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            largest[lane] = max(largest[lane], largest[lane + half]);
        }
    }
    scan[lane] = own;
    workgroupBarrier();
    for (var step = 1u; step < 256u; step <<= 1u) {
        var sum = scan[lane];
        if lane >= step {
            sum = plus(sum, scan[lane - step]);
        }
        workgroupBarrier();
        scan[lane] = sum;
        workgroupBarrier();
    }
    let total = scan[255];
    let out = want.out + 1u + want.n_listed + 2u * want.n_best;
    if want.factor != 0u && lane == 0u {
        lists[out] = total.x;
        lists[out + 1u] = total.y;
    }
    let upto = scan[lane];
    let before = minus(upto, own);
    let by = shares_beside(bits_of(largest[0]), want);
    for (var i = 0u; i < want.n_draws; i++) {
        let place = wants[want.draws + i];
        // The point times the total, in units of 2^-32.
        let goal = plus(times(total.y, place), vec2(times(total.x, place).y, 0u));
        if is_above(before, goal) || !is_above(upto, goal) {
            continue;
        }
        var left = minus(goal, before);
        var found = end;
        for (var b = begin; b < end; b++) {
            let sum = sums[first + b];
            if found == end {
                if is_above(sum, left) {
                    found = b;
                } else {
                    left = minus(left, sum);
                }
            }
        }
        var token = NONE;
        for (var id = found * BLOCK; id < found * BLOCK + BLOCK; id++) {
            if token == NONE && id < params.n_logits {
                let one = share_of_key(by, key(want, id));
                if is_above(one, left) {
                    token = id;
                } else {
                    left = minus(left, one);
                }
            }
        }
        lists[out + 2u + 2u * i] = token;
        if token != NONE {
            lists[out + 3u + 2u * i] = values[params.x.x + want.row * params.x.y + token];
        }
    }
}
