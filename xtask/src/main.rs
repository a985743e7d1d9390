//! Project helpers.
fn main() {}
