//! Names of the processor's instruction sets, for reports. [`crate::Tier`] decides which of them the
//! kernels use.

/// The instruction sets relevant to inference that the processor and the operating system support, by
/// the vendor's names in lower case.
pub fn features() -> Vec<&'static str> {
    all().into_iter().filter(|&(_, has)| has).map(|(name, _)| name).collect()
}

/// Name of each instruction set and whether it is supported, oldest first.
#[cfg(target_arch = "x86_64")]
fn all() -> Vec<(&'static str, bool)> {
    use std::arch::is_x86_feature_detected as has;
    let [amx_tile, amx_int8, amx_bf16] = amx();
    vec![
        ("avx2", has!("avx2")),
        ("fma", has!("fma")),
        ("f16c", has!("f16c")),
        ("avx512f", has!("avx512f")),
        ("avx512bw", has!("avx512bw")),
        ("avx512dq", has!("avx512dq")),
        ("avx512vl", has!("avx512vl")),
        ("avx512vnni", has!("avx512vnni")),
        ("avx512vbmi", has!("avx512vbmi")),
        ("avx512bf16", has!("avx512bf16")),
        ("avx512fp16", has!("avx512fp16")),
        ("avx-vnni", has!("avxvnni")),
        ("avx-vnni-int8", has!("avxvnniint8")),
        ("amx-tile", amx_tile),
        ("amx-int8", amx_int8),
        ("amx-bf16", amx_bf16),
    ]
}

/// Whether AMX-TILE, AMX-INT8 and AMX-BF16 are supported: by the processor according to CPUID leaf 7
/// (Intel SDM, volume 2, CPUID), by the operating system according to bits 17 and 18 of XCR0
/// (volume 1, section 13.3).
#[cfg(target_arch = "x86_64")]
pub(crate) fn amx() -> [bool; 3] {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    const TILE_STATE: u64 = 0b11 << 17;
    #[target_feature(enable = "xsave")]
    fn saved_state() -> u64 {
        // SAFETY: the processor has XSAVE, as the function's target feature says.
        unsafe { _xgetbv(0) }
    }
    if !std::arch::is_x86_feature_detected!("xsave") || __cpuid(0).eax < 7 {
        return [false; 3];
    }
    // SAFETY: XSAVE was detected above.
    let saves_tiles = unsafe { saved_state() } & TILE_STATE == TILE_STATE;
    let edx = __cpuid_count(7, 0).edx;
    [24, 25, 22].map(|bit| saves_tiles && edx >> bit & 1 == 1)
}

#[cfg(target_arch = "aarch64")]
fn all() -> Vec<(&'static str, bool)> {
    use std::arch::is_aarch64_feature_detected as has;
    vec![
        ("neon", has!("neon")),
        ("fp16", has!("fp16")),
        ("dotprod", has!("dotprod")),
        ("i8mm", has!("i8mm")),
        ("bf16", has!("bf16")),
        ("sve", has!("sve")),
        ("sve2", has!("sve2")),
    ]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn all() -> Vec<(&'static str, bool)> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_agree_with_the_tiers() {
        let found = features();
        let has = |name: &str| found.contains(&name);
        let avx2 = has("avx2") && has("fma") && has("f16c");
        assert_eq!(avx2, crate::Tier::from_name("avx2").is_some(), "{found:?}");
        // Tiles may be supported without either of their products, but not the reverse.
        assert!(has("amx-tile") || !(has("amx-int8") || has("amx-bf16")), "{found:?}");
    }
}
