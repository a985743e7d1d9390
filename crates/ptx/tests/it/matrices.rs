//! `ldmatrix`, `stmatrix` and `mma.sync`, beside plain products of matrices whose fragments are laid
//! out here by the tables of the PTX ISA.

use half::{bf16, f16};

use crate::common::{Bench, Random};

/// Runs a product of one warp on fragments given register by register, lane by lane.
fn product(opcode: &str, [na, nb, nc]: [usize; 3], fragments: &[u32]) -> Vec<u32> {
    let list = |name: &str, n: usize| {
        let regs: Vec<String> = (0..n).map(|i| format!("%{name}{i}")).collect();
        format!("{{{}}}", regs.join(", "))
    };
    let mut load = String::new();
    for (i, reg) in (0..na)
        .map(|i| format!("a{i}"))
        .chain((0..nb).map(|i| format!("b{i}")))
        .chain((0..nc).map(|i| format!("c{i}")))
        .enumerate()
    {
        load += &format!("ld.global.u32 %{reg}, [%x+{}];\n", 128 * i);
    }
    let store: String =
        (0..nc).map(|i| format!("st.global.u32 [%y+{}], %d{i};\n", 128 * i)).collect();
    let ptx = format!(
        ".version 9.0\n.target sm_90\n.visible .entry test(.param .u64 x, .param .u64 y)\n{{\n\
         .reg .b32 %a<8>, %b<8>, %c<8>, %d<8>, %t; .reg .b64 %x, %y;\n\
         ld.param.u64 %x, [x];\nld.param.u64 %y, [y];\nmov.u32 %t, %tid.x;\n\
         mad.wide.u32 %x, %t, 4, %x;\nmad.wide.u32 %y, %t, 4, %y;\n{load}\
         {opcode} {}, {}, {}, {};\n{store}ret;\n}}",
        list("d", nc),
        list("a", na),
        list("b", nb),
        list("c", nc)
    );
    let mut bench = Bench::new(&ptx);
    let (x, y) = (bench.put(fragments), bench.put(&vec![0u32; 32 * nc]));
    bench.run("test", 1, [32, 1, 1], &[&x.to_le_bytes(), &y.to_le_bytes()]);
    bench.get(y, 32 * nc)
}

/// Packs a matrix's elements into fragments: `place` says where element `i` of a lane lies.
fn pack(
    n_regs: usize,
    bits: usize,
    place: impl Fn(usize, usize) -> (usize, usize),
    element: impl Fn(usize, usize) -> u32,
) -> Vec<u32> {
    let per = 32 / bits;
    let mut words = vec![0; 32 * n_regs];
    for lane in 0..32 {
        for i in 0..n_regs * per {
            let (row, col) = place(lane, i);
            words[i / per * 32 + lane] |= element(row, col) << (i % per * bits);
        }
    }
    words
}

/// Row and column of C and D, by the tables: rows of a group of four lanes, and eight below.
fn c_place(lane: usize, i: usize) -> (usize, usize) {
    (if i < 2 { lane / 4 } else { lane / 4 + 8 }, lane % 4 * 2 + i % 2)
}

/// The tables for A [16, 16] and B [16, 8] of 16 bits.
fn a16(lane: usize, i: usize) -> (usize, usize) {
    let row = lane / 4 + if i < 2 || (4..6).contains(&i) { 0 } else { 8 };
    (row, lane % 4 * 2 + i % 2 + if i < 4 { 0 } else { 8 })
}

fn b16(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 2 + i % 2 + if i < 2 { 0 } else { 8 }, lane / 4)
}

/// The tables for A [16, 32] and B [32, 8] of 8 bits.
fn a8(lane: usize, i: usize) -> (usize, usize) {
    let row = lane / 4 + if i < 4 || (8..12).contains(&i) { 0 } else { 8 };
    (row, lane % 4 * 4 + i % 4 + if i < 8 { 0 } else { 16 })
}

fn b8(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 4 + i % 4 + if i < 4 { 0 } else { 16 }, lane / 4)
}

type Place = fn(usize, usize) -> (usize, usize);

#[test]
fn products_of_floats() {
    let to_f16 = |x: f32| u32::from(f16::from_f32(x).to_bits());
    let of_f16 = |x: u32| f16::from_bits(x as u16).to_f64();
    let to_bf16 = |x: f32| u32::from(bf16::from_f32(x).to_bits());
    let of_bf16 = |x: u32| f64::from(bf16::from_bits(x as u16).to_f32());
    let to_tf32 = |x: f32| x.to_bits() & !0x1fff;
    let of_tf32 = |x: u32| f64::from(f32::from_bits(x));
    // E4M3 from its fields; numbers of all 256 bytes but the NaNs.
    let to_e4m3 = |x: f32| {
        (x.to_bits() >> 8) & 0xff & if (x.to_bits() >> 8) & 0x7f == 0x7f { 0xf7 } else { 0xff }
    };
    let of_e4m3 = |x: u32| {
        let (exponent, mantissa) = ((x >> 3 & 15) as i32, f64::from(x & 7));
        let sign = if x & 0x80 != 0 { -1.0 } else { 1.0 };
        let magnitude = match exponent {
            0 => mantissa * 2f64.powi(-9),
            e => (8.0 + mantissa) * 2f64.powi(e - 10),
        };
        sign * magnitude
    };
    type To = fn(f32) -> u32;
    type Of = fn(u32) -> f64;
    let cases: [(&str, usize, usize, To, Of, Place, Place); 7] = [
        ("m16n8k16.row.col.f32.f16.f16.f32", 16, 16, to_f16, of_f16, a16, b16),
        ("m16n8k16.row.col.f32.bf16.bf16.f32", 16, 16, to_bf16, of_bf16, a16, b16),
        ("m16n8k8.row.col.f32.f16.f16.f32", 8, 16, to_f16, of_f16, a16, b16),
        ("m16n8k8.row.col.f32.bf16.bf16.f32", 8, 16, to_bf16, of_bf16, a16, b16),
        (
            "m16n8k8.row.col.f32.tf32.tf32.f32",
            8,
            32,
            to_tf32,
            of_tf32,
            |lane, i| (lane / 4 + i % 2 * 8, lane % 4 + i / 2 * 4),
            |lane, i| (lane % 4 + i * 4, lane / 4),
        ),
        (
            "m16n8k4.row.col.f32.tf32.tf32.f32",
            4,
            32,
            to_tf32,
            of_tf32,
            |lane, i| (lane / 4 + i * 8, lane % 4),
            |lane, _| (lane % 4, lane / 4),
        ),
        ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 32, 8, to_e4m3, of_e4m3, a8, b8),
    ];
    for (name, k, bits, to, of, a_place, b_place) in cases {
        let mut random = Random(41);
        let mut matrix = |n: usize| (0..n).map(|_| to(random.float())).collect::<Vec<u32>>();
        let (a, b) = (matrix(16 * k), matrix(k * 8));
        let c: Vec<f32> = (0..128).map(|_| random.float()).collect();
        let (na, nb) = (16 * k * bits / 1024, 8 * k * bits / 1024);
        let mut fragments = pack(na, bits, a_place, |row, col| a[row * k + col]);
        fragments.extend(pack(nb, bits, b_place, |row, col| b[row * 8 + col]));
        fragments.extend(pack(4, 32, c_place, |row, col| c[row * 8 + col].to_bits()));
        let found = product(&format!("mma.sync.aligned.{name}"), [na, nb, 4], &fragments);
        for lane in 0..32 {
            for i in 0..4 {
                let (row, col) = c_place(lane, i);
                let terms = (0..k).map(|j| of(a[row * k + j]) * of(b[j * 8 + col]));
                let exact = terms.fold(f64::from(c[row * 8 + col]), |sum, term| sum + term);
                let found = f32::from_bits(found[i * 32 + lane]);
                assert_eq!(found, exact as f32, "{name}: {row}, {col}");
            }
        }
    }
}

#[test]
fn products_with_f16_sums() {
    let half = |i: usize| f16::from_f32((i as f32 * 0.37).sin());
    let fragments: Vec<u32> = pack(4, 16, a16, |r, c| half(r * 16 + c).to_bits().into())
        .into_iter()
        .chain(pack(2, 16, b16, |r, c| half(r * 8 + c + 99).to_bits().into()))
        .chain(pack(2, 16, c_place, |r, c| half(r * 8 + c + 7).to_bits().into()))
        .collect();
    let opcode = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16";
    let found = product(opcode, [4, 2, 2], &fragments);
    for lane in 0..32 {
        for i in 0..4 {
            let (row, col) = c_place(lane, i);
            let term = |j: usize| half(row * 16 + j).to_f64() * half(j * 8 + col + 99).to_f64();
            let exact = (0..16).fold(half(row * 8 + col + 7).to_f64(), |sum, j| sum + term(j));
            let found = f16::from_bits((found[i / 2 * 32 + lane] >> (16 * (i % 2))) as u16);
            assert!((found.to_f64() - exact).abs() <= exact.abs() / 2048.0, "{found} {exact}");
        }
    }
}

#[test]
fn products_of_bytes() {
    let shapes: [(&str, usize, usize); 3] =
        [("m16n8k32", 16, 32), ("m16n8k16", 16, 16), ("m8n8k16", 8, 16)];
    for (shape, m, k) in shapes {
        for (ta, tb) in [("s8", "s8"), ("u8", "s8"), ("s8", "u8"), ("u8", "u8")] {
            for satfinite in [false, true] {
                let mut random = Random(42);
                let mut matrix =
                    |n: usize| (0..n).map(|_| random.bits() as u8).collect::<Vec<u8>>();
                let (a, b) = (matrix(m * k), matrix(k * 8));
                let c: Vec<i32> = (0..m * 8)
                    .map(|i| if i % 3 == 0 { i32::MAX - i as i32 } else { i as i32 })
                    .collect();
                // Of the smaller shapes the tables are those of the larger, cut: eight elements of A in
                // rows of 16 columns, and four of them in eight rows.
                let a_place: Place = match (m, k) {
                    (16, 32) => a8,
                    (16, _) => |lane, i| (lane / 4 + i / 4 * 8, lane % 4 * 4 + i % 4),
                    _ => |lane, i| (lane / 4, lane % 4 * 4 + i),
                };
                let (na, nb, nc) = (m * k / 128, k / 16, m / 4);
                let mut fragments = pack(na, 8, a_place, |row, col| a[row * k + col].into());
                fragments.extend(pack(nb, 8, b8, |row, col| b[row * 8 + col].into()));
                fragments.extend(pack(nc, 32, c_place, |row, col| c[row * 8 + col] as u32));
                let clamp = if satfinite { ".satfinite" } else { "" };
                let opcode = format!("mma.sync.aligned.{shape}.row.col{clamp}.s32.{ta}.{tb}.s32");
                let found = product(&opcode, [na, nb, nc], &fragments);
                let value = |x: u8, ty| if ty == "s8" { i64::from(x as i8) } else { i64::from(x) };
                for lane in 0..32 {
                    for i in 0..nc {
                        let (row, col) = c_place(lane, i);
                        let terms =
                            (0..k).map(|j| value(a[row * k + j], ta) * value(b[j * 8 + col], tb));
                        let sum = terms.sum::<i64>() + i64::from(c[row * 8 + col]);
                        let expected = match satfinite {
                            true => sum.clamp(i32::MIN.into(), i32::MAX.into()) as i32,
                            false => sum as i32,
                        };
                        assert_eq!(found[i * 32 + lane] as i32, expected, "{opcode}: {row}, {col}");
                    }
                }
            }
        }
    }
}

#[test]
fn fragments_to_and_from_shared_memory() {
    for n in [1usize, 2, 4] {
        for (load_trans, store_trans) in
            [("", ""), (".trans", ""), ("", ".trans"), (".trans", ".trans")]
        {
            let regs: Vec<String> = (0..n).map(|i| format!("%r{i}")).collect();
            let regs = regs.join(", ");
            // 32 rows of 16 bytes are loaded, and stored as they come after them.
            let ptx = format!(
                ".version 9.0\n.target sm_90\n.visible .entry test(.param .u64 x)\n{{\n\
                 .reg .b32 %r<4>, %t, %s; .reg .b64 %x, %g; .shared .align 16 .b8 s[1024];\n\
                 ld.param.u64 %x, [x];\nmov.u32 %t, %tid.x;\nmad.wide.u32 %x, %t, 16, %x;\n\
                 mov.u32 %s, s;\nmad.lo.u32 %s, %t, 16, %s;\n.reg .b64 %a, %b;\n\
                 ld.global.v2.b64 {{%a, %b}}, [%x];\nst.shared.v2.b64 [%s], {{%a, %b}};\n\
                 st.shared.v2.b64 [%s+512], {{0, 0}};\nbar.warp.sync -1;\n\
                 ldmatrix.sync.aligned.m8n8.x{n}{load_trans}.shared.b16 {{{regs}}}, [%s];\n\
                 stmatrix.sync.aligned.m8n8.x{n}{store_trans}.shared::cta.b16 [%s+512], {{{regs}}};\n\
                 bar.warp.sync -1;\nld.shared.v2.b64 {{%a, %b}}, [%s+512];\n\
                 st.global.v2.b64 [%x], {{%a, %b}};\nret;\n}}"
            );
            let mut bench = Bench::new(&ptx);
            let x: Vec<u16> = (0..256).collect();
            let at = bench.put(&x);
            bench.run("test", 1, [32, 1, 1], &[&at.to_le_bytes()]);
            let found: Vec<u16> = bench.get(at, 256);
            for (i, found) in found.iter().enumerate() {
                let (matrix, row, col) = (i / 64, i / 8 % 8, i % 8);
                let turned = load_trans != store_trans;
                let from = if turned { matrix * 64 + col * 8 + row } else { i };
                let expected = if matrix < n { x[from] } else { 0 };
                assert_eq!(*found, expected, "x{n}{load_trans}{store_trans}: {i}");
            }
        }
    }
    // One load, looked at in its registers: lane 5 has row 1, columns 2 and 3.
    let code = ".shared .align 16 .b8 m[128];\nmov.u32 %r4, m;\nshl.b32 %r5, %r2, 2;\n\
                add.u32 %r5, %r4, %r5;\nst.shared.u32 [%r5], %r1;\nbar.warp.sync -1;\n\
                and.b32 %r6, %r2, 7;\nshl.b32 %r6, %r6, 4;\nadd.u32 %r6, %r4, %r6;\n\
                ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r6];";
    let words: Vec<u32> = (0..32).map(|i| ((2 * i + 1) << 16) | (2 * i)).collect();
    assert_eq!(crate::threads::of_threads(code, &words)[5], 11 << 16 | 10);
    assert_eq!(crate::threads::of_threads(code, &words), words);
    let turned = code.replace("x1.shared", "x1.trans.shared");
    assert_eq!(crate::threads::of_threads(&turned, &words)[5], 25 << 16 | 17);
}
