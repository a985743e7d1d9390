// The dot product of two words of four signed bytes, by the built-in function.

fn dot4(a: u32, b: u32) -> i32 {
    return dot4I8Packed(a, b);
}
