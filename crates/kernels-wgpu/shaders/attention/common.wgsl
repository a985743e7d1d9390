// Shared by the attention kernels: constants, the positions that a row sees, and their places.

struct Params {
    head_dim: u32,
    row_words: u32,  // words of four columns of a position of a head
    n_heads: u32,
    n_kv_heads: u32,
    page_shift: u32, // a page has 1 << page_shift positions
    window: u32,     // positions seen, itself included
    rows_at: u32,
    positions_at: u32,
    seq_of_row_at: u32,
    bases_at: u32,
    work_at: u32,    // items or tiles, two words each
    first_item_at: u32,
    waves_at: u32,   // first item and first row of the wave that runs
    has_sinks: u32,
    sinks: u32,      // the first in `vectors`
    scale: f32,
    softcap: f32,    // 0 for none
    reaches_at: u32, // or NONE, if rows see up to themselves
    q: vec2<u32>,    // start, stride
    out: vec2<u32>,
    chunked: u32,    // whether windows lie side by side
    end: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;

const NONE = 0xffffffffu;

// Below every score, but finite, so that differences are finite.
const LOWEST: f32 = -3.0e38;

// Positions per split; SPLIT in attention.rs.
const SPLIT: u32 = 256u;

// exp of a number of at most zero; zero from -105 down.
fn decay(x: f32) -> f32 {
    return exp(max(x, -105.0));
}

// The first position that a row at `position` sees.
fn first_visible(position: u32) -> u32 {
    if params.chunked != 0u {
        return position / params.window * params.window;
    }
    return select(0u, position + 1u - params.window, position >= params.window);
}

// The index of a position's row of a head, for the sequence with this base of pages.
fn kv_place(base: u32, kv_head: u32, position: u32) -> u32 {
    let page = batch[base + (position >> params.page_shift)];
    let index = position & ((1u << params.page_shift) - 1u);
    let head = (page * params.n_kv_heads + kv_head) << params.page_shift;
    return head + index;
}

// The exponentials of tanh overflow for large arguments; beyond 20 the result is 1 in f32.
fn capped(score: f32) -> f32 {
    if params.softcap == 0.0 {
        return score;
    }
    return params.softcap * tanh(clamp(score / params.softcap, -20.0, 20.0));
}
