//! Lists of the operations' tests, by module.

use super::*;
use crate::tests::Test;

pub(crate) const MODULES: &[&[Test]] = &[
    attention::tests::decode::TESTS,
    attention::tests::new_heads::TESTS,
    attention::tests::prefill::TESTS,
    capture::tests::TESTS,
    delta_net::tests::TESTS,
    elementwise::tests::TESTS,
    embed::tests::TESTS,
    experts::tests::TESTS,
    gated::tests::TESTS,
    kv_store::tests::TESTS,
    levels::tests::TESTS,
    matmul::tests::TESTS,
    matvec::tests::TESTS,
    matvec_parts::tests::TESTS,
    matvec_quantized::tests::TESTS,
    norm::tests::TESTS,
    quantize::tests::TESTS,
    ranks::tests::TESTS,
    rope::tests::TESTS,
    round::tests::TESTS,
    route::tests::TESTS,
    short_conv::tests::TESTS,
    shortlist::tests::TESTS,
    wgmma::tests::TESTS,
];
