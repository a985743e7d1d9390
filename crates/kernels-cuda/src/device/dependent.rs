//! Programmatic dependent launch: kernels start before the launch before them has ended, and wait for it themselves.
//!
//! The instructions require capability 9.0, and images are compiled for 8.0, so the text of an image is changed when it
//! is loaded on a device with dependent launches. Sources mark the point up to which a kernel reads nothing that
//! another kernel writes, such as its weights: `wait_for_launch` of `blocks.cuh`, which is a comment in the image. The
//! kernel waits there and then lets the next launch start. A kernel without the mark waits before its first
//! instruction. A started launch thus implies that everything before its predecessor has ended, so at most two launches
//! overlap.

/// The text of `wait_for_launch` in an image.
const MARK: &str = "// wait for the launch in front";
/// The instructions that replace the mark.
const WAIT: &str = "griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;";

/// Inserts waits into all kernels of a module.
pub(crate) fn dependent(ptx: &str) -> String {
    let mut text = String::with_capacity(ptx.len() + ptx.len() / 16);
    // Whether the current kernel has a mark, and whether a wait is due before its next instruction.
    let (mut is_marked, mut is_due) = (true, false);
    let mut rest = ptx;
    for line in ptx.lines() {
        rest = &rest[(line.len() + 1).min(rest.len())..];
        let statement = line.trim_start();
        let is_entry = statement.starts_with(".visible .entry") || statement.starts_with(".entry");
        if is_entry {
            let body = rest.find(".entry ").map_or(rest, |end| &rest[..end]);
            is_marked = body.contains(MARK);
        }
        let is_instruction = !statement.is_empty() && !statement.starts_with(['.', '/']);
        if is_due && is_instruction {
            text.push('\t');
            text.push_str(WAIT);
            text.push('\n');
            (is_due, is_marked) = (false, true);
        }
        match statement {
            ".target sm_80" => text.push_str(".target sm_90"),
            MARK => {
                text.push('\t');
                text.push_str(WAIT);
            }
            // These loads promise that the memory is not written while the kernel runs, which now starts earlier.
            _ => text.push_str(&line.replace("ld.global.nc.", "ld.global.")),
        }
        text.push('\n');
        is_due |= line == "{" && !is_marked;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::unpacked;

    #[test]
    fn kernels_wait_where_they_say_or_at_their_beginning() {
        let text = ".version 9.0\n.target sm_80\n.address_size 64\n\
                    .visible .entry one(\n\t.param .u64 one_param_0\n)\n.maxntid 64, 1, 1\n{\n\t.reg .b32 \t%r<2>;\n\n\
                    \tld.global.nc.u32 \t%r1, [%rd1];\n{\n\tadd.u32 %r1, %r1, 1;\n}\n\tret;\n\n}\n\
                    .visible .entry two(\n\t.param .u64 two_param_0\n)\n{\n\t.reg .b32 \t%r<2>;\n\
                    \tmov.u32 \t%r1, 1;\n\t// begin inline asm\n\t// wait for the launch in front\n\
                    \t// end inline asm\n\tret;\n}\n";
        let wait = "\tgriddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;\n";
        let expected = format!(
            ".version 9.0\n.target sm_90\n.address_size 64\n\
             .visible .entry one(\n\t.param .u64 one_param_0\n)\n.maxntid 64, 1, 1\n{{\n\t.reg .b32 \t%r<2>;\n\n\
             {wait}\tld.global.u32 \t%r1, [%rd1];\n{{\n\tadd.u32 %r1, %r1, 1;\n}}\n\tret;\n\n}}\n\
             .visible .entry two(\n\t.param .u64 two_param_0\n)\n{{\n\t.reg .b32 \t%r<2>;\n\
             \tmov.u32 \t%r1, 1;\n\t// begin inline asm\n{wait}\t// end inline asm\n\tret;\n}}\n"
        );
        assert_eq!(dependent(text), expected);
    }

    #[test]
    fn every_kernel_of_every_image_waits() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/image");
        let mut n_kernels = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "br") {
                continue;
            }
            let text = dependent(&unpacked(&std::fs::read(&path).unwrap()).unwrap());
            assert!(!text.contains("sm_80") && !text.contains("ld.global.nc"), "{path:?}");
            for kernel in text.split(".visible .entry ").skip(1) {
                let name = kernel.lines().next().unwrap();
                assert!(kernel.contains("griddepcontrol.wait;"), "{path:?}: {name}");
                n_kernels += 1;
            }
        }
        assert!(n_kernels > 500, "{n_kernels}");
    }
}
