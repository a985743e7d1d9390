// Selects the best tokens of a row, unordered: first the blocks that may contain one, as many as tokens are
// requested, then the tokens in these blocks. Both use a radix selection by key, and among equal keys by lower
// index: each pass fixes eight bits of the least selected item.

const PASSES: u32 = 7u; // four of the key, three of the index
const LAST_INDEX: u32 = 0xffffffu;
const MAX_BEST: u32 = 256u;

var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> scan: array<u32, 256>;
var<workgroup> chosen: array<u32, MAX_BEST>; // blocks
var<workgroup> n_chosen: atomic<u32>;
var<workgroup> n_found: atomic<u32>;
var<workgroup> is_unusable: atomic<u32>;
// The fixed bits of the least selected item, the number of items with these bits to select, and whether
// there are at most as many items as requested.
var<workgroup> least_key: u32;
var<workgroup> least_order: u32;
var<workgroup> n_left: u32;
var<workgroup> takes_all: u32;

fn begin(n: u32, lane: u32) {
    workgroupBarrier();
    atomicStore(&bins[lane], 0u);
    if lane == 0u {
        least_key = 0u;
        least_order = 0u;
        n_left = n;
        takes_all = 0u;
    }
    workgroupBarrier();
}

// Counts an item if it has the fixed bits of the least selected item.
fn count(item: u32, order: u32, pass_idx: u32) {
    if item == 0u {
        return;
    }
    var like = true;
    var digit = 0u;
    if pass_idx < 4u {
        if pass_idx > 0u {
            let shift = 32u - 8u * pass_idx;
            like = (item >> shift) == (least_key >> shift);
        }
        digit = (item >> (24u - 8u * pass_idx)) & 255u;
    } else {
        let shift = 24u - 8u * (pass_idx - 4u);
        like = item == least_key && (order >> shift) == (least_order >> shift);
        digit = (order >> (shift - 8u)) & 255u;
    }
    if like {
        atomicAdd(&bins[digit], 1u);
    }
}

// Fixes the digit of a pass.
fn settle(pass_idx: u32, lane: u32) {
    workgroupBarrier();
    // Large digits first.
    let digit = 255u - lane;
    let own = atomicLoad(&bins[digit]);
    atomicStore(&bins[digit], 0u);
    scan[lane] = own;
    workgroupBarrier();
    for (var step = 1u; step < 256u; step <<= 1u) {
        var sum = scan[lane];
        if lane >= step {
            sum += scan[lane - step];
        }
        workgroupBarrier();
        scan[lane] = sum;
        workgroupBarrier();
    }
    let upto = scan[lane];
    let before = upto - own;
    let left = n_left;
    workgroupBarrier();
    if before < left && left <= upto {
        n_left = left - before;
        if pass_idx < 4u {
            least_key |= digit << (24u - 8u * pass_idx);
        } else {
            least_order |= digit << (16u - 8u * (pass_idx - 4u));
        }
    }
    if pass_idx == 0u && lane == 255u && upto < left {
        takes_all = 1u;
    }
    workgroupBarrier();
}

fn is_taken(item: u32, order: u32) -> bool {
    let above = item > least_key || (item == least_key && order >= least_order);
    return item != 0u && (takes_all == 1u || above);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let want = wanted(group.y);
    let first = group.y * params.n_blocks;
    if lane == 0u {
        atomicStore(&n_chosen, 0u);
        atomicStore(&n_found, 0u);
        atomicStore(&is_unusable, 0u);
    }
    begin(want.n_best, lane);
    for (var pass_idx = 0u; pass_idx < PASSES; pass_idx++) {
        for (var b = lane; b < params.n_blocks; b += 256u) {
            count(maxima[first + b], LAST_INDEX - b, pass_idx);
        }
        settle(pass_idx, lane);
    }
    for (var b = lane; b < params.n_blocks; b += 256u) {
        if is_taken(maxima[first + b], LAST_INDEX - b) {
            chosen[min(atomicAdd(&n_chosen, 1u), MAX_BEST - 1u)] = b;
        }
    }
    begin(want.n_best, lane);
    let n = min(atomicLoad(&n_chosen), MAX_BEST) * BLOCK;
    for (var pass_idx = 0u; pass_idx < PASSES; pass_idx++) {
        for (var i = lane; i < n; i += 256u) {
            let id = chosen[i / BLOCK] * BLOCK + i % BLOCK;
            count(key(want, id), LAST_INDEX - id, pass_idx);
        }
        settle(pass_idx, lane);
    }
    let out = want.out + 1u + want.n_listed;
    for (var i = lane; i < n; i += 256u) {
        let id = chosen[i / BLOCK] * BLOCK + i % BLOCK;
        let item = key(want, id);
        if is_taken(item, LAST_INDEX - id) {
            let at = atomicAdd(&n_found, 1u);
            if at < want.n_best {
                lists[out + 2u * at] = id;
                lists[out + 2u * at + 1u] = values[params.x.x + want.row * params.x.y + id];
            }
            if item == UNUSABLE {
                atomicStore(&is_unusable, 1u);
            }
        }
    }
    workgroupBarrier();
    if lane == 0u {
        var found = atomicLoad(&n_found);
        if atomicLoad(&is_unusable) == 1u {
            found = NONE;
        }
        lists[want.out] = found;
    }
}
