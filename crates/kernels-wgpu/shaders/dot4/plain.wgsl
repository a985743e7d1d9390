// The dot product of two words of four signed bytes, by shifts.

fn signed_bytes(a: u32) -> vec4<i32> {
    return (vec4(bitcast<i32>(a)) << vec4(24u, 16u, 8u, 0u)) >> vec4(24u);
}

fn dot4(a: u32, b: u32) -> i32 {
    return dot(signed_bytes(a), signed_bytes(b));
}
