//! The device's calls: memory, launches, streams, events, graphs.

use realizar_ptx::{Checks, Device, Error, Launch, ParamLayout};

use crate::common::Bench;
use crate::memory::kernel;

/// Doubles the word at `%d1`.
const DOUBLE: &str = "ld.global.u32 %r1, [%d1];\nshl.b32 %r1, %r1, 1;\nst.global.u32 [%d1], %r1;";

#[test]
fn layouts_of_parameters() {
    let ptx = ".version 9.0\n.target sm_80\n.visible .entry test(.param .u32 a, .param .u64 b,\n\
        .param .align 8 .b8 c[12], .param .u8 d, .param .f32 e)\n.maxntid 64, 2, 1\n{\n\
        .shared .align 16 .b8 s[40];\n.reg .b32 %r; .reg .b64 %d;\nld.param.u64 %d, [b];\n\
        ld.param.u32 %r, [c+8];\nst.global.u32 [%d], %r;\nld.param.f32 %r, [e];\nst.global.f32 [%d+4], %r;\nret; }";
    let mut bench = Bench::new(ptx);
    let function = bench.device.function(bench.module, "test").unwrap();
    let info = bench.device.info(function).unwrap();
    let layout = |offset, bytes| ParamLayout { offset, bytes };
    let params = [layout(0, 4), layout(8, 8), layout(16, 12), layout(28, 1), layout(32, 4)];
    assert_eq!(info.params, params);
    assert_eq!((info.shared_bytes, info.max_threads), (40, 128));
    assert_eq!(bench.device.function_names(bench.module).unwrap(), ["test"]);
    let out = bench.put(&[0u32; 2]);
    let c: Vec<u8> = (0..12).collect();
    let arguments: [&[u8]; 5] = [&[0; 4], &out.to_le_bytes(), &c, &[0], &2.5f32.to_le_bytes()];
    bench.run("test", 1, [1, 1, 1], &arguments);
    assert_eq!(bench.get::<u32>(out, 2), [0x0b0a_0908, 0x4020_0000]);
    for (arguments, block, shared, message) in [
        (&arguments[..4], [1, 1, 1], 0, "4 arguments where 5 are expected"),
        (
            &[&[0u8; 8][..], &[0; 8], &c, &[0], &[0; 4]],
            [1, 1, 1],
            0,
            "argument 0 has 8 bytes where 4 are expected",
        ),
        (&arguments, [129, 1, 1], 0, "129 threads in a block, made for at most [64, 2, 1]"),
        (&arguments, [1, 0, 1], 0, "a grid of [1, 1, 1] blocks of [1, 0, 1] threads"),
        (&arguments, [1, 1, 1], 300_000, "bytes of shared memory, at most 232448 are allowed"),
    ] {
        let found = bench.try_run("test", 1, block, shared, arguments).unwrap_err().to_string();
        assert!(found.starts_with("kernel `test`: ") && found.contains(message), "{found}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let mut bench = Bench::new(&kernel(DOUBLE));
    let missing = bench.device.function(bench.module, "other").unwrap_err();
    assert_eq!(missing.to_string(), "the module has no kernel `other`");
    let missing = bench.device.variable(bench.module, "other").unwrap_err();
    assert_eq!(missing, Error::NoSuchVariable("other".to_owned()));
    bench.device.unload(bench.module).unwrap();
    assert!(bench.device.function(bench.module, "test").is_err());
}

#[test]
fn memory_is_counted_and_bounded() {
    let mut device = Device::with_memory(Checks::default(), 1000);
    let a = device.allocate(600).unwrap();
    let refused = device.allocate(500).unwrap_err().to_string();
    assert_eq!(refused, "device memory: 500 bytes wanted, 400 are left");
    assert_eq!((device.used(), a % 256), (600, 0));
    device.free(a).unwrap();
    assert_eq!(device.used(), 0);
    let b = device.allocate(500).unwrap();
    assert_ne!(a, b);
    assert!(device.free(b + 4).is_err());
    let stream = device.stream();
    for (at, len) in [(b + 496, 8), (b + 500, 4), (a, 4)] {
        assert!(device.copy_to_device(stream, at, &vec![0; len]).is_err(), "{len}");
        assert!(device.copy_to_host(stream, &mut vec![0; len], at).is_err(), "{len}");
    }
    // A part of an allocation is copied, filled and moved by its address.
    device.copy_to_device(stream, b + 100, &[1, 2, 3, 4]).unwrap();
    device.copy(stream, b + 200, b + 101, 3).unwrap();
    device.fill(stream, b + 202, 9, 2).unwrap();
    assert!(device.copy(stream, b + 100, b + 101, 3).is_err());
    let mut out = [0; 4];
    device.copy_to_host(stream, &mut out, b + 200).unwrap();
    assert_eq!(out, [2, 3, 9, 9]);
}

#[test]
fn streams_run_in_order_and_wait_for_events() {
    let mut bench = Bench::new(&kernel(DOUBLE));
    let function = bench.device.function(bench.module, "test").unwrap();
    let device = &mut bench.device;
    let (first, second) = (device.stream(), device.stream());
    let x = device.allocate(4).unwrap();
    let argument = x.to_le_bytes();
    let arguments: [&[u8]; 1] = [&argument];
    let launch = Launch {
        function,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        is_dependent: false,
        arguments: &arguments,
    };
    let read = |device: &mut Device, stream| {
        let mut out = [0; 4];
        device.copy_to_host(stream, &mut out, x).unwrap();
        u32::from_le_bytes(out)
    };
    device.copy_to_device(first, x, &[3, 0, 0, 0]).unwrap();
    device.synchronize(first).unwrap();
    device.launch(first, &launch).unwrap();
    // Without an event the second stream does not see what the first has not been waited for.
    assert_eq!(read(device, second), 3);
    let event = device.record(first).unwrap();
    assert!(device.instructions_at(event).is_err(), "it was not passed");
    device.launch(first, &launch).unwrap();
    device.wait(second, event).unwrap();
    device.launch(second, &launch).unwrap();
    // The second stream drives the first one; all that was queued there ran.
    assert_eq!(read(device, second), 24);
    assert_eq!(device.statistics().launches, 3);
    // The launch before the event is one of three that are the same.
    assert_eq!(device.instructions_at(event).unwrap() * 3, device.statistics().instructions);
    device.launch(first, &launch).unwrap();
    device.synchronize_all().unwrap();
    assert_eq!(read(device, first), 48);
}

#[test]
fn graphs_replay_with_their_addresses() {
    let mut bench = Bench::new(&kernel(DOUBLE));
    let x = bench.put(&[5u32]);
    let function = bench.device.function(bench.module, "test").unwrap();
    let stream = bench.stream;
    let device = &mut bench.device;
    device.begin_capture(stream).unwrap();
    assert!(device.begin_capture(stream).is_err());
    let argument = x.to_le_bytes();
    let arguments: [&[u8]; 1] = [&argument];
    let launch = Launch {
        function,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        is_dependent: false,
        arguments: &arguments,
    };
    device.launch(stream, &launch).unwrap();
    device.launch(stream, &launch).unwrap();
    assert!(
        device.synchronize(stream).unwrap_err().to_string().contains("a stream that is recorded")
    );
    let graph = device.end_capture(stream).unwrap();
    assert_eq!(graph.len(), 2);
    assert!(device.end_capture(stream).is_err());
    for expected in [20u32, 80] {
        bench.device.launch_graph(stream, &graph).unwrap();
        assert_eq!(bench.get::<u32>(x, 1), [expected]);
    }
    // A graph that holds the address of freed memory is found when it runs.
    bench.device.free(x).unwrap();
    bench.device.launch_graph(stream, &graph).unwrap();
    assert!(bench.device.synchronize(stream).unwrap_err().to_string().contains("freed memory"));
}
