// Rows of logits, and the request for each row's shortlist, as words of `wants`. Logits are read as bits, so
// that no device changes them.

struct Params {
    n_logits: u32, // of a row
    n_blocks: u32, // of 64 logits
    x: vec2<u32>, // start, stride
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> wants: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> maxima: array<u32>; // [n_rows, n_blocks], keys
@group(0) @binding(4) var<storage, read_write> lists: array<u32>;

const BLOCK: u32 = 64u;
const NONE: u32 = 0xffffffffu;
// The key of a logit that is NaN or plus infinity.
const UNUSABLE: u32 = 0xffffffffu;
const MINUS_INFINITY: u32 = 0xff800000u;

// The request for a row.
struct Wanted {
    row: u32,
    n_best: u32,
    n_tokens: u32, // logits from here on are of no token
    mask: u32, // where the bits of the tokens that may come begin in wants, or NONE
    listed: u32, // where the tokens that are given by themselves begin in wants
    n_listed: u32,
    out: u32, // where the list begins in lists
    factor: u32, // the scale of shares, 0 where none are wanted
    range: i32, // and the exponent of the range that has any
    draws: u32, // where the places of draws begin in wants
    n_draws: u32,
}

fn wanted(idx: u32) -> Wanted {
    let at = idx * 12u;
    return Wanted(
        wants[at],
        wants[at + 1u],
        wants[at + 2u],
        wants[at + 3u],
        wants[at + 4u],
        wants[at + 5u],
        wants[at + 6u],
        wants[at + 7u],
        bitcast<i32>(wants[at + 8u]),
        wants[at + 9u],
        wants[at + 10u],
    );
}

// Keys compare like logits, with minus zero below zero. Tokens that are not permitted or whose logit is minus
// infinity have key 0.
fn key(want: Wanted, id: u32) -> u32 {
    if id >= want.n_tokens {
        return 0u;
    }
    if want.mask != NONE && ((wants[want.mask + id / 32u] >> (id % 32u)) & 1u) == 0u {
        return 0u;
    }
    let bits = values[params.x.x + want.row * params.x.y + id];
    if bits == MINUS_INFINITY {
        return 0u;
    }
    // Plus infinity, and NaN of either sign.
    if (bits & 0x7fffffffu) >= 0x7f800000u {
        return UNUSABLE;
    }
    if (bits >> 31u) == 1u {
        return ~bits;
    }
    return bits | 0x80000000u;
}
