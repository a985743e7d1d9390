// Shares of logits relative to the largest one, 2^39 e^((logit - max) * scale), as 64-bit integers: the low
// word, then the high word. All operations are on integers, so shares are the same on all devices and on the
// host, and sums do not depend on their order.

@group(0) @binding(5) var<storage, read_write> sums: array<vec2<u32>>; // [n_rows, n_blocks]

// (1 - 2^-x) / x as a polynomial in -x, in units of 2^-31.
const C1: u32 = 1488515590u;
const C2: u32 = 515789246u;
const C3: u32 = 118765909u;
const C4: u32 = 19784458u;
const C5: u32 = 2034029u;

struct Shares {
    exponent: i32, // of the unit of logits
    max: u32, // in units
    factor: u32,
    shift: u32,
}

fn times(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    return vec2(a * b, (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u));
}

fn plus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn minus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn is_above(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y > b.y || (a.y == b.y && a.x > b.x);
}

// A logit in units of 2^exponent, truncated towards zero; the least integer if it is below that.
fn in_units(bits: u32, exponent: i32) -> u32 {
    let of_bits = i32((bits >> 23u) & 255u);
    let shift = of_bits - 150 - exponent;
    var size = (bits & 0x7fffffu) | 0x800000u;
    if of_bits == 0 || shift < -24 {
        size = 0u;
    } else if shift < 0 {
        size >>= u32(-shift);
    } else if shift < 8 {
        size <<= u32(shift);
    } else {
        size = 0x80000000u;
    }
    return select(size, 0u - size, (bits >> 31u) == 1u);
}

fn shares_beside(max_bits: u32, want: Wanted) -> Shares {
    let of_max = i32((max_bits >> 23u) & 255u) - 127;
    let top = max(of_max, want.range);
    let exponent = top - 29;
    let shift = u32(max(30 - (top - want.range), 0));
    return Shares(exponent, in_units(max_bits, exponent), want.factor, shift);
}

fn share(by: Shares, bits: u32) -> vec2<u32> {
    let product = times(by.max - in_units(bits, by.exponent), by.factor);
    if (product.y >> by.shift) != 0u {
        return vec2(0u);
    }
    var log = product.x;
    if by.shift > 0u {
        log = (product.x >> by.shift) | (product.y << (32u - by.shift));
    }
    let rest = log << 7u;
    var power = C4 - times(rest, C5).y;
    power = C3 - times(rest, power).y;
    power = C2 - times(rest, power).y;
    power = C1 - times(rest, power).y;
    power = 0x80000000u - times(rest, power).y;
    let whole = log >> 25u;
    let low = power << 8u;
    let high = power >> 24u;
    if whole == 0u {
        return vec2(low, high);
    }
    if whole < 32u {
        return vec2((low >> whole) | (high << (32u - whole)), high >> whole);
    }
    return vec2(high >> min(whole - 32u, 31u), 0u);
}

// The bits of the logit with this key.
fn bits_of(item: u32) -> u32 {
    return select(~item, item & 0x7fffffffu, (item >> 31u) == 1u);
}

// The share of a token by its key; zero if it is not permitted.
fn share_of_key(by: Shares, item: u32) -> vec2<u32> {
    if item == 0u || item == UNUSABLE {
        return vec2(0u);
    }
    return share(by, bits_of(item));
}
