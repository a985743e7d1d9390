//! The `realizar` binary.
fn main() {}
