// out = op(x, y), one element per invocation.

// Elementwise::code. A device that runs every branch of a switch for the sake of
// other invocations would compute each activation for each element.
override op: u32;

struct Params {
    width: u32,
    rows_at: u32,
    constants: vec2<f32>,
    x: vec2<u32>, // start, stride
    y: vec2<u32>,
    out: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;

// tanh by exponentials overflows; beyond 20 it is 1 to the last bit.
fn safe_tanh(x: f32) -> f32 {
    return tanh(clamp(x, -20.0, 20.0));
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-clamp(x, -80.0, 80.0)));
}

// Abramowitz and Stegun 7.1.26 would be off by 1e-7 of 1, but much more of a
// small result, so small arguments take the series (7.1.5).
fn erf(x: f32) -> f32 {
    let z = abs(x);
    if z < 1.0 {
        let s = x * x;
        var sum = 1.0 / 6894720.0;
        sum = fma(-s, sum, 1.0 / 685440.0);
        sum = fma(-s, sum, 1.0 / 75600.0);
        sum = fma(-s, sum, 1.0 / 9360.0);
        sum = fma(-s, sum, 1.0 / 1320.0);
        sum = fma(-s, sum, 1.0 / 216.0);
        sum = fma(-s, sum, 1.0 / 42.0);
        sum = fma(-s, sum, 1.0 / 10.0);
        sum = fma(-s, sum, 1.0 / 3.0);
        sum = fma(-s, sum, 1.0);
        return 1.1283791670955126 * x * sum;
    }
    let t = 1.0 / fma(0.3275911, z, 1.0);
    var p = fma(t, 1.061405429, -1.453152027);
    p = fma(t, p, 1.421413741);
    p = fma(t, p, -0.284496736);
    p = fma(t, p, 0.254829592);
    return sign(x) * (1.0 - p * t * exp(-z * z));
}

// tanh(ln(1 + e)) is e (e + 2) / (e (e + 2) + 2); beyond 20 it is 1 to the last bit.
fn mish(x: f32) -> f32 {
    let e = exp(clamp(x, -80.0, 20.0));
    let n = e * (e + 2.0);
    return x * (n / (n + 2.0));
}

fn activation(act: u32, x: f32) -> f32 {
    switch act {
        case 0u: { return x * sigmoid(x); }
        case 1u: { return 0.5 * x * (1.0 + erf(x * 0.7071067811865476)); }
        case 2u: { return x * sigmoid(1.5957691216057308 * fma(0.044715 * x * x, x, x)); }
        case 3u: { return x * sigmoid(1.702 * x); }
        case 4u: { return max(x, 0.0); }
        case 5u: { return max(x, 0.0) * max(x, 0.0); }
        case 6u: { return safe_tanh(x); }
        case 7u: { return sigmoid(x); }
        default: { return mish(x); }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let col = id.x;
    if col >= params.width || id.y >= batch[params.rows_at + 1u] {
        return;
    }
    let row = batch[params.rows_at] + id.y;
    let x = values[params.x.x + row * params.x.y + col];
    var result = 0.0;
    if op < 16u {
        result = activation(op, x);
    } else {
        let y = values[params.y.x + row * params.y.y + col];
        switch op {
            case 32u: { result = x + y; }
            case 33u: { result = x * params.constants.x; }
            case 34u: { result = params.constants.x * safe_tanh(x / params.constants.x); }
            case 35u: { result = clamp(x, params.constants.x, params.constants.y); }
            case 36u: { result = x * y; }
            default: { result = activation(op - 16u, x) * y; }
        }
    }
    values[params.out.x + row * params.out.y + col] = result;
}
