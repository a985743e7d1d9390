//! Modules run as a whole: what a compiler made, every opcode, every report.

mod bench;
mod cases;
mod common;
mod conversions;
mod floats;
mod integers;
mod kernels;
mod matrices;
mod mbarriers;
mod memory;
mod moves;
mod refused;
mod reports;
mod streams;
mod threads;
mod wgmma;
