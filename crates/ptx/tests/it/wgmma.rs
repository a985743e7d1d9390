//! `wgmma`, beside plain products of matrices whose places in shared memory follow from the canonical layouts of the PTX ISA,
//! and what kernels must not do with it.

use half::{bf16, f16};
use realizar_ptx::{Checks, Error, Fault, FaultKind};

use crate::common::{Bench, Random};

/// How a matrix of rows with 16 columns lies in shared memory.
#[derive(Debug, Clone, Copy)]
enum Layout {
    /// Without swizzling: from the first eight columns to the second ones, and from eight rows to the next.
    Plain { leading: usize, stride: usize },
    /// Rows of this many bytes, in which the columns begin at this byte.
    Swizzled { row_bytes: usize, start: usize },
}
use Layout::{Plain, Swizzled};

impl Layout {
    /// The byte of an element.
    fn place(self, row: usize, col: usize) -> usize {
        let (piece, inside) = (col / 8, col % 8 * 2);
        match self {
            Plain { leading, stride } => row / 8 * stride + row % 8 * 16 + piece * leading + inside,
            Swizzled { row_bytes, start } => {
                // Eight rows of 128 bytes turn by one piece each, of 64 by one in two, of 32 by one in four.
                let turn = row % 8 / (128 / row_bytes);
                row * row_bytes + ((start / 16 + piece) ^ turn) * 16 + inside
            }
        }
    }

    /// The descriptor, but for the address of the matrix.
    fn descriptor(self) -> u64 {
        let field = |bytes: usize, first: u32| (bytes as u64 >> 4) << first;
        match self {
            Plain { leading, stride } => field(leading, 16) | field(stride, 32),
            Swizzled { row_bytes, start } => {
                let mode = match row_bytes {
                    128 => 1,
                    64 => 2,
                    _ => 3,
                };
                field(start, 0) | 1 << 16 | field(8 * row_bytes, 32) | mode << 62
            }
        }
    }
}

/// Where B begins in shared memory, after A.
const B_AT: usize = 8192;
const SHARED: usize = B_AT + 32768;

/// A kernel of 128 threads that brings `x` to shared memory, fragments of A and sums from `x` after it, and stores the sums to
/// `y`. `%da` and `%db` are descriptors; `body` multiplies.
fn kernel(n: usize, body: &str) -> String {
    let sums = n / 2;
    let at = |i: usize| 512 * i;
    let a: String =
        (0..4).map(|i| format!("ld.global.u32 %a{i}, [%x+{}];\n", SHARED + at(i))).collect();
    let d: String =
        (0..sums).map(|i| format!("ld.global.f32 %d{i}, [%x+{}];\n", SHARED + at(4 + i))).collect();
    let out: String =
        (0..sums).map(|i| format!("st.global.f32 [%y+{}], %d{i};\n", at(i))).collect();
    format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n\
         .visible .entry test(.param .u64 x, .param .u64 y, .param .u64 a, .param .u64 b)\n{{\n\
         .reg .b32 %a<4>, %r<8>; .reg .f32 %d<{sums}>; .reg .b64 %x, %y, %da, %db, %g; .reg .pred %p<2>;\n\
         .shared .align 1024 .b8 s[{SHARED}];\n\
         ld.param.u64 %x, [x];\nld.param.u64 %y, [y];\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, s;\n\
         mad.wide.u32 %x, %r0, 4, %x;\nmad.wide.u32 %y, %r0, 4, %y;\n\
         mad.lo.u32 %r2, %r0, 4, %r1;\nmov.u64 %g, %x;\nmov.u32 %r3, 0;\n\
         COPY:\nld.global.u32 %r4, [%g];\nst.shared.u32 [%r2], %r4;\nadd.u64 %g, %g, 512;\n\
         add.u32 %r2, %r2, 512;\nadd.u32 %r3, %r3, 512;\nsetp.lt.u32 %p0, %r3, {SHARED};\n@%p0 bra COPY;\n\
         {a}{d}\
         shr.u32 %r1, %r1, 4;\ncvt.u64.u32 %g, %r1;\nld.param.u64 %da, [a];\nadd.u64 %da, %da, %g;\n\
         ld.param.u64 %db, [b];\nadd.u64 %db, %db, %g;\nadd.u64 %db, %db, {};\n\
         fence.proxy.async.shared::cta;\nbar.sync 0;\n{body}\n{out}ret;\n}}\n",
        B_AT >> 4
    )
}

fn list(name: &str, n: usize) -> String {
    let regs: Vec<String> = (0..n).map(|i| format!("%{name}{i}")).collect();
    format!("{{{}}}", regs.join(", "))
}

/// The instruction: of A in registers or in shared memory, whether sums are added, and the signs of A and B.
fn product(n: usize, ty: &str, shared: bool, adds: u8, signs: [i32; 2]) -> String {
    let d = list("d", n / 2);
    let (a, transposed) = if shared { ("%da".to_owned(), "0, 0") } else { (list("a", 4), "0") };
    let [sa, sb] = signs;
    format!(
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ty}.{ty} {d}, {a}, %db, {adds}, {sa}, {sb}, \
         {transposed};"
    )
}

fn fenced(product: &str) -> String {
    format!(
        "wgmma.fence.sync.aligned;\n{product}\nwgmma.commit_group.sync.aligned;\n\
         wgmma.wait_group.sync.aligned 0;"
    )
}

/// Row and column of sum `i` of a thread, by the table of D.
fn d_place(thread: usize, i: usize) -> (usize, usize) {
    let (warp, lane) = (thread / 32, thread % 32);
    (16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2)
}

/// Row and column of element `i` of a thread's A, by the table of A.
fn a_place(thread: usize, i: usize) -> (usize, usize) {
    let (warp, lane) = (thread / 32, thread % 32);
    let below = if i < 2 || (4..6).contains(&i) { 0 } else { 8 };
    (16 * warp + lane / 4 + below, 2 * (lane % 4) + i % 2 + if i < 4 { 0 } else { 8 })
}

struct Case {
    n: usize,
    is_f16: bool,
    /// Of A where it is in shared memory.
    a: Option<Layout>,
    b: Layout,
    adds: u8,
    signs: [i32; 2],
    /// How often it is multiplied.
    times: usize,
}

/// The input of a kernel, and what comes out.
struct Data {
    input: Vec<u32>,
    expected: Vec<f32>,
}

fn data(case: &Case) -> Data {
    let &Case { n, is_f16, a: a_layout, b: b_layout, adds, signs, times } = case;
    let mut random = Random(n as u64);
    let bits =
        |x: f32| if is_f16 { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() };
    let value = |x: u16| match is_f16 {
        true => f16::from_bits(x).to_f64(),
        false => f64::from(bf16::from_bits(x).to_f32()),
    };
    let a: Vec<u16> = (0..64 * 16).map(|_| bits(random.float())).collect();
    let b: Vec<u16> = (0..n * 16).map(|_| bits(random.float())).collect();
    let c: Vec<f32> = (0..64 * n).map(|_| random.float()).collect();
    let mut bytes = vec![0u8; SHARED];
    let mut put = |at: usize, layout: Layout, matrix: &[u16]| {
        for (i, x) in matrix.iter().enumerate() {
            let at = at + layout.place(i / 16, i % 16);
            bytes[at..at + 2].copy_from_slice(&x.to_le_bytes());
        }
    };
    if let Some(layout) = a_layout {
        put(0, layout, &a);
    }
    put(B_AT, b_layout, &b);
    let words = bytes.chunks(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    let mut input: Vec<u32> = words.collect();
    for reg in 0..4 {
        input.extend((0..128).map(|thread| {
            let half = |i: usize| {
                let (row, col) = a_place(thread, 2 * reg + i);
                u32::from(a[row * 16 + col])
            };
            half(0) | half(1) << 16
        }));
    }
    let sums = (0..n / 2).flat_map(|i| (0..128).map(move |thread| d_place(thread, i)));
    let sums: Vec<_> = sums.collect();
    input.extend(sums.iter().map(|&(row, col)| c[row * n + col].to_bits()));
    let expected = sums.iter().map(|&(row, col)| {
        let mut sum = if adds == 1 { c[row * n + col] } else { 0.0 };
        for _ in 0..times {
            let terms = (0..16).map(|k| value(a[row * 16 + k]) * value(b[col * 16 + k]));
            let sign = f64::from(signs[0] * signs[1]);
            sum = terms.fold(f64::from(sum), |sum, term| sum + sign * term) as f32;
        }
        sum
    });
    Data { expected: expected.collect(), input }
}

/// Runs a kernel of a case with 128 threads, or fewer.
fn run(case: &Case, body: &str, threads: u32) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let Data { input, expected } = data(case);
    let mut bench = Bench::with(&kernel(case.n, body), Checks::default())?;
    let (x, y) = (bench.put(&input), bench.put(&vec![0f32; expected.len()]));
    let a = case.a.map_or(0, Layout::descriptor);
    let arguments = [x, y, a, case.b.descriptor()].map(u64::to_le_bytes);
    let arguments: Vec<&[u8]> = arguments.iter().map(|a| &a[..]).collect();
    bench.try_run("test", 1, [threads, 1, 1], 0, &arguments)?;
    Ok((bench.get(y, expected.len()), expected))
}

const B: Layout = Plain { leading: 128, stride: 256 };
const CASE: Case = Case { n: 16, is_f16: true, a: None, b: B, adds: 1, signs: [1, 1], times: 1 };

#[test]
fn products_with_matrices_in_all_layouts() {
    let swizzled = |row_bytes, start| Swizzled { row_bytes, start };
    for (n, is_f16, a, b, adds, signs) in [
        (8, true, None, B, 1, [1, 1]),
        (128, false, None, Plain { leading: 2048, stride: 128 }, 1, [1, 1]),
        (256, true, None, Plain { leading: 4096, stride: 128 }, 0, [1, 1]),
        (24, false, None, swizzled(32, 0), 1, [-1, 1]),
        (40, true, None, swizzled(64, 32), 1, [1, -1]),
        (128, true, None, swizzled(128, 0), 1, [-1, -1]),
        (72, false, None, swizzled(128, 96), 0, [1, 1]),
        (16, true, Some(Plain { leading: 1024, stride: 128 }), B, 1, [1, 1]),
        (96, false, Some(swizzled(128, 64)), swizzled(128, 32), 1, [1, 1]),
        (16, true, Some(swizzled(64, 0)), swizzled(32, 0), 1, [-1, 1]),
    ] {
        let case = Case { n, is_f16, a, b, adds, signs, times: 1 };
        let ty = if is_f16 { "f16" } else { "bf16" };
        let body = fenced(&product(n, ty, a.is_some(), adds, signs));
        let (found, expected) = run(&case, &body, 128).unwrap_or_else(|e| panic!("{b:?}: {e}"));
        assert_eq!(found, expected, "n = {n}, {ty}, A {a:?}, B {b:?}");
    }
}

#[test]
fn products_of_groups_that_are_waited_for_in_turn() {
    let one = product(16, "f16", false, 1, [1, 1]);
    let body = format!(
        "wgmma.fence.sync.aligned;\n{one}\nwgmma.commit_group.sync.aligned;\n{one}\n\
         wgmma.commit_group.sync.aligned;\n{one}\nwgmma.commit_group.sync.aligned;"
    );
    // After each wait the sums of that many groups are complete, and what is stored then shows no more.
    for left in 0..=3 {
        let case = Case { times: 3 - left, ..CASE };
        let stores: String =
            (0..8).map(|i| format!("st.global.f32 [%y+{}], %d{i};\n", 512 * i)).collect();
        let body = format!(
            "{body}\nwgmma.wait_group.sync.aligned {left};\n{stores}\
             wgmma.wait_group.sync.aligned 0;\nret;"
        );
        let (found, expected) = run(&case, &body, 128).unwrap();
        assert_eq!(found, expected, "{left} left");
    }
}

#[test]
fn products_that_break_their_rules() {
    let one = product(16, "f16", false, 1, [1, 1]);
    let fault = |body: &str, threads: u32| -> Fault {
        match run(&CASE, body, threads) {
            Err(Error::Fault(fault)) => *fault,
            other => panic!("{body}: {:?}", other.err()),
        }
    };
    for (body, threads, kind, message) in [
        (
            format!("wgmma.fence.sync.aligned;\n{one}\nret;"),
            128,
            FaultKind::Uninitialised,
            "the thread ends before it has waited for its products",
        ),
        (
            fenced(&one),
            96,
            FaultKind::Divergence,
            "an instruction of a group of four warps, of which the block lacks some",
        ),
        (
            format!("setp.ge.u32 %p1, %r0, 96;\n@%p1 bra END;\n{}\nEND:", fenced(&one)),
            128,
            FaultKind::Divergence,
            "the four warps of a group have not begun the same products",
        ),
        (
            format!("setp.eq.u32 %p1, %r0, 5;\n@%p1 bra END;\n{}\nEND:", fenced(&one)),
            128,
            FaultKind::Divergence,
            "an instruction of whole warps, of which this thread has exited",
        ),
        (
            format!("cvt.u64.u32 %g, %r0;\nadd.u64 %db, %db, %g;\n{}", fenced(&one)),
            128,
            FaultKind::Operand,
            "lanes of a warp give a product different descriptors",
        ),
        (
            format!("or.b64 %db, %db, 0x4000;\n{}", fenced(&one)),
            128,
            FaultKind::Operand,
            "has bits that mean nothing",
        ),
        (
            format!("add.u64 %db, %db, 0x4000000000000008;\n{}", fenced(&one)),
            128,
            FaultKind::Operand,
            "begins inside of a pattern",
        ),
        // An ordinary store that no fence follows, and one that nothing orders in front of the product.
        (
            format!("st.shared.u32 [%r2+-512], 0;\nbar.sync 0;\n{}", fenced(&one)),
            128,
            FaultKind::Race,
            "which was stored without `fence.proxy.async` behind it",
        ),
        (
            format!(
                "{};\n",
                fenced(&one).replace(
                    "wgmma.wait",
                    "st.shared.u32 [s+8192], 0;\nfence.proxy.async;\nwgmma.wait"
                )
            )
            .replace(";;", ";"),
            128,
            FaultKind::Race,
            "with nothing that orders the two",
        ),
    ] {
        // The last words of shared memory are those of B only where the matrix begins there.
        let body = body.replace("[%r2+-512]", "[s+8192]");
        let found = fault(&body, threads);
        assert_eq!(found.kind, kind, "{body}: {found}");
        assert!(found.message.contains(message), "{body}: {found}");
    }
}

#[test]
fn registers_of_products_are_behind_a_fence() {
    let one = product(16, "f16", false, 1, [1, 1]);
    let wait = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;";
    for (body, message) in [
        (format!("{one}\n{wait}"), "there is no `wgmma.fence` in front of it"),
        (
            format!("wgmma.fence.sync.aligned;\nadd.u32 %a1, %a1, 1;\n{one}\n{wait}"),
            "`%a1` is written behind the last `wgmma.fence`",
        ),
        (
            format!("wgmma.fence.sync.aligned;\n{one}\nmov.f32 %d7, 0f00000000;\n{one}\n{wait}"),
            "`%d7` is written behind the last `wgmma.fence`",
        ),
    ] {
        match run(&CASE, &body, 128) {
            Err(error @ Error::Unsupported { .. }) => {
                assert!(error.to_string().contains(message), "{error}");
            }
            other => panic!("{body}: {:?}", other.err()),
        }
    }
}
