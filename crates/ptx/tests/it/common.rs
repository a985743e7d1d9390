//! A device with one stream, and numbers to and from its memory.

use crate::cases::Case;
use realizar_ptx::{Address, Checks, Device, Error, Launch, ModuleId, Stream};

/// A device with a loaded module.
pub(crate) struct Bench {
    pub(crate) device: Device,
    pub(crate) module: ModuleId,
    pub(crate) stream: Stream,
    case: Case,
}

/// Plain numbers that arguments and buffers consist of.
pub(crate) trait Plain: Copy {
    fn bytes(self) -> Vec<u8>;
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Plain for $type {
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }

            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}

plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, half::f16, half::bf16);

impl Bench {
    pub(crate) fn new(ptx: &str) -> Self {
        Self::with(ptx, Checks::default()).unwrap()
    }

    pub(crate) fn with(ptx: &str, checks: Checks) -> Result<Self, Error> {
        let mut device = Device::new(checks);
        let module = device.load(ptx)?;
        let stream = device.stream();
        Ok(Self { device, module, stream, case: Case::new(ptx) })
    }

    /// A buffer with values.
    pub(crate) fn put<T: Plain>(&mut self, values: &[T]) -> Address {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.bytes()).collect();
        let address = self.device.allocate(bytes.len()).unwrap();
        self.device.copy_to_device(self.stream, address, &bytes).unwrap();
        self.case.put(address, &bytes);
        address
    }

    pub(crate) fn try_run(
        &mut self,
        name: &str,
        grid: u32,
        block: [u32; 3],
        dynamic_shared: usize,
        arguments: &[&[u8]],
    ) -> Result<(), Error> {
        let function = self.device.function(self.module, name)?;
        self.case.launch(name, grid, block, dynamic_shared, arguments);
        let grid = [grid, 1, 1];
        let launch =
            Launch { function, grid, block, dynamic_shared, is_dependent: false, arguments };
        self.device.launch(self.stream, &launch)?;
        self.device.synchronize(self.stream)
    }

    /// Runs a kernel that may start before the launch in front of it has ended.
    pub(crate) fn try_run_early(
        &mut self,
        name: &str,
        grid: u32,
        block: [u32; 3],
        arguments: &[&[u8]],
    ) -> Result<(), Error> {
        let function = self.device.function(self.module, name)?;
        let (grid, dynamic_shared, is_dependent) = ([grid, 1, 1], 0, true);
        let launch = Launch { function, grid, block, dynamic_shared, is_dependent, arguments };
        self.device.launch(self.stream, &launch)?;
        self.device.synchronize(self.stream)
    }

    pub(crate) fn run(&mut self, name: &str, grid: u32, block: [u32; 3], arguments: &[&[u8]]) {
        self.try_run(name, grid, block, 0, arguments).unwrap_or_else(|e| panic!("{e}"));
    }

    pub(crate) fn get<T: Plain>(&mut self, from: Address, n: usize) -> Vec<T> {
        let size = size_of::<T>();
        let mut bytes = vec![0; n * size];
        self.device.copy_to_host(self.stream, &mut bytes, from).unwrap();
        self.case.expect(from, &bytes);
        bytes.chunks(size).map(T::read).collect()
    }
}

/// Numbers that look random, the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        // The generator of Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From -1 to 1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Runs one instruction with a thread for each row of inputs. The inputs are in `%r1` to `%r5`, `%d1`
/// to `%d5` and `%h1` to `%h5` (32, 64 and 16 bits of them) and `%p1` to `%p5` (their lowest bits); the
/// result is taken from register 0 of the file that `out` names, extended by zeros.
pub(crate) fn evaluate(out: char, code: &str, inputs: &[Vec<u64>]) -> Vec<u64> {
    try_evaluate(out, code, inputs).unwrap_or_else(|e| panic!("{code}: {e}"))
}

pub(crate) fn try_evaluate(out: char, code: &str, inputs: &[Vec<u64>]) -> Result<Vec<u64>, Error> {
    let n = inputs[0].len();
    let mut load = String::new();
    for i in 1..=n {
        load += &format!(
            "ld.global.u64 %d{i}, [%base+{}];\ncvt.u32.u64 %r{i}, %d{i};\ncvt.u16.u64 %h{i}, %d{i};\n\
             and.b32 %t0, %r{i}, 1;\nsetp.ne.u32 %p{i}, %t0, 0;\n",
            8 * (i - 1)
        );
    }
    let widen = match out {
        'd' => "mov.b64 %out, %d0;",
        'r' => "cvt.u64.u32 %out, %r0;",
        'h' => "cvt.u64.u16 %out, %h0;",
        _ => "selp.u64 %out, 1, 0, %p0;",
    };
    let ptx = format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n\
         .visible .entry test(.param .u64 x, .param .u64 y)\n{{\n\
         .reg .b32 %r<8>;\n.reg .b64 %d<8>;\n.reg .b16 %h<8>;\n.reg .pred %p<8>;\n\
         .reg .b32 %t<4>;\n.reg .b64 %base, %to, %out;\n\
         ld.param.u64 %base, [x];\nld.param.u64 %to, [y];\n\
         mov.u32 %t1, %ctaid.x;\nmov.u32 %t2, %ntid.x;\nmov.u32 %t3, %tid.x;\n\
         mad.lo.u32 %t1, %t1, %t2, %t3;\n\
         mad.wide.u32 %base, %t1, {}, %base;\nmad.wide.u32 %to, %t1, 8, %to;\n\
         {load}{code}\n{widen}\nst.global.u64 [%to], %out;\nret;\n}}\n",
        8 * n
    );
    let mut bench = Bench::with(&ptx, Checks::default())?;
    let flat: Vec<u64> = inputs.iter().flatten().copied().collect();
    let (x, y) = (bench.put(&flat), bench.put(&vec![0u64; inputs.len()]));
    let block = inputs.len().min(64);
    assert_eq!(inputs.len() % block, 0, "whole blocks");
    let arguments: [&[u8]; 2] = [&x.to_le_bytes(), &y.to_le_bytes()];
    bench.try_run("test", (inputs.len() / block) as u32, [block as u32, 1, 1], 0, &arguments)?;
    Ok(bench.get(y, inputs.len()))
}

/// Rows of `n` inputs: numbers at the edges of types in all pairs, and random ones.
pub(crate) fn edges(n: usize) -> Vec<Vec<u64>> {
    let special = [
        0,
        1,
        2,
        31,
        0x7f,
        0x80,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x7fff_ffff_ffff_ffff,
        0x8000_0000_0000_0000,
        u64::MAX,
        0x1234_5678_9abc_def0,
    ];
    let mut random = Random(11);
    let mut rows = Vec::new();
    for a in special {
        for b in special {
            let mut row = vec![a, b];
            row.resize_with(n.max(2), || random.bits());
            row.truncate(n);
            rows.push(row);
        }
    }
    rows.extend((0..256).map(|_| (0..n).map(|_| random.bits()).collect::<Vec<_>>()));
    rows
}

/// Holds an instruction to a function of its inputs.
pub(crate) fn check(out: char, code: &str, rows: &[Vec<u64>], expected: impl Fn(&[u64]) -> u64) {
    let found = evaluate(out, code, rows);
    for (row, found) in rows.iter().zip(found) {
        let expected = expected(row);
        assert_eq!(found, expected, "{code} of {row:#x?}: {found:#x}, not {expected:#x}");
    }
}
