//! Modules that are refused: what is not known is named with its line, and broken text is no panic.

use realizar_ptx::{Checks, Device, Error, Launch};

use crate::memory::kernel;

fn refusal(ptx: &str) -> Error {
    match Device::new(Checks::default()).load(ptx) {
        Err(error) => error,
        Ok(_) => panic!("{ptx}: loads"),
    }
}

#[test]
fn unknown_instructions_are_named_with_their_line() {
    for (code, message) in [
        ("frobnicate.u32 %r1, %r2;", "an opcode that is not known"),
        ("add.u32.fast %r1, %r2, %r3;", "the modifier `.fast` is not known here"),
        ("add.b32 %r1, %r2;", "2 operands where 3 are expected"),
        ("add.u64 %r1, %d2, %d3;", "`%r1` has 32 bits where 64 are expected"),
        ("add.u32 %r1, %r2, %r99;", "`%r99` is behind the last of `%r`"),
        ("add.u32 %r1, %r2, %q1;", "there is no register `%q1`"),
        ("mov.u32 %r1, %clock;", "there is no register `%clock`"),
        ("mov.u32 %r1, nothing;", "there is no name `nothing`"),
        ("ld.global.u32 %h1, [%d1];", "a register that is too small"),
        ("st.param.u32 [x], %r1;", "a store to memory that is only read"),
        ("cvt.f16.f32 %h1, %r1;", "a rounding is missing"),
        ("cvt.rn.s32.f32 %r1, %r2;", "a rounding is missing"),
        ("cvt.rs.f16x2.f32 %r1, %r2, %r3;", "a rounding is missing"),
        ("cvt.sat.s32.u16 %r1, %h2;", "`.sat` where S32 holds all of U16"),
        ("red.global.exch.b32 [%d1], 7;", "there is no `red` with `.exch`"),
        ("ex2.f32 %r1, %r2;", "`.approx` is missing"),
        ("shfl.idx.b32 %r1, %r2, 0, 31;", "only the form with `.sync` is known"),
        ("wgmma.fence;", "`.sync.aligned` is missing"),
        (
            "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%r1, %r2, %r3, %r4}, %d1, %d2, 1;",
            "the shape `.m64n8k32` with these types is not interpreted",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2, %r3, %r4}, %d1, %d2, 1, 1, 1, 0, 1;",
            "transposed matrices are not interpreted",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%r1, %r2}, %d1, %d2, 1, 1, 1, 0, 0;",
            "2 registers where 8 are expected",
        ),
        ("tcgen05.wait::ld.sync.aligned;", "tensor memory (tcgen05) is not interpreted"),
        ("mbarrier.arrive_drop.shared.b64 %d1, [s];", "only init, inval, expect_tx, arrive"),
        ("mbarrier.arrive.shared::cluster.b64 _, [s];", "the modifier `.shared::cluster` is not"),
        ("cp.async.bulk.commit_group;", "of bulk copies only those from global to shared memory"),
        (
            "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [s], [%d1], 16, [s];",
            "the modifier `.tensor` is not known here",
        ),
        ("cp.async.mbarrier.arrive.shared.b64 [s];", "copies that arrive at a barrier"),
        ("barrier.cluster.arrive;", "clusters of blocks are not interpreted"),
        ("mapa.u64 %d1, %d2, 0;", "clusters of blocks are not interpreted"),
        ("fence.proxy.alias;", "of fences between proxies only `.async` is interpreted"),
        (
            "wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1}, [%d1];",
            "the older matrix form (wmma)",
        ),
        (
            "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1}, {%r1}, {%r1}, {%r1};",
            "the shape `.m8n8k4` with these types is not interpreted",
        ),
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1}, {%r1}, {%r1}, {%r1};",
            "registers where 4 are expected",
        ),
        ("tex.2d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [%d1, {%r1, %r2}];", ""),
        ("call vprintf, (%d1, %d2);", "there is no function `vprintf`"),
        ("call %d1, (x);", "there is no function `%d1`"),
        ("add.rm.f64 %d1, %d2, %d3;", "F64 is rounded to nearest only"),
        ("atom.global.add.b32 %r1, [%d1], 1;", "`add` of B32 is not known"),
        ("cp.async.cg.shared.global [s], [%d1], 8;", "a copy of 8 bytes"),
        ("bra NOWHERE;", "there is no label `NOWHERE`"),
    ] {
        let ptx = kernel(code);
        let line = ptx.lines().position(|l| l == code).unwrap() as u32 + 1;
        let found = refusal(&ptx);
        let found_line = match &found {
            Error::Unsupported { line, opcode, .. } => {
                assert!(code.contains(opcode.as_str()), "{code}: {found}");
                *line
            }
            Error::Syntax { line, .. } => *line,
            other => panic!("{code}: {other}"),
        };
        assert_eq!(found_line, line, "{code}: {found}");
        assert!(found.to_string().contains(message), "{code}: {found}");
    }
}

#[test]
fn broken_text_is_an_error_with_its_line() {
    for (ptx, expected) in [
        ("\n.entry test( {", "line 2: expected `.param`, found `{`"),
        (".entry test()\n{\nadd.u32 %r1\n}", "line 4: expected `,` or `;`, found `}`"),
        (".entry test() {", "line 1: a function's body does not end"),
        (".entry test() {\nL:\nL:\nret; }", "line 3: the label `L` is there twice"),
        (".entry test() {\n.reg .b8 %r; }", "line 2: registers of type `.b8` are not supported"),
        (
            ".entry test() {\n.reg .v2 .b32 %r; }",
            "line 2: vectors of registers by name are not supported",
        ),
        (".entry test() {\nmov.u32 %r1, 0x; }", "line 2: `0x` is no number"),
        (
            ".entry test() {\n.reg .b32 %r<99999999>; }",
            "line 2: a range of registers that is too large",
        ),
        (".global .u32 x[4000000000];", "line 1: a size out of range"),
        (".global .u32 x[1000000][1000000];", "line 1: a variable that is too large"),
        (".global .u32 x[1] = {1, 2};", "line 1: `x` has more values than room"),
        (".global .u64 x = y;", "line 1: no variable `y` was declared before"),
        (".global .u64 x = y;\n.global .u32 y;", "line 1: no variable `y` was declared before"),
        (".global .align 3 .u32 x;", "line 1: an alignment of 3"),
        (".global .u128 x;", "line 1: `.u128` is not supported of a variable"),
        ("frobnicate", "line 1: `frobnicate` is no known item of a module"),
        (
            ".entry test()\n.launch_me_well\n{ }",
            "line 2: `.launch_me_well` is no known directive of a function",
        ),
        (
            ".entry test() {\n.callprototype _; }",
            "line 2: `.callprototype` is no known directive of a body",
        ),
        (".func f(.reg .u32 x) { ret; }", "line 1: parameters in registers are not supported"),
    ] {
        assert_eq!(refusal(ptx).to_string(), expected, "{ptx}");
    }
    let recursive = ".func f() { call f; ret; }\n.entry test() {\ncall f; ret; }";
    assert_eq!(
        refusal(recursive).to_string(),
        "line 1: `call`: `f` calls itself, which is not supported"
    );
}

#[test]
fn cut_and_changed_modules_do_not_panic() {
    let whole = include_str!("../kernels/q8_matvec.ptx");
    for at in (0..whole.len()).step_by(97) {
        let cut = whole.get(..at).unwrap_or_default();
        drop(Device::new(Checks::default()).load(cut));
        // A character changed, then two words swapped away.
        let mut changed = whole.as_bytes().to_vec();
        changed[at] = b"{}[];,.%0-"[at % 10];
        drop(Device::new(Checks::default()).load(&String::from_utf8(changed).unwrap()));
        let gone = format!("{}{}", cut, whole.get(at + 7..).unwrap_or_default());
        drop(Device::new(Checks::default()).load(&gone));
    }
}

/// A module of so many numbered kernels that it is decoded kernel by kernel; `last` stands in the
/// last of them. Each adds its number to a variable of the module.
fn large(last: &str) -> String {
    let mut ptx = ".version 9.0\n.target sm_90\n.address_size 64\n".to_owned();
    ptx += ".visible .global .align 4 .u32 sum = 7;\n.const .align 8 .u64 place = sum;\n";
    for i in 0..200 {
        let code = if i == 199 { last } else { "" };
        ptx += &format!(
            ".visible .entry k{i}()\n{{\n.reg .b32 %r<9>;\n.reg .b64 %rd<4>;\n.reg .pred %p<3>;\n\
             // {}\nld.const.u64 %rd1, [place];\nld.global.u32 %r1, [%rd1];\nadd.u32 %r1, %r1, {i};\n\
             mov.u64 %rd2, sum;\n$L{i}:\nst.global.u32 [%rd2], %r1;\n{code}\nret;\n}}\n",
            "-".repeat(300)
        );
    }
    assert!(ptx.len() > 1 << 16);
    ptx
}

#[test]
fn unknown_instructions_of_large_modules_are_found_when_they_are_loaded() {
    for (code, message) in [
        ("frobnicate.u32 %r1, %r2;", "an opcode that is not known"),
        ("add.u32.fast %r1, %r2, 3;", "the modifier `.fast` is not known here"),
        ("add.u32 %r1, %rd2, 3;", "`%rd2` has 64 bits where 32 are expected"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 8;", "a copy of 8 bytes"),
        ("st.global.u32 [%rd2], %r1", "expected `,` or `;`, found `ret`"),
        ("call frobnicate;", "there is no function `frobnicate`"),
    ] {
        let found = refusal(&large(code)).to_string();
        assert!(found.contains(message), "{code}: {found}");
    }
}

#[test]
fn devices_share_a_large_module_and_not_its_variables() {
    let ptx = large("");
    let mut devices: Vec<Device> = (0..2).map(|_| Device::new(Checks::default())).collect();
    // What is allocated before makes the addresses differ.
    devices[1].allocate(5000).unwrap();
    for (i, device) in devices.iter_mut().enumerate() {
        let (module, stream) = (device.load(&ptx).unwrap(), device.stream());
        let [one, two] = if i == 0 { ["k3", "k4"] } else { ["k4", "k199"] };
        for name in [one, two] {
            let function = device.function(module, name).unwrap();
            let launch = Launch {
                function,
                grid: [1; 3],
                block: [1; 3],
                dynamic_shared: 0,
                is_dependent: false,
                arguments: &[],
            };
            device.launch(stream, &launch).unwrap();
        }
        let (at, _) = device.variable(module, "sum").unwrap();
        let mut sum = [0; 4];
        device.copy_to_host(stream, &mut sum, at).unwrap();
        assert_eq!(u32::from_le_bytes(sum), [7 + 3 + 4, 7 + 4 + 199][i]);
    }
}
