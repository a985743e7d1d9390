//! Reverses the numbers of each block by shared memory: without a barrier, which the interpreter reports, and with one.

use realizar_ptx::{Checks, Device, Error, Launch};

/// A kernel in which a thread writes its number to shared memory and reads that of the thread opposite.
fn kernel(barrier: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n
.visible .entry reversed(.param .u64 x) {{
    .reg .b32 %r<6>; .reg .b64 %d<3>;
    .shared .align 4 .b8 numbers[256];
    ld.param.u64 %d1, [x];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.u32 %r2, %r2, 64, %r1;
    mad.wide.u32 %d2, %r2, 4, %d1;
    ld.global.u32 %r3, [%d2];
    mov.u32 %r4, numbers;
    mad.lo.u32 %r5, %r1, 4, %r4;
    st.shared.u32 [%r5], %r3;
    {barrier}
    sub.u32 %r5, 63, %r1;
    mad.lo.u32 %r5, %r5, 4, %r4;
    ld.shared.u32 %r3, [%r5];
    st.global.u32 [%d2], %r3;
    ret;
}}"
    )
}

/// Runs the kernel on 128 numbers, in two blocks.
fn run(ptx: &str) -> Result<Vec<u32>, Error> {
    let mut device = Device::new(Checks::default());
    let module = device.load(ptx)?;
    let (stream, x) = (device.stream(), device.allocate(4 * 128)?);
    let bytes: Vec<u8> = (0..128u32).flat_map(u32::to_le_bytes).collect();
    device.copy_to_device(stream, x, &bytes)?;
    let function = device.function(module, "reversed")?;
    let arguments: &[&[u8]] = &[&x.to_le_bytes()];
    let (grid, block) = ([2, 1, 1], [64, 1, 1]);
    device.launch(
        stream,
        &Launch { function, grid, block, dynamic_shared: 0, is_dependent: false, arguments },
    )?;
    let mut bytes = vec![0; 4 * 128];
    device.copy_to_host(stream, &mut bytes, x)?;
    let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    Ok(words.collect())
}

fn main() -> Result<(), Error> {
    match run(&kernel("")) {
        Err(fault) => println!("without a barrier: {fault}"),
        Ok(_) => unreachable!("threads read what others have not written"),
    }
    let numbers = run(&kernel("bar.sync 0;"))?;
    println!("with one: {:?} … {:?}", &numbers[..4], &numbers[124..]);
    assert!(numbers[..64].iter().eq((0..64).rev().collect::<Vec<_>>().iter()));
    Ok(())
}
